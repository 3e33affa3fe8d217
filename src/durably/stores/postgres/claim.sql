-- Leasing tasks, keys and permits. Lock order everywhere: gate, key or line, task.

-- :lock_session
-- One row if the session is live. Locked, so that it cannot die meanwhile, and so that a limit that is being set waits.
SELECT id FROM durably.sessions WHERE id = ?1::text AND state = 'live' FOR SHARE

-- :survey
-- What there is to do, seen after the session was locked.
SELECT (SELECT durably.now()),
       EXISTS (SELECT 1 FROM durably.turns),
       EXISTS (SELECT 1 FROM durably.cancel_requests),
       EXISTS (SELECT 1 FROM durably.keys
                WHERE state = 'ready' AND queue = ANY(?1::text[]) AND ready_at <= (SELECT durably.now())),
       EXISTS (SELECT 1 FROM durably.lines
                WHERE queue = ANY(?1::text[]) AND ready_at <= (SELECT durably.now()))
         OR EXISTS (SELECT 1 FROM durably.keys
                     WHERE state = 'ready' AND gate IS NOT NULL AND queue = ANY(?1::text[])
                       AND ready_at <= (SELECT durably.now())),
       EXISTS (SELECT 1 FROM durably.tasks t
                WHERE t.alone AND t.queue = ANY(?1::text[])
                  AND NOT EXISTS (SELECT 1 FROM durably.queues q
                                   WHERE q.name = t.queue AND (q.state = 'paused' OR t.created_at > q.cutoff))
                  AND (t.state = 'ready'
                       OR t.state = 'blocked' AND t.key IS NULL
                          AND EXISTS (SELECT 1 FROM durably.lines l WHERE l.queue = t.queue AND l.gate = t.gate
                                         AND l.ready_at <= (SELECT durably.now()))
                       OR t.state = 'blocked'
                          AND EXISTS (SELECT 1 FROM durably.keys k
                                       WHERE k.queue = t.queue AND k.key = t.key AND k.state = 'ready' AND k.alone
                                         AND k.ready_at <= (SELECT durably.now())))),
       (SELECT json_agg(json_build_array(c.name, coalesce(q.state, 'active'), q.cutoff, g.name IS NOT NULL))::text
          FROM unnest(?1::text[]) AS c(name)
          LEFT JOIN durably.queues q ON q.name = c.name
          LEFT JOIN durably.gates g ON g.name = 'q:' || c.name
         WHERE q.name IS NOT NULL OR g.name IS NOT NULL)

-- :claim_plain
-- Lease what has been ready longest, range by range, unless there is anything but plain tasks and open queues. What is
-- unique only while it waits is so no more.
WITH me AS MATERIALIZED (
    SELECT id FROM durably.sessions WHERE id = ?1::text AND state = 'live' FOR SHARE
), plain AS MATERIALIZED (
    SELECT id FROM me
     WHERE NOT EXISTS (SELECT 1 FROM durably.turns)
       AND NOT EXISTS (SELECT 1 FROM durably.cancel_requests)
       AND NOT EXISTS (SELECT 1 FROM durably.keys
                        WHERE state = 'ready' AND queue = ANY(?2::text[]) AND ready_at <= (SELECT durably.now()))
       AND NOT EXISTS (SELECT 1 FROM durably.lines
                        WHERE queue = ANY(?2::text[]) AND ready_at <= (SELECT durably.now()))
       AND NOT EXISTS (SELECT 1 FROM durably.queues WHERE name = ANY(?2::text[]))
       AND NOT EXISTS (SELECT 1 FROM durably.gates WHERE name = ANY(?6::text[]))
       AND NOT EXISTS (SELECT 1 FROM durably.tasks WHERE alone AND queue = ANY(?2::text[]))
), picked AS MATERIALIZED (
    SELECT t.*
      FROM plain
     CROSS JOIN unnest(?2::text[], ?3::int[], ?4::bigint[]) AS r(queue, priority, floor)
     CROSS JOIN LATERAL (
            SELECT ctid AS row, id, unique_scope FROM durably.tasks
             WHERE state = 'ready' AND queue = r.queue AND priority = r.priority AND ready_at >= r.floor
             ORDER BY ready_at LIMIT ?5::int FOR UPDATE SKIP LOCKED) t
     LIMIT ?5::int
), fence AS MATERIALIZED (
    SELECT nextval('durably.token_seq') AS token FROM (SELECT count(*) FROM picked) counted
), noted AS (
    INSERT INTO durably.claims (session, token, tasks)
    SELECT ?1::text, (SELECT token FROM fence), tasks FROM (SELECT array_agg(id) AS tasks FROM picked) p
     WHERE tasks IS NOT NULL
), freed AS (
    DELETE FROM durably.unique_keys
     WHERE task = ANY(ARRAY(SELECT id FROM picked WHERE unique_scope = 'waiting')) AND scope = 'waiting'
)
UPDATE durably.tasks t
   SET state = 'leased', session = ?1::text, token = (SELECT token FROM fence), attempt = attempt + 1,
       spent = spent + 1, version = version + 1, started_at = (SELECT durably.now())
 WHERE ctid = ANY(ARRAY(SELECT row FROM picked))
