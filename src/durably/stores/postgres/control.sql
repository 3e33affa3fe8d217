-- What operators change.

-- :set_queue
INSERT INTO durably.queues (name, state, cutoff)
SELECT ?1::text, ?2::text, CASE WHEN ?2::text = 'draining' THEN (SELECT durably.now()) END
    ON CONFLICT (name) DO UPDATE SET state = EXCLUDED.state, cutoff = EXCLUDED.cutoff

-- :forget_queue
DELETE FROM durably.queues WHERE name = ?1::text

-- :set_gate
INSERT INTO durably.gates (name, concurrency, rate, burst, tokens, refilled_at)
SELECT ?1::text, ?2::int, ?3::double precision, ?4::double precision, ?4::double precision, (SELECT durably.now())
    ON CONFLICT (name) DO UPDATE
   SET concurrency = EXCLUDED.concurrency, rate = EXCLUDED.rate, burst = EXCLUDED.burst,
       tokens = least(gates.tokens, EXCLUDED.burst)

-- :lock_sessions
-- Wait for every claim that is under way, and let none begin, so that nothing that is leased is missed.
LOCK TABLE durably.sessions IN EXCLUSIVE MODE

-- :drop_gate
DELETE FROM durably.gates WHERE name = ?1::text

-- :seed_permits
-- What already runs in a queue counts against a limit that is set now.
INSERT INTO durably.permits (gate, task, token)
SELECT 'q:' || t.queue, t.id, t.token FROM durably.claims c {claimed} WHERE t.queue = ?1::text
 UNION ALL
SELECT 'q:' || queue, head, token FROM durably.keys WHERE queue = ?1::text AND state = 'leased'
    ON CONFLICT (gate, task) DO UPDATE SET token = EXCLUDED.token

-- :dead_ids
-- Dead letters in the order in which they were accepted; every filter may be null.
SELECT id::text FROM durably.history
 WHERE state = 'dead' AND (?1::text IS NULL OR queue = ?1::text) AND (?2::text IS NULL OR name = ?2::text)
   AND (?3::text IS NULL OR key = ?3::text) AND (?4::bigint IS NULL OR finished_at < ?4::bigint)
   AND (?6::text IS NULL OR CASE WHEN strpos(queue, '/') > 0 THEN split_part(queue, '/', 1) ELSE 'default' END = ?6::text)
   AND (?7::text IS NULL OR id IN (SELECT task FROM durably.deliveries
                                    WHERE namespace = ?6::text AND destination = ?7::text))
 ORDER BY created_at, seq LIMIT ?5::int

-- :replay
-- Back to life with a fresh budget, at the tail of its key, relative order kept; the lifetime attempt number stays.
WITH gone AS (
    DELETE FROM durably.history WHERE id = ANY(?1::text[]::uuid[]) AND state = ANY(?2::text[]) RETURNING *
), numbered AS (
    SELECT *, nextval('durably.order_seq') AS place FROM (SELECT * FROM gone ORDER BY created_at, seq) g
), moved AS (
    INSERT INTO durably.tasks (id, seq, version, created_at, ready_at, token, partition, priority, attempt, spent,
                               crashes, once, alone, state, name, queue, key, policy, gate, payload, options, tags,
                               unique_scope, unique_key, details)
    SELECT id, place, version + 1, created_at, (SELECT durably.now()), token, partition, priority, attempt, 0, 0, once,
           false, CASE WHEN key IS NULL AND gate IS NULL THEN 'ready' ELSE 'blocked' END, name, queue, key, policy,
           gate, payload, options, tags, CASE WHEN unique_scope IN ('period', 'forever') THEN unique_scope END,
           unique_key, coalesce(?3::bytea, details)
      FROM numbered
    RETURNING id, queue, key, gate, priority, alone, state, ready_at
), marked AS (
    INSERT INTO durably.turns (queue, key, gate, priority, alone, ready_at)
    SELECT queue, key, gate, priority, alone, ready_at FROM moved WHERE state = 'blocked'
)
SELECT id::text, queue FROM moved

-- :purge
WITH gone AS (
    DELETE FROM durably.history WHERE id = ANY(?1::text[]::uuid[]) AND state = 'dead' RETURNING id
), forgotten AS (
    DELETE FROM durably.attempts
     WHERE ctid = ANY(ARRAY(SELECT a.row FROM gone CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.attempts
                                                                        WHERE task = gone.id OFFSET 0) a))
)
SELECT id::text FROM gone

-- :resume_key
-- Its next head may be any task: not alone, so that every claim looks at it, and then corrects the row.
UPDATE durably.keys SET state = 'ready', ready_at = (SELECT durably.now()), reason = NULL, head = NULL, alone = false
 WHERE queue = ?1::text AND key = ?2::text AND state = 'paused'
RETURNING queue

-- :pause_key
UPDATE durably.keys SET state = 'paused', reason = ?3::text
 WHERE queue = ?1::text AND key = ?2::text AND state = 'ready'
RETURNING queue
