-- Leasing tasks, keys and permits. There is one writer, so nothing needs a lock of its own.

-- :lock_session
SELECT id FROM durably_sessions WHERE id = ?1 AND state = 'live'

-- :survey
SELECT :now,
       EXISTS (SELECT 1 FROM durably_turns),
       EXISTS (SELECT 1 FROM durably_cancel_requests),
       EXISTS (SELECT 1 FROM durably_keys
                WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1)) AND ready_at <= :now),
       EXISTS (SELECT 1 FROM durably_lines WHERE queue IN (SELECT value FROM json_each(?1)) AND ready_at <= :now)
         OR EXISTS (SELECT 1 FROM durably_keys
                     WHERE state = 'ready' AND gate IS NOT NULL AND queue IN (SELECT value FROM json_each(?1))
                       AND ready_at <= :now),
       EXISTS (SELECT 1 FROM durably_tasks t
                WHERE t.alone AND t.queue IN (SELECT value FROM json_each(?1))
                  AND NOT EXISTS (SELECT 1 FROM durably_queues q
                                   WHERE q.name = t.queue AND (q.state = 'paused' OR t.created_at > q.cutoff))
                  AND (t.state = 'ready'
                       OR t.state = 'blocked' AND t.key IS NULL
                          AND EXISTS (SELECT 1 FROM durably_lines l
                                       WHERE l.queue = t.queue AND l.gate = t.gate AND l.ready_at <= :now)
                       OR t.state = 'blocked'
                          AND EXISTS (SELECT 1 FROM durably_keys k
                                       WHERE k.queue = t.queue AND k.key = t.key AND k.state = 'ready' AND k.alone
                                         AND k.ready_at <= :now))),
       (SELECT nullif(json_group_array(json_array(c.value, coalesce(q.state, 'active'), q.cutoff, g.name IS NOT NULL)),
                      '[]')
          FROM json_each(?1) c
          LEFT JOIN durably_queues q ON q.name = c.value
          LEFT JOIN durably_gates g ON g.name = 'q:' || c.value
         WHERE q.name IS NOT NULL OR g.name IS NOT NULL)

-- :claim_plain
-- Lease what has been ready longest, range by range, unless there is anything but plain tasks and open queues.
-- The first part looks, and each of the others does something only if the one before has.
WITH q AS MATERIALIZED (SELECT value AS gate, substr(value, 3) AS name FROM json_each(?6))
UPDATE durably_meta SET value = value + 1
 WHERE name = 'token'
   AND EXISTS (SELECT 1 FROM durably_sessions WHERE id = ?1 AND state = 'live')
   AND NOT EXISTS (SELECT 1 FROM durably_turns)
   AND NOT EXISTS (SELECT 1 FROM durably_cancel_requests)
   AND EXISTS (SELECT 1 FROM q CROSS JOIN durably_tasks t WHERE t.state = 'ready' AND t.queue = q.name)
   AND NOT EXISTS (SELECT 1 FROM q
                    WHERE EXISTS (SELECT 1 FROM durably_keys k
                                   WHERE k.state = 'ready' AND k.queue = q.name AND k.ready_at <= :now)
                       OR EXISTS (SELECT 1 FROM durably_lines l WHERE l.queue = q.name AND l.ready_at <= :now)
                       OR EXISTS (SELECT 1 FROM durably_queues o WHERE o.name = q.name)
                       OR EXISTS (SELECT 1 FROM durably_gates g WHERE g.name = q.gate)
                       OR EXISTS (SELECT 1 FROM durably_tasks t WHERE t.alone AND t.queue = q.name)
                       OR EXISTS (SELECT 1 FROM durably_tasks t
                                   WHERE t.state = 'ready' AND t.unique_scope = 'waiting' AND t.queue = q.name));
WITH r AS MATERIALIZED (
    SELECT value AS queue, json_extract(?3, '$[' || key || ']') AS priority,
           json_extract(?4, '$[' || key || ']') AS floor
      FROM json_each(?2) WHERE changes() = 1
)
UPDATE durably_tasks AS t
   SET state = 'leased', session = ?1, token = ({token}),
       attempt = attempt + 1, spent = spent + 1, version = version + 1, started_at = :now
 WHERE seq IN (SELECT f.seq FROM r CROSS JOIN durably_tasks f
                WHERE f.state = 'ready' AND f.queue = r.queue AND f.priority = r.priority AND f.ready_at >= r.floor
                LIMIT ?5);
SELECT {packed} {claimed} AND t.session = ?1 AND changes() > 0

-- :admit
-- Whoever left a marker may be gone: the row is made so that every claim looks at it now, and then corrects it.
INSERT OR IGNORE INTO durably_keys (queue, key, state, ready_at, priority, alone, gate)
SELECT queue, key, 'ready', min(ready_at, :now), priority, 0, gate
  FROM (SELECT * FROM durably_turns ORDER BY seq LIMIT ?1) WHERE key IS NOT NULL ORDER BY seq;