RETURNING {brief}, t.ctid

-- :admit
-- Take markers: the lines are made at once, the keys are answered.
WITH gone AS (
    DELETE FROM durably.turns
     WHERE ctid = ANY(ARRAY(SELECT ctid FROM durably.turns ORDER BY seq LIMIT ?1::int FOR UPDATE SKIP LOCKED))
    RETURNING seq, queue, key, gate, priority, alone, ready_at
), lined AS (
    INSERT INTO durably.lines (queue, gate, ready_at)
    SELECT queue, gate, min(ready_at) FROM gone WHERE key IS NULL AND gate IS NOT NULL
     GROUP BY queue, gate ORDER BY queue, gate
        ON CONFLICT (queue, gate) DO UPDATE SET gate = EXCLUDED.gate
)
SELECT DISTINCT ON (queue, key) queue, key, ready_at, priority, gate
  FROM gone WHERE key IS NOT NULL ORDER BY queue, key, seq

-- :share_keys
-- Those of the keys that have a row. Whoever is about to delete one as empty is waited for, or waits and looks again.
SELECT k.queue, k.key
  FROM (SELECT * FROM unnest(?1::text[], ?2::text[]) AS n(queue, key) ORDER BY queue, key) d
 CROSS JOIN LATERAL (SELECT queue, key FROM durably.keys WHERE queue = d.queue AND key = d.key FOR KEY SHARE) k

-- :make_keys
-- Whoever left a marker may be gone: the row is one that every claim looks at, and then corrects.
INSERT INTO durably.keys (queue, key, state, ready_at, priority, alone, gate)
SELECT queue, key, 'ready', ready_at, priority, false, gate
  FROM unnest(?1::text[], ?2::text[], ?3::bigint[], ?4::int[], ?5::text[]) AS d(queue, key, ready_at, priority, gate)
 ORDER BY queue, key
    ON CONFLICT DO NOTHING

-- :claim_ready
-- Lease what has been ready longest, range by range. The token is drawn after the rows are locked.
WITH picked AS MATERIALIZED (
    SELECT t.*
      FROM unnest(?2::text[], ?3::int[], ?4::bigint[], ?5::bigint[]) AS r(queue, priority, floor, cutoff)
     CROSS JOIN LATERAL (
            SELECT ctid AS row, id FROM durably.tasks
             WHERE state = 'ready' AND queue = r.queue AND priority = r.priority AND ready_at >= r.floor
               AND created_at <= r.cutoff AND alone = ?7::boolean
             ORDER BY ready_at LIMIT ?6::int FOR UPDATE SKIP LOCKED) t
     LIMIT ?6::int
), fence AS MATERIALIZED (
    SELECT nextval('durably.token_seq') AS token FROM (SELECT count(*) FROM picked) counted
), noted AS (
    INSERT INTO durably.claims (session, token, tasks)
    SELECT ?1::text, (SELECT token FROM fence), tasks FROM (SELECT array_agg(id) AS tasks FROM picked) p
     WHERE tasks IS NOT NULL
)
UPDATE durably.tasks t
   SET state = 'leased', session = ?1::text, token = (SELECT token FROM fence), attempt = attempt + 1,
       spent = spent + 1, version = version + 1, started_at = (SELECT durably.now())
 WHERE ctid = ANY(ARRAY(SELECT row FROM picked))
