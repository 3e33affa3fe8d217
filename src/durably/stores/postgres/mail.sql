-- Mails, the addresses that get none, and stored templates. A caller's transaction runs `add_mail` and `mail_by_key`.

-- :add_mail
INSERT INTO durably.mails (id, namespace, created_at, key, about)
SELECT ?1::text::uuid, ?2::text, durably.now(), ?3::text, ?4::bytea
    ON CONFLICT DO NOTHING
RETURNING 1

-- :mail_by_key
SELECT id::text FROM durably.mails WHERE namespace = ?1::text AND key = ?2::text

-- :mails
SELECT id::text, created_at, key, about FROM durably.mails
 WHERE namespace = ?1::text AND id = ANY(?2::text[]::uuid[])

-- :list_mails
-- The newest first. What a mail is doing is the state of the task that brings it to its transport.
SELECT m.id::text, m.created_at, m.key, m.about, d.destination, d.task::text, coalesce(t.state, h.state)
  FROM durably.mails m
  LEFT JOIN LATERAL (SELECT destination, task FROM durably.deliveries
                      WHERE message = m.id AND namespace = m.namespace OFFSET 0) d ON true
  LEFT JOIN LATERAL (SELECT state FROM durably.tasks WHERE id = d.task OFFSET 0) t ON true
  LEFT JOIN LATERAL (SELECT state FROM durably.history WHERE id = d.task OFFSET 0) h ON true
 WHERE m.namespace = ?1::text AND (?2::text IS NULL OR m.id < ?2::text::uuid)
   AND (?3::text[] IS NULL OR coalesce(t.state, h.state) = ANY(?3::text[]))
 ORDER BY m.id DESC LIMIT ?4::int

-- :suppress
INSERT INTO durably.suppressions (namespace, address, category, cause, note, created_at)
SELECT ?1::text, address, ?3::text, ?4::text, ?5::text, durably.now()
  FROM unnest(?2::text[]) AS a(address)
 ORDER BY address
    ON CONFLICT DO NOTHING
RETURNING address

-- :unsuppress
DELETE FROM durably.suppressions
 WHERE namespace = ?1::text AND address = ?2::text AND (?3::text IS NULL OR category = ?3::text)
RETURNING address

-- :suppressed
SELECT address, category, cause, note, created_at FROM durably.suppressions
 WHERE namespace = ?1::text AND address = ANY(?2::text[])

-- :list_suppressions
SELECT address, category, cause, note, created_at FROM durably.suppressions
 WHERE namespace = ?1::text AND (address, category) > (?2::text, ?3::text)
 ORDER BY address, category LIMIT ?4::int

-- :add_template
INSERT INTO durably.templates (namespace, name, locale, version, source, created_at)
SELECT ?1::text, ?2::text, ?3::text, coalesce(max(version), 0) + 1, ?4::text, durably.now()
  FROM durably.templates WHERE namespace = ?1::text AND name = ?2::text AND locale = ?3::text
    ON CONFLICT DO NOTHING
RETURNING version

-- :templates
-- The newest version for each of some locales.
SELECT DISTINCT ON (locale) locale, version, source FROM durably.templates
 WHERE namespace = ?1::text AND name = ?2::text AND locale = ANY(?3::text[])
 ORDER BY locale, version DESC

-- :list_templates
SELECT name, locale, max(version), max(created_at) FROM durably.templates
 WHERE namespace = ?1::text GROUP BY name, locale ORDER BY name, locale

-- :forget_template
DELETE FROM durably.templates WHERE namespace = ?1::text AND name = ?2::text AND locale = ?3::text RETURNING version
