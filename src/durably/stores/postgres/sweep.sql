-- Background work: sessions that died, tasks that fell due or expired, rows whose retention has passed.

-- :open_session
INSERT INTO durably.sessions (id, state, started_at, beat_at, expires_at, host, pid, info)
SELECT ?1::text, 'live', now, now, now + ?2::bigint, ?3::text, ?4::bigint, ?5::text FROM (SELECT durably.now() AS now) n
    ON CONFLICT (id) DO UPDATE SET beat_at = EXCLUDED.beat_at, expires_at = EXCLUDED.expires_at
 WHERE sessions.state = 'live'
RETURNING id

-- :describe_session
UPDATE durably.sessions SET info = ?2::text WHERE id = ?1::text

-- :beat
UPDATE durably.sessions SET beat_at = n.now, expires_at = n.now + ?2::bigint
  FROM (SELECT durably.now() AS now) n
 WHERE id = ?1::text AND state = 'live'
RETURNING n.now

-- :bury_session
-- A session that ended of its own will: dead at once, so nobody waits a lease for what it may still hold.
UPDATE durably.sessions SET state = 'dead' WHERE id = ?1::text

-- :mark_dead
UPDATE durably.sessions SET state = 'dead'
 WHERE state = 'live' AND expires_at < (SELECT durably.now())
RETURNING id

-- :lapsed
-- Leased, and its session is not live: a standing query, so nothing can slip through between two sweeps. It looks
-- between the live sessions, whose own entries are many.
WITH live AS MATERIALIZED (SELECT id FROM durably.sessions WHERE state = 'live')
SELECT {live}
  FROM (SELECT t.*
          FROM (SELECT lag(id, 1, '') OVER (ORDER BY id) AS low, id AS high FROM live) gap
         CROSS JOIN LATERAL (
                SELECT t.* FROM durably.claims c {claimed}
                 WHERE c.session > gap.low AND c.session < gap.high AND NOT t.id = ANY(?2::text[]::uuid[])
                 LIMIT ?1::int) t
         UNION ALL
        SELECT t.*
          FROM (SELECT coalesce(max(id), '') AS low FROM live) rest
         CROSS JOIN LATERAL (
                SELECT t.* FROM durably.claims c {claimed}
                 WHERE c.session > rest.low AND NOT t.id = ANY(?2::text[]::uuid[])
                 LIMIT ?1::int) t) t
  LEFT JOIN durably.keys k ON false
 LIMIT ?1::int

-- :lapsed_heads
WITH live AS MATERIALIZED (SELECT id FROM durably.sessions WHERE state = 'live')
SELECT {live}
  FROM (SELECT k.*
          FROM (SELECT lag(id, 1, '') OVER (ORDER BY id) AS low, id AS high FROM live) gap
         CROSS JOIN LATERAL (
                SELECT * FROM durably.keys
                 WHERE state = 'leased' AND session > gap.low AND session < gap.high
                   AND NOT head = ANY(?2::text[]::uuid[])
                 LIMIT ?1::int) k
         UNION ALL
        SELECT k.*
          FROM (SELECT coalesce(max(id), '') AS low FROM live) rest
         CROSS JOIN LATERAL (
                SELECT * FROM durably.keys
                 WHERE state = 'leased' AND session > rest.low AND NOT head = ANY(?2::text[]::uuid[])
                 LIMIT ?1::int) k) k
 CROSS JOIN LATERAL (SELECT * FROM durably.tasks WHERE id = k.head OFFSET 0) t
 LIMIT ?1::int

-- :held
SELECT {task} FROM durably.claims c {claimed} WHERE c.session = ?1::text

-- :held_heads
SELECT {live}
  FROM durably.keys k
 CROSS JOIN LATERAL (SELECT * FROM durably.tasks WHERE id = k.head OFFSET 0) t
 WHERE k.state = 'leased' AND k.session = ?1::text

-- :bury
-- Dead sessions to which nothing points any more, and what they left behind.
WITH gone AS (
    DELETE FROM durably.sessions s
     WHERE s.state = 'dead'
       AND (SELECT t.id FROM durably.claims c {claimed} WHERE c.session = s.id LIMIT 1) IS NULL
       AND (SELECT k.key FROM durably.keys k WHERE k.state = 'leased' AND k.session = s.id LIMIT 1) IS NULL
    RETURNING s.id
), forgotten AS (
    DELETE FROM durably.claims WHERE session = ANY(ARRAY(SELECT id FROM gone))
), woken AS (
    DELETE FROM durably.sleepers z WHERE NOT EXISTS (SELECT 1 FROM durably.sessions s WHERE s.id = z.session AND s.state = 'live')
), spent AS (
    DELETE FROM durably.permits p
     WHERE (SELECT t.id FROM durably.tasks t WHERE t.id = p.task) IS NULL
)
SELECT id FROM gone