RETURNING {task}

-- :line_heads
-- The tasks of limit groups that are next, so many of each as could be taken.
SELECT r.queue, r.gate, t.priority, t.ready_at
  FROM unnest(?1::text[], ?2::text[], ?3::int[], ?4::bigint[]) AS r(queue, gate, room, cutoff)
 CROSS JOIN LATERAL (
        SELECT priority, ready_at FROM durably.tasks
         WHERE state = 'blocked' AND key IS NULL AND queue = r.queue AND gate = r.gate
           AND created_at <= r.cutoff AND alone = ANY(?5::boolean[])
         ORDER BY priority DESC, seq LIMIT r.room) t

-- :share
-- Of the first ?6 that wait, by priority and age, how many are keys, and how many are plain tasks; the rest are the
-- tasks of limit groups that were given.
SELECT count(*) FILTER (WHERE kind = 'key'), count(*) FILTER (WHERE kind = 'plain')
  FROM (SELECT kind
          FROM (SELECT 'key' AS kind, k.priority, k.ready_at
                  FROM unnest(?1::text[], ?2::int[]) AS r(queue, priority)
                 CROSS JOIN LATERAL (
                        SELECT priority, ready_at FROM durably.keys
                         WHERE state = 'ready' AND queue = r.queue AND priority = r.priority
                           AND ready_at <= (SELECT durably.now()) AND NOT alone
                         ORDER BY ready_at LIMIT ?6::int) k
                 UNION ALL
                SELECT 'plain', t.priority, t.ready_at
                  FROM unnest(?1::text[], ?2::int[], ?3::bigint[]) AS r(queue, priority, cutoff)
                 CROSS JOIN LATERAL (
                        SELECT priority, ready_at FROM durably.tasks
                         WHERE state = 'ready' AND queue = r.queue AND priority = r.priority
                           AND created_at <= r.cutoff AND NOT alone
                         ORDER BY ready_at LIMIT ?6::int) t
                 UNION ALL
                SELECT 'line', priority, ready_at FROM unnest(?4::int[], ?5::bigint[]) AS l(priority, ready_at)
               ) all_kinds
         ORDER BY priority DESC, ready_at LIMIT ?6::int) first_ones

-- :pick_keys
-- Lock ready keys; their heads are read by the next statement, with a snapshot that is younger than the locks.
SELECT f.queue, f.key
  FROM unnest(?1::text[], ?2::int[]) AS r(queue, priority)
 CROSS JOIN LATERAL (
        SELECT queue, key FROM durably.keys
         WHERE state = 'ready' AND queue = r.queue AND priority = r.priority
           AND ready_at <= (SELECT durably.now()) AND alone = ?4::boolean
           AND (gate IS NULL OR gate = ANY(?5::text[]))
         ORDER BY ready_at LIMIT ?3::int FOR NO KEY UPDATE SKIP LOCKED) f
 LIMIT ?3::int

-- :pick_these
-- The same for keys that are named.
SELECT queue, key FROM durably.keys
 WHERE queue = ?1::text AND key = ANY(?2::text[]) AND state = 'ready' AND ready_at <= (SELECT durably.now())
   AND NOT alone
 ORDER BY key LIMIT ?3::int FOR NO KEY UPDATE SKIP LOCKED

