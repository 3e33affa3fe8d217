-- Accepting tasks. A caller's transaction runs these too; each begins with INSERT, because only that opens a
-- transaction on a connection of Python's sqlite3 that has none yet.
-- Lists arrive as JSON text; what is run once per row takes plain values.

-- :insert_tasks
INSERT OR IGNORE INTO durably_tasks (id, version, created_at, ready_at, expires_at, token, partition, priority, attempt,
                                     spent, crashes, once, alone, state, name, queue, key, policy, gate, payload,
                                     options, tags, unique_scope, unique_key)
SELECT ?1, 0, :now, max(coalesce(?7, :now + ?6), :now), :now + ?14, 0, ?17, ?5, 0, 0, 0, ?13, 0,
       CASE WHEN coalesce(?7, :now + ?6) > :now THEN 'delayed'
            WHEN ?8 IS NULL AND ?10 IS NULL THEN 'ready' ELSE 'blocked' END,
       ?2, ?3, ?8, ?9, ?10, ?4, ?11, ?12, ?15, ?16
 WHERE NOT EXISTS (SELECT 1 FROM durably_history h WHERE h.id = ?1);
INSERT INTO durably_turns (queue, key, gate, priority, alone, ready_at)
SELECT queue, key, gate, priority, alone, ready_at FROM durably_tasks WHERE id = ?1 AND state = 'blocked'

-- :insert_plain
-- One draft with nothing special about it, to be run at once.
INSERT OR IGNORE INTO durably_tasks (id, version, created_at, ready_at, token, partition, priority, attempt, spent,
                                     crashes, once, alone, state, name, queue, payload)
SELECT ?1, 0, :now, :now, 0, ?6, ?5, 0, 0, 0, 0, 0, 'ready', ?2, ?3, ?4
 WHERE NOT EXISTS (SELECT 1 FROM durably_history h WHERE h.id = ?1)

-- :put
-- The same for a draft that was never sent before; whatever goes wrong, the statement above is tried next.
INSERT INTO durably_tasks (id, version, created_at, ready_at, token, partition, priority, attempt, spent, crashes, once,
                           alone, state, name, queue, payload)
VALUES (?1, 0, ?2, ?3, 0, ?4, ?5, 0, 0, 0, 0, 0, 'ready', ?6, ?7, ?8)

-- :insert_many
-- The same for many drafts at once: what each is, and where its payload stands among the bytes of all.
INSERT OR IGNORE INTO durably_tasks (id, version, created_at, ready_at, token, partition, priority, attempt, spent,
                                     crashes, once, alone, state, name, queue, payload)
SELECT json_extract(d.value, '$[0]'), 0, :now, :now, 0, json_extract(d.value, '$[1]'), json_extract(d.value, '$[2]'),
       0, 0, 0, 0, 0, 'ready', json_extract(d.value, '$[3]'), json_extract(d.value, '$[4]'),
       substr(?2, json_extract(d.value, '$[5]'), json_extract(d.value, '$[6]'))
  FROM json_each(?1) d
 WHERE NOT EXISTS (SELECT 1 FROM durably_history h WHERE h.id = json_extract(d.value, '$[0]'))

-- :take_unique
INSERT OR IGNORE INTO durably_unique_keys (namespace, scope, key, task, fingerprint, expires_at)
SELECT ?2, ?3, CASE WHEN ?6 IS NULL THEN ?4 ELSE ?4 || '@' || (:now / ?6) END, ?1, ?5, (:now / ?6 + 1) * ?6
 WHERE true
RETURNING +task

-- :find_unique
SELECT ?1, +u.task, +u.fingerprint
  FROM durably_unique_keys u
 WHERE u.namespace = ?2 AND u.scope = ?3 AND u.key = CASE WHEN ?5 IS NULL THEN ?4 ELSE ?4 || '@' || (:now / ?5) END

-- :forget_revived
DELETE FROM durably_tasks
 WHERE id IN (SELECT value FROM json_each(?1)) AND version = 0
   AND EXISTS (SELECT 1 FROM durably_history h WHERE h.id = durably_tasks.id)

-- :request_cancel
INSERT INTO durably_cancel_requests (task, reason) SELECT value, ?2 FROM json_each(?1)

-- :identity
SELECT value FROM durably_meta WHERE name = 'store'
