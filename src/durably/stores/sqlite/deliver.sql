-- Destinations, messages, and which task brings what to whom. A caller's transaction runs those that only insert.

-- :destinations
SELECT {destination} FROM durably_destinations d
 WHERE d.namespace = ?1 AND d.name IN (SELECT value FROM json_each(?2))

-- :list_destinations
SELECT {destination}
  FROM durably_destinations d
 WHERE d.namespace = ?1 AND d.name > ?2 AND (?3 IS NULL OR d.standing = ?3)
 ORDER BY d.name LIMIT ?4

-- :add_destinations
INSERT INTO durably_destinations (namespace, name, channel, address, rules, condition, standing, secrets, version,
                                  created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, :now, :now, :now)
    ON CONFLICT DO NOTHING
RETURNING name

-- :add_gates
INSERT INTO durably_gates (name, concurrency, rate, burst, tokens, refilled_at) VALUES (?1, ?2, ?3, ?4, ?4, :now)
    ON CONFLICT DO NOTHING

-- :change_destinations
UPDATE durably_destinations
   SET channel = ?4, address = ?5, rules = ?6, condition = ?7, standing = ?8, secrets = ?9, version = version + 1,
       updated_at = :now
 WHERE namespace = ?1 AND name = ?2 AND version = ?3
RETURNING namespace, name

-- :forget_destination
DELETE FROM durably_destinations WHERE namespace = ?1 AND name = ?2 RETURNING name

-- :add_message
INSERT INTO durably_messages (id, created_at, kind, sender, content_type, headers, body)
VALUES (?1, :now, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT DO NOTHING

-- :add_deliveries
INSERT INTO durably_deliveries (message, namespace, destination, task) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING

-- :messages
SELECT id, created_at, kind, sender, content_type, headers, body
  FROM durably_messages WHERE id IN (SELECT value FROM json_each(?1))

-- :deliveries_of
SELECT destination, task FROM durably_deliveries WHERE message = ?1 AND namespace = ?2 ORDER BY destination

-- :last_errors
SELECT task, message FROM durably_attempts a
 WHERE task IN (SELECT value FROM json_each(?1))
   AND attempt = (SELECT max(attempt) FROM durably_attempts WHERE task = a.task)

-- :pending_deliveries
SELECT d.task
  FROM durably_deliveries d
 CROSS JOIN durably_tasks t
 WHERE t.id = d.task AND d.namespace = ?1 AND d.destination = ?2
 ORDER BY t.seq LIMIT ?3

-- :old_messages
SELECT m.id,
       EXISTS (SELECT 1 FROM durably_deliveries d
                WHERE d.message = m.id
                  AND (EXISTS (SELECT 1 FROM durably_tasks t WHERE t.id = d.task)
                       OR EXISTS (SELECT 1 FROM durably_history h WHERE h.id = d.task)))
  FROM durably_messages m
 WHERE m.id > ?1 AND m.created_at <= :now - ?2
 ORDER BY m.id LIMIT ?3

-- :forget_messages
DELETE FROM durably_deliveries WHERE message IN (SELECT value FROM json_each(?1));
DELETE FROM durably_mails WHERE id IN (SELECT value FROM json_each(?1));
DELETE FROM durably_messages WHERE id IN (SELECT value FROM json_each(?1)) RETURNING 1

-- :hold_line
UPDATE durably_lines SET held_until = :now + ?3, ready_at = max(ready_at, :now + ?3) WHERE queue = ?1 AND gate = ?2

-- :release_line
UPDATE durably_lines SET held_until = 0, ready_at = :now WHERE queue = ?1 AND gate = ?2 RETURNING queue