-- :heads
-- The next task of each key that is to be leased, and those behind it, as they are then; and who must wait till later.
SELECT {head}, t.place, t.ready_at > (SELECT durably.now())
  FROM unnest(?1::text[], ?2::text[]) AS k(queue, key)
 CROSS JOIN LATERAL (
        SELECT *, ctid AS place FROM durably.tasks t
         WHERE t.state = 'blocked' AND t.queue = k.queue AND t.key = k.key
         ORDER BY t.seq LIMIT ?3::int) t

-- :next_chains
-- The same of keys that are locked, for whoever has room for so many, if nobody is there before whom a claim must do
-- something else.
WITH others AS MATERIALIZED (
    {others}
)
SELECT {chain}, t.place, t.ready_at > (SELECT now FROM others)
  FROM unnest(?4::text[], ?5::text[]) WITH ORDINALITY AS k(queue, key, place)
 CROSS JOIN LATERAL (
        SELECT *, ctid AS place FROM durably.tasks t
         WHERE t.state = 'blocked' AND t.queue = k.queue AND t.key = k.key
         ORDER BY t.seq LIMIT ?6::int) t
 WHERE (SELECT plain FROM others) AND k.place <= (SELECT least(?7::int, ?3::int - waiting) FROM others)

-- :go_on
-- Lease the next task of each of these keys, which are locked, to whoever did the last one, if nobody is there before whom
-- a claim must do something else, nor more than there is room for; and if a claim has nothing to do for it but that. A
-- scan reads all that a page of the index has of a key, though the first is enough: so it reads at first only up to where
-- that one is most likely to be.
WITH others AS MATERIALIZED (
    {others}
), picked AS MATERIALIZED (
    SELECT t.*
      FROM unnest(?4::text[], ?5::text[], ?6::bigint[]) AS k(queue, key, near)
     CROSS JOIN LATERAL (
            (SELECT *, ctid AS place FROM durably.tasks
              WHERE state = 'blocked' AND queue = k.queue AND key = k.key AND seq <= k.near
              ORDER BY seq LIMIT 1)
             UNION ALL
            (SELECT *, ctid AS place FROM durably.tasks
              WHERE state = 'blocked' AND queue = k.queue AND key = k.key AND seq > k.near
              ORDER BY seq LIMIT 1)
             LIMIT 1) t
     WHERE (SELECT plain FROM others) AND t.ready_at <= (SELECT now FROM others) AND t.gate IS NULL AND NOT t.alone
       AND t.unique_scope IS DISTINCT FROM 'waiting' AND t.queue = ANY(?1::text[]) AND t.name = ANY(?7::text[])
     LIMIT (SELECT greatest(least(?8::int, ?3::int - waiting), 0) FROM others)
), fence AS MATERIALIZED (
    SELECT nextval('durably.token_seq') AS token FROM (SELECT count(*) FROM picked) counted
), leased AS (
    UPDATE durably.keys k
       SET state = 'leased', held = false, head = p.id, followers = NULL, token = (SELECT token FROM fence),
           started_at = (SELECT now FROM others), session = ?9::text
      FROM picked p
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.keys WHERE queue = p.queue AND key = p.key OFFSET 0) f
     WHERE k.ctid = f.row
)
SELECT {next_head}, t.place, false FROM picked t