INSERT OR IGNORE INTO durably_lines (queue, gate, ready_at)
SELECT queue, gate, ready_at FROM (SELECT * FROM durably_turns ORDER BY seq LIMIT ?1) WHERE key IS NULL;
DELETE FROM durably_turns WHERE seq IN (SELECT seq FROM durably_turns ORDER BY seq LIMIT ?1)

-- :claim_ready
-- Where nothing is ready, nothing is written: a commit would wake everybody else who waits.
UPDATE durably_meta SET value = value + 1
 WHERE name = 'token'
   AND EXISTS (SELECT 1 FROM durably_tasks WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?2)));
WITH r AS MATERIALIZED (
    SELECT value AS queue, json_extract(?3, '$[' || key || ']') AS priority,
           json_extract(?4, '$[' || key || ']') AS floor, json_extract(?5, '$[' || key || ']') AS cutoff
      FROM json_each(?2) WHERE changes() = 1
)
UPDATE durably_tasks AS t
   SET state = 'leased', session = ?1, token = ({token}),
       attempt = attempt + 1, spent = spent + 1, version = version + 1, started_at = :now
 WHERE seq IN (SELECT f.seq FROM r CROSS JOIN durably_tasks f
                WHERE f.state = 'ready' AND f.queue = r.queue AND f.priority = r.priority AND f.ready_at >= r.floor
                  AND f.created_at <= r.cutoff AND f.alone = ?7
                LIMIT ?6);
SELECT {packed} {claimed} AND t.session = ?1 AND changes() > 0

-- :line_heads
SELECT queue, gate, priority, ready_at FROM durably_tasks
 WHERE state = 'blocked' AND key IS NULL AND queue = ?1 AND gate = ?2 AND created_at <= ?4 AND alone = ?5
 ORDER BY priority DESC, seq LIMIT ?3

-- :share
SELECT count(*) FILTER (WHERE kind = 'key'), count(*) FILTER (WHERE kind = 'plain')
  FROM (SELECT kind
          FROM (SELECT 'key' AS kind, k.priority, k.ready_at
                  FROM json_each(?1) r
                 CROSS JOIN durably_keys k
                 WHERE k.state = 'ready' AND k.queue = r.value
                   AND k.priority = json_extract(?2, '$[' || r.key || ']') AND k.ready_at <= :now
                   AND NOT k.alone
                 UNION ALL
                SELECT 'plain', waiting.priority, waiting.ready_at
                  FROM (SELECT t.priority, t.ready_at
                          FROM json_each(?1) r
                         CROSS JOIN durably_tasks t
                         WHERE t.state = 'ready' AND t.queue = r.value
                           AND t.priority = json_extract(?2, '$[' || r.key || ']')
                           AND t.created_at <= json_extract(?3, '$[' || r.key || ']') AND NOT t.alone
                         LIMIT ?6) waiting
                 UNION ALL
                SELECT 'line', p.value, json_extract(?5, '$[' || p.key || ']') FROM json_each(?4) p)
         ORDER BY priority DESC, ready_at LIMIT ?6)

-- :pick_keys
SELECT f.queue, f.key
  FROM json_each(?1) r
 CROSS JOIN durably_keys f
 WHERE f.state = 'ready' AND f.queue = r.value AND f.priority = json_extract(?2, '$[' || r.key || ']')
   AND f.ready_at <= :now AND f.alone = ?4 AND (f.gate IS NULL OR f.gate IN (SELECT value FROM json_each(?5)))
 LIMIT ?3

-- :pick_these
SELECT queue, key FROM durably_keys
 WHERE queue = ?1 AND key IN (SELECT value FROM json_each(?2)) AND state = 'ready' AND ready_at <= :now AND NOT alone
 LIMIT ?3

-- :heads
UPDATE durably_meta SET value = value + 1 WHERE name = 'token';
SELECT {head}, NULL, t.ready_at > :now
  FROM json_each(?1) k
 CROSS JOIN durably_tasks t
    ON t.seq IN (SELECT f.seq FROM durably_tasks f
                 WHERE f.state = 'blocked' AND f.queue = k.value AND f.key = json_extract(?2, '$[' || k.key || ']')
                 ORDER BY f.seq LIMIT ?3)

