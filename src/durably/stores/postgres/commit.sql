-- Applying decided changes. Every statement names the version it was decided on, and answers what it really changed.
-- A table that was empty when a plan was made may be huge now: OFFSET 0 makes the planner look each row up by its index.
-- The version is compared again beside the place: a row that was waited for is judged as it is then.

-- :finish_tasks
-- What was done and holds nothing: the row moves to history as it is.
WITH gone AS (
    DELETE FROM durably.tasks t
     USING unnest(?1::text[]::uuid[], ?2::bigint[], ?3::bytea[], ?4::bigint[], ?5::bigint[])
        AS d(id, version, result, keep_for, started_ago)
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id AND version = d.version OFFSET 0) f
     WHERE t.ctid = f.row AND t.version = d.version
    RETURNING t.id, t.seq, t.version, t.created_at, t.ready_at, t.started_at, t.expires_at, t.token, t.partition,
              t.priority, t.attempt, t.spent, t.crashes, t.once, t.name, t.queue, t.session, t.payload, t.options,
              t.tags, t.cancel, t.details, d.result, d.keep_for, d.started_ago
), kept AS (
    INSERT INTO durably.history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                                 token, partition, priority, attempt, spent, crashes, once, state, name, queue, session,
                                 payload, options, tags, cancel, details, result)
    SELECT id, seq, version + 1, created_at, ready_at, coalesce(now - started_ago, started_at), expires_at, now,
           now + keep_for, token, partition, priority, attempt, spent, crashes, once, 'done', name, queue, session,
           payload, options, tags, cancel, details, result
      FROM (SELECT *, (SELECT durably.now()) AS now FROM gone) g
    RETURNING id, prune_at
), {noted}
SELECT id::text FROM kept

-- :finish_placed_tasks
-- The same for those that are still where their claim put them, if all are kept equally long. The answer is one row
-- without an id if that was true of all of them, else the ids of those of which it was. The limit changes nothing, but
-- the planner takes it for one row, and so goes to their places rather than through an empty table.
WITH gone AS (
    DELETE FROM durably.tasks t
     USING (SELECT * FROM unnest(?1::tid[], ?2::uuid[], ?3::bigint[], ?4::bytea[], ?5::bigint[])
                       AS u(place, id, version, result, started_ago) LIMIT ?7::int) d
     WHERE t.ctid = d.place AND t.id = d.id AND t.version = d.version
    RETURNING t.id, t.seq, t.version, t.created_at, t.ready_at, t.started_at, t.expires_at, t.token, t.partition,
              t.priority, t.attempt, t.spent, t.crashes, t.once, t.name, t.queue, t.session, t.payload, t.options,
              t.tags, t.cancel, t.details, d.result, d.started_ago
), moment AS MATERIALIZED (
    SELECT durably.now() AS now
), kept AS (
    INSERT INTO durably.history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                                 token, partition, priority, attempt, spent, crashes, once, state, name, queue, session,
                                 payload, options, tags, cancel, details, result)
    SELECT id, seq, version + 1, created_at, ready_at, coalesce(now - started_ago, started_at), expires_at, now,
           now + ?6::bigint, token, partition, priority, attempt, spent, crashes, once, 'done', name, queue, session,
           payload, options, tags, cancel, details, result
      FROM (SELECT *, (SELECT now FROM moment) AS now FROM gone) g
), {ended_together}
SELECT NULL WHERE (SELECT count FROM ended) = ?7::int
 UNION ALL
SELECT id::text FROM gone WHERE (SELECT count FROM ended) < ?7::int

-- :finish_keyed_tasks
-- The same for the heads of keys, and their followers, whose leases are in their key rows: these are locked, and must all
-- say so. All ?8 of them, or it must be undone: the answer is how many they were.
WITH locked AS MATERIALIZED (
    SELECT count(k.token) AS count
      FROM (SELECT * FROM unnest(?10::text[], ?11::text[], ?12::bigint[], ?13::uuid[], ?14::text[])
                       AS n(queue, key, token, head, followers) ORDER BY queue, key) d
     CROSS JOIN LATERAL (
            SELECT token FROM durably.keys
             WHERE queue = d.queue AND key = d.key AND state = 'leased' AND token = d.token AND head = d.head
               AND followers IS NOT DISTINCT FROM d.followers
               FOR NO KEY UPDATE) k
), gone AS (
    DELETE FROM durably.tasks t
     USING (SELECT * FROM unnest(?9::tid[], ?1::uuid[], ?2::bigint[], ?3::bigint[], ?4::bytea[], ?5::bigint[])
                       AS u(place, id, version, token, result, started_ago) LIMIT ?8::int) d
     WHERE (SELECT count FROM locked) = ?15::int AND t.ctid = d.place AND t.id = d.id AND t.version = d.version
    RETURNING t.id, t.seq, t.version, t.created_at, t.ready_at, t.started_at, t.expires_at, d.token, t.partition,
              t.priority, t.attempt, t.spent, t.crashes, t.once, t.name, t.queue, t.key, t.policy,
              t.payload, t.options, t.tags, t.cancel, t.details, d.result, d.started_ago
), moment AS MATERIALIZED (
    SELECT durably.now() AS now
), kept AS (
    INSERT INTO durably.history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                                 token, partition, priority, attempt, spent, crashes, once, state, name, queue, key,
                                 policy, session, payload, options, tags, cancel, details, result)
    SELECT id, seq, version + 1, created_at, ready_at, coalesce(now - started_ago, started_at), expires_at, now,
           now + ?6::bigint, token, partition, priority, attempt + 1, spent + 1, crashes, once, 'done', name, queue, key,
           policy, ?7::text, payload, options, tags, cancel, details, result
      FROM (SELECT *, (SELECT now FROM moment) AS now FROM gone) g
), {ended_together}
SELECT count FROM ended

