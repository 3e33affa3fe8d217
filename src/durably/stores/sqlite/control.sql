-- What operators change.

-- :set_queue
INSERT INTO durably_queues (name, state, cutoff)
VALUES (?1, ?2, CASE WHEN ?2 = 'draining' THEN :now END)
    ON CONFLICT (name) DO UPDATE SET state = excluded.state, cutoff = excluded.cutoff

-- :forget_queue
DELETE FROM durably_queues WHERE name = ?1

-- :set_gate
INSERT INTO durably_gates (name, concurrency, rate, burst, tokens, refilled_at)
VALUES (?1, ?2, ?3, ?4, ?4, :now)
    ON CONFLICT (name) DO UPDATE
   SET concurrency = excluded.concurrency, rate = excluded.rate, burst = excluded.burst,
       tokens = min(tokens, excluded.burst)

-- :lock_sessions
SELECT id FROM durably_sessions

-- :drop_gate
DELETE FROM durably_gates WHERE name = ?1

-- :seed_permits
INSERT OR REPLACE INTO durably_permits (gate, task, token)
SELECT 'q:' || queue, id, token FROM durably_tasks WHERE queue = ?1 AND state = 'leased'
 UNION ALL
SELECT 'q:' || queue, head, token FROM durably_keys WHERE queue = ?1 AND state = 'leased'

-- :dead_ids
SELECT id FROM durably_history
 WHERE state = 'dead' AND (?1 IS NULL OR queue = ?1) AND (?2 IS NULL OR name = ?2) AND (?3 IS NULL OR key = ?3)
   AND (?4 IS NULL OR finished_at < ?4)
   AND (?6 IS NULL OR CASE WHEN instr(queue, '/') > 0 THEN substr(queue, 1, instr(queue, '/') - 1)
                        ELSE 'default' END = ?6)
   AND (?7 IS NULL OR id IN (SELECT task FROM durably_deliveries WHERE namespace = ?6 AND destination = ?7))
 ORDER BY created_at, id LIMIT ?5

-- :replay
INSERT INTO durably_tasks (id, version, created_at, ready_at, token, partition, priority, attempt, spent, crashes, once,
                           alone, state, name, queue, key, policy, gate, payload, options, tags, unique_scope,
                           unique_key, details)
SELECT id, version + 1, created_at, :now, token, partition, priority, attempt, 0, 0, once, 0,
       CASE WHEN key IS NULL AND gate IS NULL THEN 'ready' ELSE 'blocked' END, name, queue, key, policy, gate, payload,
       options, tags, CASE WHEN unique_scope IN ('period', 'forever') THEN unique_scope END, unique_key, coalesce(?3, details)
  FROM durably_history
 WHERE state IN (SELECT value FROM json_each(?2)) AND id IN (SELECT value FROM json_each(?1))
 ORDER BY created_at, id
RETURNING id, queue;
INSERT INTO durably_turns (queue, key, gate, priority, alone, ready_at)
SELECT queue, key, gate, priority, 0, :now FROM durably_history
 WHERE state IN (SELECT value FROM json_each(?2)) AND (key IS NOT NULL OR gate IS NOT NULL) AND id IN (SELECT value FROM json_each(?1))
 ORDER BY created_at, id;
DELETE FROM durably_history WHERE state IN (SELECT value FROM json_each(?2)) AND id IN (SELECT value FROM json_each(?1))

-- :purge
DELETE FROM durably_attempts
 WHERE task IN (SELECT id FROM durably_history WHERE state = 'dead' AND id IN (SELECT value FROM json_each(?1)));
DELETE FROM durably_history WHERE state = 'dead' AND id IN (SELECT value FROM json_each(?1)) RETURNING id

-- :resume_key
-- Its next head may be any task: not alone, so that every claim looks at it, and then corrects the row.
UPDATE durably_keys SET state = 'ready', ready_at = :now, reason = NULL, head = NULL, alone = 0
 WHERE queue = ?1 AND key = ?2 AND state = 'paused'
RETURNING queue

-- :pause_key
UPDATE durably_keys SET state = 'paused', reason = ?3 WHERE queue = ?1 AND key = ?2 AND state = 'ready' RETURNING queue
