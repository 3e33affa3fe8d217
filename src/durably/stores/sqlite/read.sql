-- Reading, for people and for handles.

-- :live
SELECT {live}
  FROM durably_tasks t
  LEFT JOIN durably_keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
 WHERE t.id IN (SELECT value FROM json_each(?1))

-- :ended
SELECT {ended} FROM durably_history h WHERE h.id IN (SELECT value FROM json_each(?1))

-- :remembered
-- What a unique key still knows of a task whose history is gone.
SELECT task, state, result FROM durably_unique_keys WHERE task IN (SELECT value FROM json_each(?1)) AND state IS NOT NULL

-- :attempts
SELECT task, attempt, outcome, kind, message, trace, session, token, started_at, finished_at
  FROM durably_attempts WHERE task = ?1 ORDER BY attempt

-- :list_live
-- Newest first; every filter may be null.
SELECT {live}
  FROM durably_tasks t
  LEFT JOIN durably_keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
 WHERE (?1 IS NULL OR CASE WHEN k.head IS NULL THEN t.state ELSE 'leased' END = ?1)
   AND (?2 IS NULL OR t.queue = ?2)
   AND (?3 IS NULL OR t.name = ?3)
   AND (?4 IS NULL OR t.key = ?4)
   AND (?5 IS NULL OR instr(t.tags, ?5) > 0)
   AND (?6 IS NULL OR t.id < ?6)
   AND (?8 IS NULL OR CASE WHEN instr(t.queue, '/') > 0 THEN substr(t.queue, 1, instr(t.queue, '/') - 1)
                        ELSE 'default' END = ?8)
   AND (?9 IS NULL OR t.id IN (SELECT task FROM durably_deliveries WHERE namespace = ?8 AND destination = ?9))
 ORDER BY t.id DESC LIMIT ?7

-- :list_ended
SELECT {ended}
  FROM durably_history h
 WHERE (?1 IS NULL OR h.state = ?1)
   AND (?2 IS NULL OR h.queue = ?2)
   AND (?3 IS NULL OR h.name = ?3)
   AND (?4 IS NULL OR h.key = ?4)
   AND (?5 IS NULL OR instr(h.tags, ?5) > 0)
   AND (?6 IS NULL OR h.id < ?6)
   AND (?8 IS NULL OR CASE WHEN instr(h.queue, '/') > 0 THEN substr(h.queue, 1, instr(h.queue, '/') - 1)
                        ELSE 'default' END = ?8)
   AND (?9 IS NULL OR h.id IN (SELECT task FROM durably_deliveries WHERE namespace = ?8 AND destination = ?9))
 ORDER BY h.id DESC LIMIT ?7

-- :by_prefix
-- Ids that begin so, for people who type the first few characters.
SELECT id FROM (SELECT id FROM durably_tasks WHERE id LIKE ?1 || '%'
                UNION SELECT id FROM durably_history WHERE id LIKE ?1 || '%') found
 ORDER BY id LIMIT ?2

-- :counts
SELECT queue, state, count(*)
  FROM (SELECT t.queue, CASE WHEN k.head IS NULL THEN t.state ELSE 'leased' END AS state
          FROM durably_tasks t
          LEFT JOIN durably_keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
         UNION ALL
        SELECT queue, state FROM durably_history) every
 GROUP BY queue, state

-- :queue_settings
SELECT name, state, cutoff FROM durably_queues

-- :gates
SELECT name, concurrency, rate, burst, tokens, refilled_at FROM durably_gates ORDER BY name

-- :list_keys
SELECT k.queue, k.key, k.state, k.ready_at, k.priority, k.session, k.token, k.head, k.reason,
       (SELECT count(*) FROM durably_tasks t WHERE t.state = 'blocked' AND t.queue = k.queue AND t.key = k.key)
  FROM durably_keys k
 WHERE (?1 IS NULL OR k.queue = ?1) AND (?2 IS NULL OR k.key = ?2)
   AND (?3 IS NULL OR k.state = ?3)
 ORDER BY k.queue, k.key LIMIT ?4

-- :key_tasks
SELECT {live}
  FROM durably_tasks t
  LEFT JOIN durably_keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
 WHERE t.state = 'blocked' AND t.queue = ?1 AND t.key = ?2
 ORDER BY t.seq LIMIT ?3

-- :sessions
SELECT id, state, started_at, beat_at, expires_at, host, pid, info FROM durably_sessions ORDER BY started_at

-- :lines
SELECT queue, gate, ready_at FROM durably_lines WHERE gate = ?1 AND queue = ?2

-- :ahead
-- How many ready tasks of the queue would be taken before this one.
SELECT count(*) FROM durably_tasks
 WHERE state = 'ready' AND queue = ?1 AND (priority > ?2 OR priority = ?2 AND ready_at < ?3)

-- :marked
-- Whether a marker of this key or limit group waits to be admitted.
SELECT EXISTS (SELECT 1 FROM durably_turns
                WHERE queue = ?1 AND (key = ?2 OR ?2 IS NULL AND gate = ?3))

-- :clock
SELECT :now