-- :open_lines
-- Those of these lines in which somebody may go on, whether they have a gate, and how many permits of it are in use; with
-- the time, and how many wait beside them. None if there is anybody before whom a claim must do something else.
SELECT w.now, w.others, l.queue, l.gate, EXISTS (SELECT 1 FROM durably.gates WHERE name = 'g:' || l.gate),
       (SELECT count(*) FROM durably.permits p
         WHERE p.gate = 'g:' || l.gate
           AND (SELECT t.state = 'leased' AND t.token = p.token
                       OR coalesce((SELECT k.state = 'leased' AND k.head = t.id AND k.token = p.token
                                      FROM durably.keys k WHERE k.queue = t.queue AND k.key = t.key), false)
                  FROM durably.tasks t WHERE t.id = p.task))
  FROM (SELECT (SELECT durably.now()) AS now,
               (SELECT count(*) FROM (SELECT 1 FROM durably.keys
                                       WHERE state = 'ready' AND queue = ANY(?1::text[])
                                         AND ready_at <= (SELECT durably.now()) LIMIT ?5::int) k)
             + (SELECT count(*) FROM (SELECT 1 FROM durably.tasks
                                       WHERE state = 'ready' AND queue = ANY(?1::text[]) LIMIT ?5::int) t) AS others
         WHERE NOT EXISTS (SELECT 1 FROM durably.turns)
           AND NOT EXISTS (SELECT 1 FROM durably.cancel_requests)
           AND NOT EXISTS (SELECT 1 FROM durably.queues WHERE name = ANY(?1::text[]))
           AND NOT EXISTS (SELECT 1 FROM durably.gates WHERE name = ANY(?2::text[]))
           AND NOT EXISTS (SELECT 1 FROM durably.tasks WHERE alone AND queue = ANY(?1::text[]))
           AND NOT EXISTS (SELECT 1 FROM durably.keys WHERE held AND gate = ANY(?4::text[]))
           AND NOT EXISTS (SELECT 1 FROM durably.lines
                            WHERE (queue = ANY(?1::text[]) AND ready_at <= (SELECT durably.now())
                                   OR gate = ANY(?4::text[]))
                              AND (queue, gate) NOT IN (SELECT * FROM unnest(?3::text[], ?4::text[])))) w
 CROSS JOIN unnest(?3::text[], ?4::text[]) AS d(queue, gate)
  JOIN durably.lines l ON l.queue = d.queue AND l.gate = d.gate AND l.held_until <= w.now

-- :lease_keys
UPDATE durably.keys k
   SET state = 'leased', held = false, head = d.head::uuid, followers = d.followers, token = ?5::bigint,
       started_at = ?6::bigint, session = ?7::text
  FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[]) AS d(queue, key, head, followers)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.keys WHERE queue = d.queue AND key = d.key OFFSET 0) f
 WHERE k.ctid = f.row

-- :advance_keys
-- The worker goes on with those behind the head; whatever the head was counted for, the next one is.
WITH moved AS (
    UPDATE durably.keys k
       SET head = d.head::uuid, followers = d.followers
      FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[]) AS d(queue, key, head, followers)
     CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.keys WHERE queue = d.queue AND key = d.key OFFSET 0) f
     WHERE k.ctid = f.row
)
UPDATE durably.permits p
   SET task = d.head::uuid
  FROM unnest(?3::text[], ?5::text[]) AS d(head, was)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.permits WHERE task = d.was::uuid OFFSET 0) f
 WHERE p.ctid = f.row

-- :versions
SELECT id::text, version FROM durably.tasks WHERE id = ANY(?1::text[]::uuid[])

-- :flagged
SELECT {task} FROM durably.tasks t WHERE t.id = ANY(?1::text[]::uuid[]) AND t.cancel IS NOT NULL

-- :ensure_keys
-- Make sure that these keys have rows, and lock them: a task that waits in a key can be changed only under that lock.
INSERT INTO durably.keys (queue, key, state, ready_at, priority, alone, gate)
SELECT queue, key, 'ready', (SELECT durably.now()), priority, alone, gate
  FROM unnest(?1::text[], ?2::text[], ?3::int[], ?4::boolean[], ?5::text[]) AS d(queue, key, priority, alone, gate)
 ORDER BY queue, key
    ON CONFLICT (queue, key) DO UPDATE SET state = keys.state

-- :lock_keys
SELECT k.queue, k.key, k.state, k.token, k.head::text, k.followers
  FROM (SELECT * FROM unnest(?1::text[], ?2::text[]) AS n(queue, key) ORDER BY queue, key) d
 CROSS JOIN LATERAL (SELECT * FROM durably.keys WHERE queue = d.queue AND key = d.key FOR NO KEY UPDATE) k

