-- Reading, for people and for handles.

-- :live
SELECT {live}
  FROM durably.tasks t
  LEFT JOIN LATERAL (SELECT * FROM durably.keys WHERE queue = t.queue AND key = t.key OFFSET 0) k
    ON {leased}
 WHERE t.id = ANY(?1::text[]::uuid[])

-- :ended
SELECT {ended} FROM durably.history h WHERE h.id = ANY(?1::text[]::uuid[])

-- :remembered
-- What a unique key still knows of a task whose history is gone.
SELECT task::text, state, result FROM durably.unique_keys WHERE task = ANY(?1::text[]::uuid[]) AND state IS NOT NULL

-- :attempts
SELECT task::text, attempt, outcome, kind, message, trace, session, token, started_at, finished_at
  FROM durably.attempts WHERE task = ?1::text::uuid ORDER BY attempt

-- :list_live
-- Newest first; every filter may be null.
SELECT {live}
  FROM durably.tasks t
  LEFT JOIN durably.keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
 WHERE (?1::text IS NULL OR CASE WHEN k.head IS NULL THEN t.state ELSE 'leased' END = ?1::text)
   AND (?2::text IS NULL OR t.queue = ?2::text)
   AND (?3::text IS NULL OR t.name = ?3::text)
   AND (?4::text IS NULL OR t.key = ?4::text)
   AND (?5::text IS NULL OR strpos(t.tags, ?5::text) > 0)
   AND (?6::text IS NULL OR t.id < ?6::text::uuid)
   AND (?8::text IS NULL OR CASE WHEN strpos(t.queue, '/') > 0 THEN split_part(t.queue, '/', 1) ELSE 'default' END = ?8::text)
   AND (?9::text IS NULL OR t.id IN (SELECT task FROM durably.deliveries
                                      WHERE namespace = ?8::text AND destination = ?9::text))
 ORDER BY t.id DESC LIMIT ?7::int

-- :list_ended
SELECT {ended}
  FROM durably.history h
 WHERE (?1::text IS NULL OR h.state = ?1::text)
   AND (?2::text IS NULL OR h.queue = ?2::text)
   AND (?3::text IS NULL OR h.name = ?3::text)
   AND (?4::text IS NULL OR h.key = ?4::text)
   AND (?5::text IS NULL OR strpos(h.tags, ?5::text) > 0)
   AND (?6::text IS NULL OR h.id < ?6::text::uuid)
   AND (?8::text IS NULL OR CASE WHEN strpos(h.queue, '/') > 0 THEN split_part(h.queue, '/', 1) ELSE 'default' END = ?8::text)
   AND (?9::text IS NULL OR h.id IN (SELECT task FROM durably.deliveries
                                      WHERE namespace = ?8::text AND destination = ?9::text))
 ORDER BY h.id DESC LIMIT ?7::int

-- :by_prefix
-- Ids that begin so, for people who type the first few characters.
SELECT id FROM (SELECT id::text FROM durably.tasks WHERE id::text LIKE ?1::text || '%'
                UNION SELECT id::text FROM durably.history WHERE id::text LIKE ?1::text || '%') found
 ORDER BY id LIMIT ?2::int

-- :counts
SELECT queue, state, count(*)
  FROM (SELECT t.queue, CASE WHEN k.head IS NULL THEN t.state ELSE 'leased' END AS state
          FROM durably.tasks t
          LEFT JOIN durably.keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
         UNION ALL
        SELECT queue, state FROM durably.history) every
 GROUP BY queue, state

-- :queue_settings
SELECT name, state, cutoff FROM durably.queues

-- :gates
SELECT name, concurrency, rate, burst, tokens, refilled_at FROM durably.gates ORDER BY name

-- :list_keys
SELECT k.queue, k.key, k.state, k.ready_at, k.priority, k.session, k.token, k.head::text, k.reason,
       (SELECT count(*) FROM durably.tasks t WHERE t.state = 'blocked' AND t.queue = k.queue AND t.key = k.key)
  FROM durably.keys k
 WHERE (?1::text IS NULL OR k.queue = ?1::text) AND (?2::text IS NULL OR k.key = ?2::text)
   AND (?3::text IS NULL OR k.state = ?3::text)
 ORDER BY k.queue, k.key LIMIT ?4::int

-- :key_tasks
SELECT {live}
  FROM durably.tasks t
  LEFT JOIN LATERAL (SELECT * FROM durably.keys WHERE queue = t.queue AND key = t.key OFFSET 0) k
    ON {leased}
 WHERE t.state = 'blocked' AND t.queue = ?1::text AND t.key = ?2::text
 ORDER BY t.seq LIMIT ?3::int

-- :sessions
SELECT id, state, started_at, beat_at, expires_at, host, pid, info FROM durably.sessions ORDER BY started_at

-- :lines
SELECT queue, gate, ready_at FROM durably.lines WHERE gate = ?1::text AND queue = ?2::text

-- :ahead
-- How many ready tasks of the queue would be taken before this one.
SELECT count(*) FROM durably.tasks
 WHERE state = 'ready' AND queue = ?1::text AND (priority > ?2::int OR priority = ?2::int AND ready_at < ?3::bigint)

-- :marked
-- Whether a marker of this key or limit group waits to be admitted.
SELECT EXISTS (SELECT 1 FROM durably.turns
                WHERE queue = ?1::text AND (key = ?2::text OR ?2::text IS NULL AND gate = ?3::text))

-- :clock
SELECT durably.now()
