-- Destinations, messages, and which task brings what to whom. A caller's transaction runs those that only insert.

-- :destinations
SELECT {destination} FROM durably.destinations d WHERE d.namespace = ?1::text AND d.name = ANY(?2::text[])

-- :list_destinations
SELECT {destination}
  FROM durably.destinations d
 WHERE d.namespace = ?1::text AND d.name > ?2::text AND (?3::text IS NULL OR d.standing = ?3::text)
 ORDER BY d.name LIMIT ?4::int

-- :add_destinations
-- Versions begin with the moment: one that is forgotten and added again is not taken for what it was.
INSERT INTO durably.destinations (namespace, name, channel, address, rules, condition, standing, secrets, version,
                                  created_at, updated_at)
SELECT namespace, name, channel, address, rules, condition, standing, secrets, now, now, now
  FROM (SELECT *, (SELECT durably.now()) AS now
          FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::text[], ?6::text[], ?7::text[], ?8::bytea[])
            AS d(namespace, name, channel, address, rules, condition, standing, secrets)) d
 ORDER BY namespace, name
    ON CONFLICT DO NOTHING
RETURNING name

-- :add_gates
INSERT INTO durably.gates (name, concurrency, rate, burst, tokens, refilled_at)
SELECT name, concurrency, rate, burst, burst, (SELECT durably.now())
  FROM unnest(?1::text[], ?2::int[], ?3::double precision[], ?4::double precision[]) AS g(name, concurrency, rate, burst)
 ORDER BY name
    ON CONFLICT DO NOTHING

-- :change_destinations
-- Only those that nobody has changed since they were read; locked in one order, so that two who do this only wait.
WITH changed AS MATERIALIZED (
    SELECT d.ctid AS row, c.*
      FROM (SELECT * FROM unnest(?1::text[], ?2::text[], ?3::bigint[], ?4::text[], ?5::text[], ?6::text[], ?7::text[],
                                 ?8::text[], ?9::bytea[])
                       AS c(namespace, name, version, channel, address, rules, condition, standing, secrets)
             ORDER BY namespace, name) c
     CROSS JOIN LATERAL (SELECT ctid FROM durably.destinations
                          WHERE namespace = c.namespace AND name = c.name AND version = c.version FOR UPDATE) d
)
UPDATE durably.destinations d
   SET channel = c.channel, address = c.address, rules = c.rules, condition = c.condition, standing = c.standing,
       secrets = c.secrets, version = d.version + 1, updated_at = (SELECT durably.now())
  FROM changed c
 WHERE d.ctid = c.row
RETURNING d.namespace, d.name

-- :forget_destination
DELETE FROM durably.destinations WHERE namespace = ?1::text AND name = ?2::text RETURNING name

-- :add_message
INSERT INTO durably.messages (id, created_at, kind, sender, content_type, headers, body)
SELECT ?1::text::uuid, durably.now(), ?2::text, ?3::text, ?4::text, ?5::text, ?6::bytea
    ON CONFLICT DO NOTHING

-- :add_deliveries
INSERT INTO durably.deliveries (message, namespace, destination, task)
SELECT message::uuid, namespace, destination, task::uuid
  FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[]) AS d(message, namespace, destination, task)
    ON CONFLICT DO NOTHING

-- :messages
SELECT id::text, created_at, kind, sender, content_type, headers, body
  FROM durably.messages WHERE id = ANY(?1::text[]::uuid[])

-- :deliveries_of
SELECT destination, task::text FROM durably.deliveries
 WHERE message = ?1::text::uuid AND namespace = ?2::text ORDER BY destination

-- :last_errors
-- What the last attempt that failed said.
SELECT d.task, a.message
  FROM unnest(?1::text[]) AS d(task)
 CROSS JOIN LATERAL (SELECT message FROM durably.attempts WHERE task = d.task::uuid ORDER BY attempt DESC LIMIT 1) a

-- :pending_deliveries
-- What waits for one destination, or is under way, in the order of acceptance.
SELECT d.task::text
  FROM durably.deliveries d
 CROSS JOIN LATERAL (SELECT seq FROM durably.tasks WHERE id = d.task OFFSET 0) t
 WHERE d.namespace = ?1::text AND d.destination = ?2::text
 ORDER BY t.seq LIMIT ?3::int

-- :old_messages
-- Messages in the order of their ids, and whether a task that brings one of them to somebody is still known.
SELECT m.id::text,
       EXISTS (SELECT 1 FROM durably.deliveries d
                WHERE d.message = m.id
                  AND ((SELECT t.id FROM durably.tasks t WHERE t.id = d.task) IS NOT NULL
                       OR (SELECT h.id FROM durably.history h WHERE h.id = d.task) IS NOT NULL))
  FROM durably.messages m
 WHERE m.id > ?1::text::uuid AND m.created_at <= (SELECT durably.now()) - ?2::bigint
 ORDER BY m.id LIMIT ?3::int

-- :forget_messages
WITH gone AS (DELETE FROM durably.deliveries WHERE message = ANY(?1::text[]::uuid[])),
     mail AS (DELETE FROM durably.mails WHERE id = ANY(?1::text[]::uuid[]))
DELETE FROM durably.messages WHERE id = ANY(?1::text[]::uuid[]) RETURNING 1

-- :hold_line
UPDATE durably.lines
   SET held_until = (SELECT durably.now()) + ?3::bigint,
       ready_at = greatest(ready_at, (SELECT durably.now()) + ?3::bigint)
 WHERE queue = ?1::text AND gate = ?2::text

-- :release_line
UPDATE durably.lines SET held_until = 0, ready_at = (SELECT durably.now())
 WHERE queue = ?1::text AND gate = ?2::text
RETURNING queue