-- :finish_limited_tasks
-- The same for tasks of limit groups without a key; their permits go with them.
WITH gone AS (
    DELETE FROM durably.tasks t
     USING unnest(?1::text[]::uuid[], ?2::bigint[], ?3::bytea[], ?4::bigint[], ?5::bigint[])
        AS d(id, version, result, keep_for, started_ago)
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id AND version = d.version OFFSET 0) f
     WHERE t.ctid = f.row AND t.version = d.version
    RETURNING t.id, t.seq, t.version, t.created_at, t.ready_at, t.started_at, t.expires_at, t.token, t.partition,
              t.priority, t.attempt, t.spent, t.crashes, t.once, t.name, t.queue, t.gate, t.session, t.payload,
              t.options, t.tags, t.cancel, t.details, d.result, d.keep_for, d.started_ago
), cleared AS (
    DELETE FROM durably.permits WHERE task = ANY(ARRAY(SELECT id FROM gone))
), kept AS (
    INSERT INTO durably.history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                                 token, partition, priority, attempt, spent, crashes, once, state, name, queue, gate,
                                 session, payload, options, tags, cancel, details, result)
    SELECT id, seq, version + 1, created_at, ready_at, coalesce(now - started_ago, started_at), expires_at, now,
           now + keep_for, token, partition, priority, attempt, spent, crashes, once, 'done', name, queue, gate,
           session, payload, options, tags, cancel, details, result
      FROM (SELECT *, (SELECT durably.now()) AS now FROM gone) g
    RETURNING id, prune_at
), {noted}
SELECT id::text FROM kept

-- :end_tasks
-- Move the row to history in one statement.
WITH gone AS (
    DELETE FROM durably.tasks t
     USING unnest(?1::text[], ?2::bigint[], ?3::text[], ?4::text[], ?5::bytea[], ?6::int[], ?7::int[], ?8::int[],
                  ?9::bigint[], ?10::bigint[], ?11::bigint[], ?12::text[], ?13::bytea[])
        AS d(id, version, state, reason, result, attempt, spent, crashes, keep_for, started_ago, token, session,
             details)
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id::uuid AND version = d.version OFFSET 0) f
     WHERE t.ctid = f.row AND t.version = d.version
    RETURNING t.id, t.seq, t.version + 1 AS version, t.created_at, t.ready_at, t.started_at AS claimed_at, t.expires_at,
              d.token, t.partition, t.priority, d.attempt, d.spent, d.crashes, t.once, d.state, t.name, t.queue, t.key,
              t.policy, t.gate, d.session, t.payload, t.options, t.tags, t.cancel, t.unique_scope, t.unique_key,
              coalesce(d.details, t.details) AS details, d.reason, d.result, d.keep_for, d.started_ago
), kept AS (
    INSERT INTO durably.history (id, seq, version, created_at, ready_at, started_at, expires_at, finished_at, prune_at,
                                 token, partition, priority, attempt, spent, crashes, once, state, name, queue, key,
                                 policy, gate, session, payload, options, tags, cancel, unique_scope, unique_key,
                                 details, reason, result)
    SELECT id, seq, version, created_at, ready_at, coalesce(now - started_ago, claimed_at), expires_at, now,
           now + keep_for, token, partition, priority, attempt, spent, crashes, once, state, name, queue, key, policy,
           gate, session, payload, options, tags, cancel, unique_scope, unique_key, details, reason, result
      FROM (SELECT *, (SELECT durably.now()) AS now FROM gone) g
    RETURNING id, prune_at
), {noted}
SELECT id::text FROM kept

-- :drop_revived
-- A request that arrived in the moment in which its task ended may have brought the task back: the first end stands.
-- It is asked only after an end met one in history.
DELETE FROM durably.tasks t
 USING unnest(?1::text[], ?2::bigint[]) AS d(id, version)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id::uuid AND version = d.version OFFSET 0) f
 WHERE t.ctid = f.row AND t.version = d.version AND (SELECT h.id FROM durably.history h WHERE h.id = t.id) IS NOT NULL
RETURNING t.id::text

