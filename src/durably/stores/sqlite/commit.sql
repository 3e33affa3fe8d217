-- Applying decided changes, one row at a time within one transaction.

-- :finish_tasks
INSERT INTO durably_history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                             token, partition, priority, attempt, spent, crashes, once, state, name, queue, session,
                             payload, options, tags, cancel, details, result)
SELECT id, seq, version + 1, created_at, ready_at, coalesce(:now - ?5, started_at), expires_at, :now, :now + ?4, token,
       partition, priority, attempt, spent, crashes, once, 'done', name, queue, session, payload, options, tags, cancel,
       details, ?3
  FROM durably_tasks WHERE id = ?1 AND version = ?2
RETURNING id;
DELETE FROM durably_tasks WHERE id = ?1 AND version = ?2

-- :finish_alike_tasks
-- The same for tasks of one claim at once: their token, version and keep_for, and by seq how long ago the attempt began,
-- and behind a colon, if there is a result, in ten digits where it begins among all results, and how long it is. A seq
-- comes again when its task has ended, but not with the token. Who they were is told only if some are not.
INSERT INTO durably_history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                             token, partition, priority, attempt, spent, crashes, once, state, name, queue, session,
                             payload, options, tags, cancel, details, result)
SELECT t.id, t.seq, t.version + 1, t.created_at, t.ready_at,
       coalesce(:now - nullif(CAST(d.value AS INTEGER), 0), t.started_at), t.expires_at, :now, :now + ?3, t.token,
       t.partition, t.priority, t.attempt, t.spent, t.crashes, t.once, 'done', t.name, t.queue, t.session, t.payload,
       t.options, t.tags, t.cancel, t.details,
       CASE WHEN instr(d.value, ':')
            THEN substr(?5, CAST(substr(d.value, instr(d.value, ':') + 1, 10) AS INTEGER),
                        CAST(substr(d.value, instr(d.value, ':') + 11) AS INTEGER)) END
  FROM json_each(?4) d CROSS JOIN durably_tasks t
 WHERE t.seq = CAST(d.key AS INTEGER) AND t.token = ?1 AND t.version = ?2;
SELECT CASE WHEN changes() < ?6
            THEN (SELECT json_group_array(t.id) FROM json_each(?4) d CROSS JOIN durably_tasks t
                   WHERE t.seq = CAST(d.key AS INTEGER) AND t.token = ?1 AND t.version = ?2) END;
DELETE FROM durably_tasks
 WHERE seq IN (SELECT CAST(key AS INTEGER) FROM json_each(?4)) AND token = ?1 AND version = ?2

-- :end_tasks
INSERT INTO durably_history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                             token, partition, priority, attempt, spent, crashes, once, state, name, queue, key, policy,
                             gate, session, payload, options, tags, cancel, unique_scope, unique_key, details, reason,
                             result)
SELECT id, seq, version + 1, created_at, ready_at, coalesce(:now - ?10, started_at), expires_at, :now, :now + ?9, ?11,
       partition, priority, ?6, ?7, ?8, once, ?3, name, queue, key, policy, gate, ?12, payload, options, tags,
       cancel, unique_scope, unique_key, coalesce(?13, details), ?4, ?5
  FROM durably_tasks WHERE id = ?1 AND version = ?2
RETURNING id;
DELETE FROM durably_tasks WHERE id = ?1 AND version = ?2

-- :end_alike_tasks
-- The same for many at once that are done, and alike but in three things: by seq, how long ago the attempt began, behind a
-- comma the id, and where the result is, as above. A seq comes again when its task has ended, but not with that id.
INSERT INTO durably_history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                             token, partition, priority, attempt, spent, crashes, once, state, name, queue, key, policy,
                             gate, session, payload, options, tags, cancel, details, result)
