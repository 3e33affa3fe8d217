-- Notifications, their routes, and what recipients want and see. A caller's transaction runs those of `add_`, and
-- `notification_by_key`.

-- :add_notification
INSERT INTO durably_notifications (id, namespace, kind, key, data, problem, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, :now)
    ON CONFLICT DO NOTHING
RETURNING 1

-- :notification_by_key
SELECT id, problem FROM durably_notifications WHERE namespace = ?1 AND kind = ?2 AND key = ?3

-- :add_routes
INSERT INTO durably_routes (id, notification, namespace, recipient, channel)
VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT DO NOTHING
RETURNING id

-- :notifications
SELECT id, kind, key, data, problem, created_at FROM durably_notifications
 WHERE namespace = ?1 AND id IN (SELECT value FROM json_each(?2))

-- :list_notifications
-- The newest first; only those with a route to a recipient, if one is named.
SELECT id, kind, key, data, problem, created_at
  FROM durably_notifications n
 WHERE namespace = ?1 AND (?2 IS NULL OR id < ?2)
   AND (?3 IS NULL OR kind = ?3)
   AND (?4 IS NULL OR EXISTS (SELECT 1 FROM durably_routes r
                            WHERE r.notification = n.id AND r.recipient = ?4))
 ORDER BY id DESC LIMIT ?5

-- :routes_of
SELECT id, notification, recipient, channel, digest FROM durably_routes
 WHERE notification IN (SELECT value FROM json_each(?1)) ORDER BY notification, recipient, channel

-- :route_by_id
SELECT id, notification, recipient, channel, digest FROM durably_routes WHERE id = ?1

-- :route_mails
-- The tasks of mails by their keys.
SELECT m.key, d.task
  FROM durably_mails m
  JOIN durably_deliveries d ON d.message = m.id AND d.namespace = m.namespace
 WHERE m.namespace = ?1 AND m.key IN (SELECT value FROM json_each(?2))

-- :open_digest
-- The one that is open, or a new one; whoever adds to it holds it until its transaction ends.
INSERT INTO durably_digests AS d (namespace, recipient, kind, channel, task, due_at)
VALUES (?1, ?2, ?3, ?4, ?5, :now + ?6)
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE
   SET task = CASE WHEN d.due_at <= :now THEN excluded.task ELSE d.task END,
       due_at = CASE WHEN d.due_at <= :now THEN excluded.due_at ELSE d.due_at END
RETURNING task

-- :join_digest
UPDATE durably_routes SET digest = ?2 WHERE id = ?1 AND digest IS NULL RETURNING id

-- :close_digest
DELETE FROM durably_digests
 WHERE namespace = ?1 AND recipient = ?2 AND kind = ?3 AND channel = ?4 AND task = ?5

-- :digested
SELECT r.id, r.notification, n.data
  FROM durably_routes r
  JOIN durably_notifications n ON n.id = r.notification
 WHERE r.digest = ?1
 ORDER BY r.notification

-- :read_digests
-- Of these digests, those of which everything was read.
SELECT DISTINCT d.digest
  FROM durably_routes d
 WHERE d.digest IN (SELECT value FROM json_each(?1))
   AND NOT EXISTS (SELECT 1 FROM durably_routes r
                    WHERE r.digest = d.digest
                      AND NOT EXISTS (SELECT 1 FROM durably_inbox i
                                       WHERE i.notification = r.notification AND i.recipient = r.recipient
                                         AND i.read_at IS NOT NULL))

-- :throttle
INSERT INTO durably_throttles AS t (namespace, recipient, kind, channel, since, count)
VALUES (?1, ?2, ?3, ?4, :now, 1)
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE
   SET since = CASE WHEN t.since + ?5 <= :now THEN excluded.since ELSE t.since END,
       count = CASE WHEN t.since + ?5 <= :now THEN 1 ELSE t.count + 1 END
 WHERE t.since + ?5 <= :now OR t.count < ?6
RETURNING count

-- :set_preference
INSERT INTO durably_preferences AS p (namespace, recipient, kind, channel, wanted)
VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE SET wanted = excluded.wanted

-- :drop_preference
DELETE FROM durably_preferences
 WHERE namespace = ?1 AND recipient = ?2 AND kind = ?3 AND channel = ?4
RETURNING kind

-- :preferences
SELECT kind, channel, wanted FROM durably_preferences
 WHERE namespace = ?1 AND recipient = ?2 ORDER BY kind, channel

-- :put_in_inbox
INSERT INTO durably_inbox (id, namespace, recipient, notification, kind, content, created_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, :now)
    ON CONFLICT DO NOTHING

-- :list_inbox
-- The newest first.
SELECT id, notification, kind, content, created_at, read_at, archived_at
  FROM durably_inbox
 WHERE namespace = ?1 AND recipient = ?2
   AND (?3 IS NULL OR notification < (SELECT notification FROM durably_inbox WHERE id = ?3))
   AND (?4 OR archived_at IS NULL) AND (NOT ?5 OR read_at IS NULL)
 ORDER BY notification DESC LIMIT ?6

-- :count_inbox
SELECT count(*), count(*) FILTER (WHERE read_at IS NULL)
  FROM durably_inbox WHERE namespace = ?1 AND recipient = ?2 AND archived_at IS NULL

-- :read_inbox
-- Those of these that were not read, or all of them.
UPDATE durably_inbox SET read_at = :now
 WHERE namespace = ?1 AND recipient = ?2 AND read_at IS NULL
   AND (?3 IS NULL OR id IN (SELECT value FROM json_each(?3)))
RETURNING id, notification, kind

-- :archive_inbox
UPDATE durably_inbox
   SET archived_at = :now, read_at = coalesce(read_at, :now)
 WHERE namespace = ?1 AND recipient = ?2 AND archived_at IS NULL
   AND (?3 IS NULL OR id IN (SELECT value FROM json_each(?3)))
RETURNING id, notification, kind

-- :was_read
SELECT 1 FROM durably_inbox WHERE notification = ?1 AND recipient = ?2 AND read_at IS NOT NULL LIMIT 1

-- :prune_inbox
-- What is archived was read too.
DELETE FROM durably_inbox
 WHERE id IN (SELECT id FROM durably_inbox WHERE namespace = ?1 AND read_at <= :now - ?2 LIMIT ?3)
RETURNING id

-- :prune_throttles
DELETE FROM durably_throttles
 WHERE (namespace, recipient, kind, channel) IN (SELECT namespace, recipient, kind, channel FROM durably_throttles
                                                  WHERE namespace = ?1 AND since <= :now - ?2 LIMIT ?3)
RETURNING kind

-- :old_notifications
-- In the order of their ids, and whether a task of one of their routes is still known.
SELECT n.id,
       EXISTS (SELECT 1 FROM durably_routes r
                WHERE r.notification = n.id
                  AND (EXISTS (SELECT 1 FROM durably_tasks t WHERE t.id IN (r.id, r.digest))
                       OR EXISTS (SELECT 1 FROM durably_history h WHERE h.id IN (r.id, r.digest))))
  FROM durably_notifications n
 WHERE n.id > ?1 AND n.created_at <= :now - CASE WHEN n.problem IS NULL THEN ?2 ELSE ?3 END
 ORDER BY n.id LIMIT ?4

-- :forget_notifications
DELETE FROM durably_routes WHERE notification IN (SELECT value FROM json_each(?1));
DELETE FROM durably_notifications WHERE id IN (SELECT value FROM json_each(?1)) RETURNING 1