-- :others
SELECT :now,
       NOT EXISTS (SELECT 1 FROM durably_turns)
   AND NOT EXISTS (SELECT 1 FROM durably_cancel_requests)
   AND NOT EXISTS (SELECT 1 FROM durably_lines
                    WHERE queue IN (SELECT value FROM json_each(?1)) AND ready_at <= :now)
   AND NOT EXISTS (SELECT 1 FROM durably_queues WHERE name IN (SELECT value FROM json_each(?1)))
   AND NOT EXISTS (SELECT 1 FROM durably_gates WHERE name IN (SELECT value FROM json_each(?2))),
       (SELECT count(*) FROM (SELECT 1 FROM durably_keys
                               WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1))
                                 AND ready_at <= :now LIMIT ?3))
     + (SELECT count(*) FROM (SELECT 1 FROM durably_tasks
                               WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1)) LIMIT ?3))

-- :open_lines
SELECT :now,
       (SELECT count(*) FROM (SELECT 1 FROM durably_keys
                               WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1))
                                 AND ready_at <= :now LIMIT ?5))
     + (SELECT count(*) FROM (SELECT 1 FROM durably_tasks
                               WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1)) LIMIT ?5)),
       l.queue, l.gate, EXISTS (SELECT 1 FROM durably_gates WHERE name = 'g:' || l.gate),
       (SELECT count(*) FROM durably_permits p
         WHERE p.gate = 'g:' || l.gate
           AND EXISTS (SELECT 1 FROM durably_tasks t
                        WHERE t.id = p.task
                          AND (t.state = 'leased' AND t.token = p.token
                               OR EXISTS (SELECT 1 FROM durably_keys k
                                           WHERE k.queue = t.queue AND k.key = t.key AND k.state = 'leased'
                                             AND k.head = t.id AND k.token = p.token))))
  FROM json_each(?3) d
 CROSS JOIN durably_lines l
 WHERE l.queue = d.value AND l.gate = json_extract(?4, '$[' || d.key || ']') AND l.held_until <= :now
   AND NOT EXISTS (SELECT 1 FROM durably_turns)
   AND NOT EXISTS (SELECT 1 FROM durably_cancel_requests)
   AND NOT EXISTS (SELECT 1 FROM durably_queues WHERE name IN (SELECT value FROM json_each(?1)))
   AND NOT EXISTS (SELECT 1 FROM durably_gates WHERE name IN (SELECT value FROM json_each(?2)))
   AND NOT EXISTS (SELECT 1 FROM durably_tasks WHERE alone AND queue IN (SELECT value FROM json_each(?1)))
   AND NOT EXISTS (SELECT 1 FROM durably_keys WHERE held AND gate IN (SELECT value FROM json_each(?4)))
   AND NOT EXISTS (SELECT 1 FROM durably_lines o
                    WHERE (o.queue IN (SELECT value FROM json_each(?1)) AND o.ready_at <= :now
                           OR o.gate IN (SELECT value FROM json_each(?4)))
                      AND NOT EXISTS (SELECT 1 FROM json_each(?3) m
                                       WHERE m.value = o.queue
                                         AND json_extract(?4, '$[' || m.key || ']') = o.gate))

-- :lease_keys_of
-- Their heads' followers, by the seq of the head. The rows are there: an update that joins would look through all of them.
INSERT INTO durably_keys (queue, key, state, ready_at, priority, alone, head, followers, token, started_at, session)
SELECT t.queue, t.key, 'leased', t.ready_at, t.priority, t.alone, t.id, d.value, ?2, ?3, ?4
  FROM json_each(?1) d CROSS JOIN durably_tasks t WHERE t.seq = CAST(d.key AS INTEGER)
    ON CONFLICT DO UPDATE
   SET state = 'leased', held = 0, head = excluded.head, followers = excluded.followers, token = excluded.token,
       started_at = excluded.started_at, session = excluded.session

-- :advance_keys
UPDATE durably_keys SET head = ?3, followers = ?4 WHERE queue = ?1 AND key = ?2;
UPDATE durably_permits SET task = ?3 WHERE task = ?5

-- :versions
SELECT json_group_array(json_array(id, version)) FROM durably_tasks WHERE id IN (SELECT value FROM json_each(?1))

-- :flagged
SELECT {task} FROM durably_tasks t WHERE t.id IN (SELECT value FROM json_each(?1)) AND t.cancel IS NOT NULL

-- :ensure_keys
INSERT OR IGNORE INTO durably_keys (queue, key, state, ready_at, priority, alone, gate)
VALUES (?1, ?2, 'ready', :now, ?3, ?4, ?5)

-- :lock_keys
SELECT json_group_array(json_array(k.queue, k.key, k.state, k.token, k.head, k.followers))
  FROM json_each(?1) r
 CROSS JOIN durably_keys k
 WHERE k.queue = r.value AND k.key = json_extract(?2, '$[' || r.key || ']')