-- :forget_claims
-- Of these claims every task is settled.
DELETE FROM durably.claims WHERE session = ?1::text AND token = ANY(?2::bigint[])

-- :due
SELECT id::text FROM durably.tasks
 WHERE state = 'delayed' AND ready_at <= (SELECT durably.now()) AND NOT id = ANY(?2::text[]::uuid[])
 ORDER BY ready_at LIMIT ?1::int

-- :promote
-- What fell due becomes ready, or takes its turn behind its key with a fresh number.
WITH due AS (
    SELECT ctid AS row FROM durably.tasks
     WHERE id = ANY(?1::text[]::uuid[]) AND state = 'delayed' AND ready_at <= (SELECT durably.now())
     ORDER BY ready_at, seq FOR UPDATE SKIP LOCKED
), numbered AS (
    SELECT row, nextval('durably.order_seq') AS seq FROM due
), moved AS (
    UPDATE durably.tasks t
       SET state = CASE WHEN key IS NULL AND gate IS NULL THEN 'ready' ELSE 'blocked' END,
           ready_at = (SELECT durably.now()), seq = n.seq, version = version + 1
      FROM numbered n WHERE t.ctid = n.row
    RETURNING t.id, t.queue, t.key, t.gate, t.priority, t.alone, t.state, t.ready_at
), marked AS (
    INSERT INTO durably.turns (queue, key, gate, priority, alone, ready_at)
    SELECT queue, key, gate, priority, alone, ready_at FROM moved WHERE state = 'blocked'
)
SELECT id::text, queue, CASE WHEN EXISTS (SELECT 1 FROM durably.sleepers s WHERE s.queue = moved.queue)
                             THEN pg_notify('durably', queue)::text END
  FROM moved

-- :expired
SELECT {live}
  FROM durably.tasks t
  LEFT JOIN LATERAL (SELECT * FROM durably.keys WHERE queue = t.queue AND key = t.key OFFSET 0) k
    ON {leased}
 WHERE t.expires_at <= (SELECT durably.now()) AND t.state <> 'leased' AND k.head IS NULL
   AND NOT t.id = ANY(?2::text[]::uuid[])
 ORDER BY t.expires_at LIMIT ?1::int

-- :cancelled
-- Tasks that are leased and were asked to stop.
SELECT id::text, cancel FROM durably.tasks WHERE cancel IS NOT NULL

-- :prune
-- What is noted goes, with its note, or with as much of the last note as there is room for. A task that was replayed
-- may be in history again, to be kept for longer.
WITH found AS MATERIALIZED (
    SELECT ctid AS row, prune_at, count, tasks FROM durably.prunes WHERE prune_at <= (SELECT durably.now())
     ORDER BY prune_at LIMIT ?1::int FOR UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT row, count, tasks, (?1::int - before)::int AS room
      FROM (SELECT *, sum(count) OVER (ORDER BY prune_at, row) - count AS before FROM found) f
     WHERE before < ?1::int
), settled AS (
    DELETE FROM durably.prunes WHERE ctid = ANY(ARRAY(SELECT row FROM due WHERE count <= room))
), shortened AS (
    UPDATE durably.prunes SET tasks = due.tasks[room + 1:], count = due.count - room
      FROM due WHERE prunes.ctid = due.row AND due.count > room
), gone AS (
    DELETE FROM durably.history
     WHERE ctid = ANY(ARRAY(SELECT f.row
                              FROM (SELECT unnest(tasks[:room]) AS id FROM due ORDER BY id) d
                             CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.history
                                                  WHERE id = d.id AND prune_at <= (SELECT durably.now()) OFFSET 0) f))
    RETURNING id
), forgotten AS (
    DELETE FROM durably.attempts
     WHERE ctid = ANY(ARRAY(SELECT a.row FROM gone CROSS JOIN LATERAL (SELECT ctid AS row FROM durably.attempts
                                                                        WHERE task = gone.id OFFSET 0) a))
), freed AS (
    DELETE FROM durably.unique_keys
     WHERE ctid = ANY(ARRAY(SELECT ctid FROM durably.unique_keys WHERE expires_at <= (SELECT durably.now())
                             ORDER BY expires_at LIMIT ?1::int FOR UPDATE SKIP LOCKED))
    RETURNING task
)
SELECT id::text FROM gone UNION ALL SELECT task::text FROM freed
