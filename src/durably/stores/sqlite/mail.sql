-- Mails, the addresses that get none, and stored templates. A caller's transaction runs `add_mail` and `mail_by_key`.

-- :add_mail
INSERT INTO durably_mails (id, namespace, created_at, key, about) VALUES (?1, ?2, :now, ?3, ?4)
    ON CONFLICT DO NOTHING
RETURNING 1

-- :mail_by_key
SELECT id FROM durably_mails WHERE namespace = ?1 AND key = ?2

-- :mails
SELECT id, created_at, key, about FROM durably_mails
 WHERE namespace = ?1 AND id IN (SELECT value FROM json_each(?2))

-- :list_mails
SELECT m.id, m.created_at, m.key, m.about, d.destination, d.task, coalesce(t.state, h.state)
  FROM durably_mails m
  LEFT JOIN durably_deliveries d ON d.message = m.id AND d.namespace = m.namespace
  LEFT JOIN durably_tasks t ON t.id = d.task
  LEFT JOIN durably_history h ON h.id = d.task
 WHERE m.namespace = ?1 AND (?2 IS NULL OR m.id < ?2)
   AND (?3 IS NULL OR coalesce(t.state, h.state) IN (SELECT value FROM json_each(?3)))
 ORDER BY m.id DESC LIMIT ?4

-- :suppress
INSERT INTO durably_suppressions (namespace, address, category, cause, note, created_at)
SELECT ?1, value, ?3, ?4, ?5, :now FROM json_each(?2) WHERE true
    ON CONFLICT DO NOTHING
RETURNING address

-- :unsuppress
DELETE FROM durably_suppressions WHERE namespace = ?1 AND address = ?2 AND (?3 IS NULL OR category = ?3)
RETURNING address

-- :suppressed
SELECT address, category, cause, note, created_at FROM durably_suppressions
 WHERE namespace = ?1 AND address IN (SELECT value FROM json_each(?2))

-- :list_suppressions
SELECT address, category, cause, note, created_at FROM durably_suppressions
 WHERE namespace = ?1 AND (address, category) > (?2, ?3)
 ORDER BY address, category LIMIT ?4

-- :add_template
INSERT INTO durably_templates (namespace, name, locale, version, source, created_at)
SELECT ?1, ?2, ?3, coalesce(max(version), 0) + 1, ?4, :now
  FROM durably_templates WHERE namespace = ?1 AND name = ?2 AND locale = ?3
    ON CONFLICT DO NOTHING
RETURNING version

-- :templates
SELECT locale, max(version), source FROM durably_templates
 WHERE namespace = ?1 AND name = ?2 AND locale IN (SELECT value FROM json_each(?3))
 GROUP BY locale

-- :list_templates
SELECT name, locale, max(version), max(created_at) FROM durably_templates
 WHERE namespace = ?1 GROUP BY name, locale ORDER BY name, locale

-- :forget_template
DELETE FROM durably_templates WHERE namespace = ?1 AND name = ?2 AND locale = ?3 RETURNING version