-- :release_tasks
-- Put back to wait; those that wait for their turn again leave a marker. The token tells under which lease it was.
WITH freed AS (
    UPDATE durably.tasks t
       SET state = d.state, ready_at = (SELECT durably.now()) + d.due_in, attempt = d.attempt, spent = d.spent,
           crashes = d.crashes, alone = d.alone, session = NULL, token = d.token, version = t.version + 1,
           details = coalesce(d.details, t.details),
           seq = CASE WHEN d.rejoin THEN nextval('durably.order_seq') ELSE t.seq END
      FROM unnest(?1::text[], ?2::bigint[], ?3::text[], ?4::bigint[], ?5::int[], ?6::int[], ?7::int[], ?8::boolean[],
                  ?9::boolean[], ?10::bytea[], ?11::bigint[])
        AS d(id, version, state, due_in, attempt, spent, crashes, alone, rejoin, details, token)
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id::uuid AND version = d.version OFFSET 0) f
     WHERE t.ctid = f.row AND t.version = d.version
    RETURNING t.id, t.queue, t.key, t.gate, t.priority, t.state, t.alone, t.ready_at
), marked AS (
    INSERT INTO durably.turns (queue, key, gate, priority, alone, ready_at)
    SELECT queue, key, gate, priority, alone, ready_at FROM freed WHERE state = 'blocked' AND key IS NULL
)
SELECT id::text FROM freed

-- :flag_tasks
UPDATE durably.tasks t
   SET cancel = d.reason, version = t.version + 1
  FROM unnest(?1::text[], ?2::bigint[], ?3::text[]) AS d(id, version, reason)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.tasks WHERE id = d.id::uuid AND version = d.version OFFSET 0) f
 WHERE t.ctid = f.row AND t.version = d.version
RETURNING t.id::text

-- :insert_attempts
INSERT INTO durably.attempts (task, attempt, outcome, kind, message, trace, session, token, started_at, finished_at)
SELECT task::uuid, attempt, outcome, kind, message, trace, session, token, now - started_ago, now
  FROM (SELECT *, (SELECT durably.now()) AS now
          FROM unnest(?1::text[], ?2::int[], ?3::text[], ?4::text[], ?5::text[], ?6::text[], ?7::text[], ?8::bigint[],
                      ?9::bigint[])
            AS d(task, attempt, outcome, kind, message, trace, session, token, started_ago)) d
    ON CONFLICT DO NOTHING

-- :keep_unique
-- A key that outlives its task keeps the result, for those who ask after the history is gone.
UPDATE durably.unique_keys u
   SET state = d.state, result = d.result
  FROM unnest(?1::text[], ?2::text[], ?3::bytea[]) AS d(task, state, result)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.unique_keys WHERE task = d.task::uuid OFFSET 0) f
 WHERE u.ctid = f.row

-- :clear_permits
DELETE FROM durably.permits WHERE task = ANY(?1::text[]::uuid[]) RETURNING gate

-- :wait_gates
-- Lock the gates that these tasks have permits of.
SELECT name, concurrency, rate, burst, tokens, refilled_at
  FROM durably.gates
 WHERE name = ANY(ARRAY(SELECT DISTINCT gate FROM durably.permits WHERE task = ANY(?1::text[]::uuid[])))
 ORDER BY name FOR UPDATE

-- :wake_gates
-- A permit came back: whoever waits for its group may ask again.
WITH lined AS (
    UPDATE durably.lines SET ready_at = (SELECT durably.now())
     WHERE ctid = ANY(ARRAY(SELECT ctid FROM durably.lines
                             WHERE gate = ANY(?1::text[]) AND ready_at > (SELECT durably.now())
                               AND held_until <= (SELECT durably.now())
                             ORDER BY queue, gate FOR UPDATE))
    RETURNING queue
), keyed AS (
    UPDATE durably.keys SET ready_at = (SELECT durably.now()), held = false
     WHERE ctid = ANY(ARRAY(SELECT ctid FROM durably.keys
                             WHERE held AND (gate = ANY(?1::text[]) OR queue = ANY(?2::text[]))
                               FOR UPDATE SKIP LOCKED))
    RETURNING queue
)
SELECT queue FROM lined UNION SELECT queue FROM keyed

-- :notify
-- A hint to whoever sleeps on these queues.
SELECT pg_notify('durably', queue)::text
  FROM (SELECT DISTINCT queue FROM unnest(?1::text[]) AS d(queue)) q
 WHERE EXISTS (SELECT 1 FROM durably.sleepers s WHERE s.queue = q.queue)

-- :set_progress
UPDATE durably.tasks t
   SET progress = coalesce(?3::text, progress), details = coalesce(?4::bytea, details)
 WHERE t.id = ?1::text::uuid
   AND (t.state = 'leased' AND t.token = ?2::bigint
        OR (SELECT {leased} AND k.token = ?2::bigint
              FROM durably.keys k WHERE k.queue = t.queue AND k.key = t.key))
RETURNING true

-- :cancel_requests
SELECT seq, task::text, reason FROM durably.cancel_requests ORDER BY seq LIMIT ?1::int FOR UPDATE

-- :clear_cancel_requests
DELETE FROM durably.cancel_requests WHERE seq = ANY(?1::bigint[])
