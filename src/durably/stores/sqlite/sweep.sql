-- Background work: sessions that died, tasks that fell due or expired, rows whose retention has passed.

-- :open_session
INSERT INTO durably_sessions (id, state, started_at, beat_at, expires_at, host, pid, info)
VALUES (?1, 'live', :now, :now, :now + ?2, ?3, ?4, ?5)
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, expires_at = excluded.expires_at WHERE state = 'live'
RETURNING id

-- :describe_session
UPDATE durably_sessions SET info = ?2 WHERE id = ?1

-- :beat
UPDATE durably_sessions SET beat_at = :now, expires_at = :now + ?2 WHERE id = ?1 AND state = 'live' RETURNING beat_at

-- :bury_session
UPDATE durably_sessions SET state = 'dead' WHERE id = ?1

-- :mark_dead
UPDATE durably_sessions SET state = 'dead' WHERE state = 'live' AND expires_at < :now RETURNING id

-- :lapsed
SELECT {task}
  FROM durably_tasks t
 WHERE t.state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM durably_sessions s WHERE s.id = t.session AND s.state = 'live')
   AND t.id NOT IN (SELECT value FROM json_each(?2))
 LIMIT ?1

-- :lapsed_heads
SELECT {live}
  FROM durably_keys k
  JOIN durably_tasks t ON t.id = k.head
 WHERE k.state = 'leased'
   AND NOT EXISTS (SELECT 1 FROM durably_sessions s WHERE s.id = k.session AND s.state = 'live')
   AND t.id NOT IN (SELECT value FROM json_each(?2))
 LIMIT ?1

-- :held
SELECT {task} FROM durably_tasks t WHERE t.state = 'leased' AND t.session = ?1

-- :held_heads
SELECT {live}
  FROM durably_keys k
  JOIN durably_tasks t ON t.id = k.head
 WHERE k.state = 'leased' AND k.session = ?1

-- :bury
DELETE FROM durably_sessions
 WHERE state = 'dead'
   AND NOT EXISTS (SELECT 1 FROM durably_tasks t WHERE t.state = 'leased' AND t.session = durably_sessions.id)
   AND NOT EXISTS (SELECT 1 FROM durably_keys k WHERE k.state = 'leased' AND k.session = durably_sessions.id)
RETURNING id;
DELETE FROM durably_permits WHERE NOT EXISTS (SELECT 1 FROM durably_tasks t WHERE t.id = durably_permits.task)

-- :due
SELECT id FROM durably_tasks
 WHERE state = 'delayed' AND ready_at <= :now AND id NOT IN (SELECT value FROM json_each(?2))
 ORDER BY ready_at LIMIT ?1

-- :promote
UPDATE durably_tasks
   SET state = CASE WHEN key IS NULL AND gate IS NULL THEN 'ready' ELSE 'blocked' END, ready_at = :now,
       seq = (SELECT max(seq) + 1 FROM durably_tasks), version = version + 1
 WHERE id = ?1 AND state = 'delayed' AND ready_at <= :now
RETURNING id, queue;
INSERT INTO durably_turns (queue, key, gate, priority, alone, ready_at)
SELECT queue, key, gate, priority, alone, ready_at FROM durably_tasks WHERE id = ?1 AND state = 'blocked'

-- :expired
SELECT {live}
  FROM durably_tasks t
  LEFT JOIN durably_keys k ON k.queue = t.queue AND k.key = t.key AND {leased}
 WHERE t.expires_at <= :now AND t.state <> 'leased' AND k.head IS NULL
   AND t.id NOT IN (SELECT value FROM json_each(?2))
 ORDER BY t.expires_at LIMIT ?1

-- :cancelled
SELECT id, cancel FROM durably_tasks WHERE cancel IS NOT NULL

-- :prune
DELETE FROM durably_unique_keys
 WHERE expires_at <= :now
   AND (namespace, scope, key) IN (SELECT namespace, scope, key FROM durably_unique_keys
                                    WHERE expires_at <= :now ORDER BY expires_at LIMIT ?1)
RETURNING 1;
DELETE FROM durably_attempts
 WHERE task IN (SELECT id FROM durably_history WHERE prune_at <= :now ORDER BY prune_at, rowid LIMIT ?1);
DELETE FROM durably_history
 WHERE id IN (SELECT id FROM durably_history WHERE prune_at <= :now ORDER BY prune_at, rowid LIMIT ?1)
RETURNING 1