-- :next_heads
-- What a key row must say about the task that would be its next head; nulls where nothing waits.
SELECT k.queue, k.key, t.id::text, t.priority, t.alone, t.gate, t.ready_at
  FROM unnest(?1::text[], ?2::text[]) AS k(queue, key)
  LEFT JOIN LATERAL (
        SELECT * FROM durably.tasks t
         WHERE t.state = 'blocked' AND t.queue = k.queue AND t.key = k.key
         ORDER BY t.seq LIMIT 1) t ON true

-- :return_keys
-- A key waits as long as its next head must. One that pauses remembers which task it waits for.
UPDATE durably.keys k
   SET state = d.state, ready_at = greatest((SELECT durably.now()) + d.due_in, d.ready_at), priority = d.priority,
       alone = d.alone, gate = d.gate, held = d.held, reason = d.reason, head = d.head::uuid, followers = NULL,
       session = NULL, started_at = NULL
  FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::bigint[], ?5::bigint[], ?6::int[], ?7::boolean[], ?8::text[],
              ?9::boolean[], ?10::text[], ?11::text[])
        AS d(queue, key, state, due_in, ready_at, priority, alone, gate, held, reason, head)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.keys WHERE queue = d.queue AND key = d.key OFFSET 0) f
 WHERE k.ctid = f.row

-- :lock_empty_keys
-- Whoever admits a task of one of them has not seen that it goes: it is waited for.
SELECT k.queue
  FROM (SELECT * FROM unnest(?1::text[], ?2::text[]) AS n(queue, key) ORDER BY queue, key) d
 CROSS JOIN LATERAL (SELECT queue FROM durably.keys WHERE queue = d.queue AND key = d.key FOR UPDATE) k

-- :drop_keys
DELETE FROM durably.keys k
 USING unnest(?1::text[], ?2::text[]) AS d(queue, key)
 CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.keys WHERE queue = d.queue AND key = d.key OFFSET 0) f
 WHERE k.ctid = f.row

-- :ready_gates
-- The limit groups that have someone waiting whose time has come.
SELECT queue, gate, is_line
  FROM (SELECT queue, gate, true AS is_line, ready_at FROM durably.lines
         WHERE queue = ANY(?1::text[]) AND ready_at <= (SELECT durably.now())
         UNION ALL
        SELECT queue, gate, false, ready_at FROM durably.keys
         WHERE state = 'ready' AND gate IS NOT NULL AND queue = ANY(?1::text[])
           AND ready_at <= (SELECT durably.now())) waiting
 GROUP BY queue, gate, is_line
 ORDER BY min(ready_at), queue, gate LIMIT ?2::int

-- :lock_gates
SELECT name, concurrency, rate, burst, tokens, refilled_at
  FROM durably.gates WHERE name = ANY(?1::text[]) ORDER BY name FOR UPDATE SKIP LOCKED

-- :known_gates
SELECT name FROM durably.gates WHERE name = ANY(?1::text[])

-- :count_permits
-- A permit counts only while its task is leased under the token that took it: a crash can leak none.
SELECT p.gate, count(*)
  FROM durably.permits p
 WHERE p.gate = ANY(?1::text[])
   AND (SELECT t.state = 'leased' AND t.token = p.token
               OR coalesce((SELECT k.state = 'leased' AND k.head = t.id AND k.token = p.token
                              FROM durably.keys k WHERE k.queue = t.queue AND k.key = t.key), false)
          FROM durably.tasks t WHERE t.id = p.task)
 GROUP BY p.gate