SELECT t.id, t.seq, t.version + 1, t.created_at, t.ready_at,
       coalesce(:now - nullif(CAST(d.value AS INTEGER), 0), t.started_at), t.expires_at, :now, :now + ?7, ?1,
       t.partition, t.priority, ?3, ?4, ?5, t.once, 'done', t.name, t.queue, t.key, t.policy, t.gate, ?6, t.payload,
       t.options, t.tags, t.cancel, t.details,
       CASE WHEN instr(d.value, ':')
            THEN substr(?9, CAST(substr(d.value, instr(d.value, ':') + 1, 10) AS INTEGER),
                        CAST(substr(d.value, instr(d.value, ':') + 11) AS INTEGER)) END
  FROM json_each(?8) d CROSS JOIN durably_tasks t
 WHERE t.seq = CAST(d.key AS INTEGER) AND t.version = ?2
   AND t.id = substr(d.value, instr(d.value, ',') + 1, length(t.id));
SELECT CASE WHEN changes() < ?10
            THEN (SELECT json_group_array(t.id) FROM json_each(?8) d CROSS JOIN durably_tasks t
                   WHERE t.seq = CAST(d.key AS INTEGER) AND t.version = ?2
                     AND t.id = substr(d.value, instr(d.value, ',') + 1, length(t.id))) END;
DELETE FROM durably_tasks
 WHERE seq IN (SELECT t.seq FROM json_each(?8) d CROSS JOIN durably_tasks t
                WHERE t.seq = CAST(d.key AS INTEGER) AND t.version = ?2
                  AND t.id = substr(d.value, instr(d.value, ',') + 1, length(t.id)))

-- :release_tasks
UPDATE durably_tasks
   SET state = ?3, ready_at = :now + ?4, attempt = ?5, spent = ?6, crashes = ?7, alone = ?8, session = NULL,
       token = ?11, version = version + 1, details = coalesce(?10, details),
       seq = CASE WHEN ?9 THEN (SELECT max(seq) + 1 FROM durably_tasks) ELSE seq END
 WHERE id = ?1 AND version = ?2
RETURNING id;
INSERT INTO durably_turns (queue, key, gate, priority, alone, ready_at)
SELECT queue, key, gate, priority, alone, ready_at FROM durably_tasks WHERE id = ?1 AND version = ?2 + 1 AND state = 'blocked' AND key IS NULL

-- :flag_tasks
UPDATE durably_tasks SET cancel = ?3, version = version + 1 WHERE id = ?1 AND version = ?2 RETURNING id

-- :insert_attempts
INSERT OR IGNORE INTO durably_attempts (task, attempt, outcome, kind, message, trace, session, token, started_at,
                                        finished_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, :now - ?9, :now)

-- :keep_unique
UPDATE durably_unique_keys SET state = ?2, result = ?3 WHERE task = ?1

-- :clear_permits
DELETE FROM durably_permits WHERE task IN (SELECT value FROM json_each(?1)) RETURNING gate

-- :wait_gates
SELECT name, concurrency, rate, burst, tokens, refilled_at FROM durably_gates
 WHERE name IN (SELECT gate FROM durably_permits WHERE task IN (SELECT value FROM json_each(?1)))
 ORDER BY name

-- :wake_gates
UPDATE durably_lines SET ready_at = :now
 WHERE gate IN (SELECT value FROM json_each(?1)) AND ready_at > :now AND held_until <= :now RETURNING queue;
UPDATE durably_keys SET ready_at = :now, held = 0
 WHERE held AND (gate IN (SELECT value FROM json_each(?1)) OR queue IN (SELECT value FROM json_each(?2)))
RETURNING queue

-- :set_progress
UPDATE durably_tasks AS t
   SET progress = coalesce(?3, progress), details = coalesce(?4, details)
 WHERE id = ?1
   AND (state = 'leased' AND token = ?2
        OR EXISTS (SELECT 1 FROM durably_keys k
                    WHERE k.queue = t.queue AND k.key = t.key AND {leased}
                      AND k.token = ?2))
RETURNING 1

-- :cancel_requests
SELECT seq, task, reason FROM durably_cancel_requests ORDER BY seq LIMIT ?1

-- :clear_cancel_requests
DELETE FROM durably_cancel_requests WHERE seq IN (SELECT value FROM json_each(?1))