-- :next_heads
SELECT k.value, json_extract(?2, '$[' || k.key || ']'), t.id, t.priority, t.alone, t.gate, t.ready_at
  FROM json_each(?1) k
  LEFT JOIN durably_tasks t
    ON t.seq = (SELECT f.seq FROM durably_tasks f
                 WHERE f.state = 'blocked' AND f.queue = k.value AND f.key = json_extract(?2, '$[' || k.key || ']')
                 ORDER BY f.seq LIMIT 1)

-- :return_keys
UPDATE durably_keys
   SET state = ?3, ready_at = max(:now + ?4, ?5), priority = ?6, alone = ?7, gate = ?8, held = ?9, reason = ?10,
       head = ?11, followers = NULL, session = NULL, started_at = NULL
 WHERE queue = ?1 AND key = ?2

-- :drop_keys
DELETE FROM durably_keys WHERE queue = ?1 AND key = ?2

-- :ready_gates
SELECT queue, gate, is_line
  FROM (SELECT queue, gate, 1 AS is_line, ready_at FROM durably_lines
         WHERE queue IN (SELECT value FROM json_each(?1)) AND ready_at <= :now
         UNION ALL
        SELECT queue, gate, 0, ready_at FROM durably_keys
         WHERE state = 'ready' AND gate IS NOT NULL AND queue IN (SELECT value FROM json_each(?1))
           AND ready_at <= :now)
 GROUP BY queue, gate, is_line
 ORDER BY min(ready_at), queue, gate LIMIT ?2

-- :lock_gates
SELECT name, concurrency, rate, burst, tokens, refilled_at
  FROM durably_gates WHERE name IN (SELECT value FROM json_each(?1))

-- :known_gates
SELECT name FROM durably_gates WHERE name IN (SELECT value FROM json_each(?1))

-- :count_permits
SELECT p.gate, count(*)
  FROM durably_permits p
 WHERE p.gate IN (SELECT value FROM json_each(?1))
   AND EXISTS (SELECT 1 FROM durably_tasks t
                WHERE t.id = p.task
                  AND (t.state = 'leased' AND t.token = p.token
                       OR EXISTS (SELECT 1 FROM durably_keys k
                                   WHERE k.queue = t.queue AND k.key = t.key AND k.state = 'leased'
                                     AND k.head = t.id AND k.token = p.token)))
 GROUP BY p.gate

-- :claim_lines
UPDATE durably_meta SET value = value + 1 WHERE name = 'token';
UPDATE durably_tasks AS t
   SET state = 'leased', session = ?6, token = ({token}),
       attempt = attempt + 1, spent = spent + 1, version = version + 1, started_at = :now
 WHERE seq IN (SELECT seq FROM durably_tasks
                WHERE state = 'blocked' AND key IS NULL AND queue = ?1 AND gate = ?2 AND created_at <= ?4 AND alone = ?5
                ORDER BY priority DESC, seq LIMIT ?3);
INSERT OR REPLACE INTO durably_permits (gate, task, token)
SELECT 'g:' || t.gate, t.id, t.token {claimed} AND t.session = ?6;
SELECT {packed} {claimed} AND t.session = ?6

-- :lock_lines
SELECT l.queue, l.gate
  FROM json_each(?1) r
 CROSS JOIN durably_lines l
 WHERE l.queue = r.value AND l.gate = json_extract(?2, '$[' || r.key || ']')

-- :lines_left
SELECT r.value, json_extract(?2, '$[' || r.key || ']')
  FROM json_each(?1) r
 WHERE EXISTS (SELECT 1 FROM durably_tasks t
                WHERE t.state = 'blocked' AND t.key IS NULL AND t.queue = r.value
                  AND t.gate = json_extract(?2, '$[' || r.key || ']'))

-- :wait_lines
UPDATE durably_lines SET ready_at = max(:now + ?3, held_until) WHERE queue = ?1 AND gate = ?2

-- :drop_lines
DELETE FROM durably_lines WHERE queue = ?1 AND gate = ?2

-- :take_permits
INSERT OR REPLACE INTO durably_permits (gate, task, token) VALUES (?1, ?2, ?3)

-- :spend_gates
UPDATE durably_gates SET tokens = ?2, refilled_at = ?3 WHERE name = ?1

-- :free_unique
DELETE FROM durably_unique_keys
 WHERE task IN (SELECT value FROM json_each(?1)) AND scope IN (SELECT value FROM json_each(?2))

-- :next_due
SELECT (SELECT min(ready_at) FROM durably_tasks WHERE state = 'delayed'),
       (SELECT min(ready_at)
          FROM (SELECT min(ready_at) AS ready_at FROM durably_keys
                 WHERE state = 'ready' AND queue IN (SELECT value FROM json_each(?1)) AND ready_at > :now
                UNION ALL
                SELECT min(ready_at) FROM durably_lines
                 WHERE queue IN (SELECT value FROM json_each(?1)) AND ready_at > :now)),
       :now