-- :claim_lines
-- Lease the next tasks of limit groups, so many of each as its gate allows, and note their permits.
WITH picked AS MATERIALIZED (
    SELECT t.row
      FROM unnest(?1::text[], ?2::text[], ?3::int[], ?4::bigint[]) AS r(queue, gate, room, cutoff)
     CROSS JOIN LATERAL (
            SELECT ctid AS row FROM durably.tasks
             WHERE state = 'blocked' AND key IS NULL AND queue = r.queue AND gate = r.gate
               AND created_at <= r.cutoff AND alone = ANY(?5::boolean[])
             ORDER BY priority DESC, seq LIMIT r.room FOR UPDATE SKIP LOCKED) t
), fence AS MATERIALIZED (
    SELECT nextval('durably.token_seq') AS token FROM (SELECT count(*) FROM picked) counted
), leased AS (
    UPDATE durably.tasks
       SET state = 'leased', session = (?6::text[])[1], token = (SELECT token FROM fence), attempt = attempt + 1,
           spent = spent + 1, version = version + 1, started_at = (SELECT durably.now())
     WHERE ctid = ANY(ARRAY(SELECT row FROM picked))
    RETURNING *
), permitted AS (
    INSERT INTO durably.permits (gate, task, token)
    SELECT 'g:' || gate, id, token FROM leased
        ON CONFLICT (gate, task) DO UPDATE SET token = EXCLUDED.token
), noted AS (
    INSERT INTO durably.claims (session, token, tasks)
    SELECT session, token, array_agg(id) FROM leased GROUP BY session, token
)
SELECT {task} FROM leased t

-- :lock_lines
-- Those that nobody else is about to change: whoever is looks at them too.
SELECT queue, gate FROM durably.lines
 WHERE (queue, gate) IN (SELECT * FROM unnest(?1::text[], ?2::text[]))
 ORDER BY queue, gate
   FOR UPDATE SKIP LOCKED

-- :lines_left
SELECT l.queue, l.gate
  FROM unnest(?1::text[], ?2::text[]) AS l(queue, gate)
 WHERE (SELECT t.id FROM durably.tasks t
         WHERE t.state = 'blocked' AND t.key IS NULL AND t.queue = l.queue AND t.gate = l.gate LIMIT 1) IS NOT NULL

-- :wait_lines
UPDATE durably.lines l
   SET ready_at = greatest((SELECT durably.now()) + d.due_in, l.held_until)
  FROM unnest(?1::text[], ?2::text[], ?3::bigint[]) AS d(queue, gate, due_in)
 WHERE l.queue = d.queue AND l.gate = d.gate

-- :drop_lines
DELETE FROM durably.lines l
 USING unnest(?1::text[], ?2::text[]) AS d(queue, gate)
 WHERE l.queue = d.queue AND l.gate = d.gate

-- :take_permits
INSERT INTO durably.permits (gate, task, token)
SELECT gate, task::uuid, token FROM unnest(?1::text[], ?2::text[], ?3::bigint[]) AS d(gate, task, token)
    ON CONFLICT (gate, task) DO UPDATE SET token = EXCLUDED.token

-- :spend_gates
UPDATE durably.gates g
   SET tokens = d.tokens, refilled_at = d.now
  FROM unnest(?1::text[], ?2::double precision[], ?3::bigint[]) AS d(name, tokens, now)
 WHERE g.name = d.name

-- :free_unique
DELETE FROM durably.unique_keys WHERE task = ANY(?1::text[]::uuid[]) AND scope = ANY(?2::text[])

-- :sleep
INSERT INTO durably.sleepers (queue, session)
SELECT queue, ?1::text FROM unnest(?2::text[]) AS d(queue)
    ON CONFLICT DO NOTHING

-- :wake
DELETE FROM durably.sleepers WHERE session = ?1::text

-- :next_due
-- When the next delayed task falls due, when the next key or line will, and what time it is. What is already due was
-- seen by the claim before, and could not be taken.
SELECT (SELECT min(ready_at) FROM durably.tasks WHERE state = 'delayed'),
       least((SELECT min(ready_at) FROM durably.keys
               WHERE state = 'ready' AND queue = ANY(?1::text[]) AND ready_at > (SELECT durably.now())),
             (SELECT min(ready_at) FROM durably.lines
               WHERE queue = ANY(?1::text[]) AND ready_at > (SELECT durably.now()))),
       (SELECT durably.now())
