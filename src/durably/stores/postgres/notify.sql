-- Notifications, their routes, and what recipients want and see. A caller's transaction runs those of `add_`, and
-- `notification_by_key`.

-- :add_notification
INSERT INTO durably.notifications (id, namespace, kind, key, data, problem, created_at)
SELECT ?1::text::uuid, ?2::text, ?3::text, ?4::text, ?5::bytea, ?6::text, durably.now()
    ON CONFLICT DO NOTHING
RETURNING 1

-- :notification_by_key
SELECT id::text, problem FROM durably.notifications
 WHERE namespace = ?1::text AND kind = ?2::text AND key = ?3::text

-- :add_routes
INSERT INTO durably.routes (id, notification, namespace, recipient, channel)
SELECT id::uuid, notification::uuid, namespace, recipient, channel
  FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::text[])
    AS r(id, notification, namespace, recipient, channel)
    ON CONFLICT DO NOTHING
RETURNING id::text

-- :notifications
SELECT id::text, kind, key, data, problem, created_at FROM durably.notifications
 WHERE namespace = ?1::text AND id = ANY(?2::text[]::uuid[])

-- :list_notifications
-- The newest first; only those with a route to a recipient, if one is named.
SELECT id::text, kind, key, data, problem, created_at
  FROM durably.notifications n
 WHERE namespace = ?1::text AND (?2::text IS NULL OR id < ?2::text::uuid)
   AND (?3::text IS NULL OR kind = ?3::text)
   AND (?4::text IS NULL OR EXISTS (SELECT 1 FROM durably.routes r
                                     WHERE r.notification = n.id AND r.recipient = ?4::text))
 ORDER BY id DESC LIMIT ?5::int

-- :routes_of
SELECT id::text, notification::text, recipient, channel, digest::text FROM durably.routes
 WHERE notification = ANY(?1::text[]::uuid[]) ORDER BY notification, recipient, channel

-- :route_by_id
SELECT id::text, notification::text, recipient, channel, digest::text FROM durably.routes WHERE id = ?1::text::uuid

-- :route_mails
-- The tasks of mails by their keys.
SELECT m.key, d.task::text
  FROM durably.mails m
  JOIN durably.deliveries d ON d.message = m.id AND d.namespace = m.namespace
 WHERE m.namespace = ?1::text AND m.key = ANY(?2::text[])

-- :open_digest
-- The one that is open, or a new one; whoever adds to it holds it until its transaction ends.
INSERT INTO durably.digests AS d (namespace, recipient, kind, channel, task, due_at)
SELECT ?1::text, ?2::text, ?3::text, ?4::text, ?5::text::uuid, (SELECT durably.now()) + ?6::bigint
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE
   SET task = CASE WHEN d.due_at <= (SELECT durably.now()) THEN excluded.task ELSE d.task END,
       due_at = CASE WHEN d.due_at <= (SELECT durably.now()) THEN excluded.due_at ELSE d.due_at END
RETURNING task::text

-- :join_digest
UPDATE durably.routes SET digest = ?2::text::uuid WHERE id = ?1::text::uuid AND digest IS NULL RETURNING id::text

-- :close_digest
DELETE FROM durably.digests
 WHERE namespace = ?1::text AND recipient = ?2::text AND kind = ?3::text AND channel = ?4::text
   AND task = ?5::text::uuid

-- :digested
SELECT r.id::text, r.notification::text, n.data
  FROM durably.routes r
  JOIN durably.notifications n ON n.id = r.notification
 WHERE r.digest = ?1::text::uuid
 ORDER BY r.notification

-- :read_digests
-- Of these digests, those of which everything was read.
SELECT DISTINCT d.digest::text
  FROM durably.routes d
 WHERE d.digest = ANY(?1::text[]::uuid[])
   AND NOT EXISTS (SELECT 1 FROM durably.routes r
                    WHERE r.digest = d.digest
                      AND NOT EXISTS (SELECT 1 FROM durably.inbox i
                                       WHERE i.notification = r.notification AND i.recipient = r.recipient
                                         AND i.read_at IS NOT NULL))

-- :throttle
INSERT INTO durably.throttles AS t (namespace, recipient, kind, channel, since, count)
SELECT ?1::text, ?2::text, ?3::text, ?4::text, (SELECT durably.now()), 1
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE
   SET since = CASE WHEN t.since + ?5::bigint <= (SELECT durably.now()) THEN excluded.since ELSE t.since END,
       count = CASE WHEN t.since + ?5::bigint <= (SELECT durably.now()) THEN 1 ELSE t.count + 1 END
 WHERE t.since + ?5::bigint <= (SELECT durably.now()) OR t.count < ?6::int
RETURNING count

-- :set_preference
INSERT INTO durably.preferences AS p (namespace, recipient, kind, channel, wanted)
SELECT ?1::text, ?2::text, ?3::text, ?4::text, ?5::boolean
    ON CONFLICT (namespace, recipient, kind, channel) DO UPDATE SET wanted = excluded.wanted

-- :drop_preference
DELETE FROM durably.preferences
 WHERE namespace = ?1::text AND recipient = ?2::text AND kind = ?3::text AND channel = ?4::text
RETURNING kind

-- :preferences
SELECT kind, channel, wanted FROM durably.preferences
 WHERE namespace = ?1::text AND recipient = ?2::text ORDER BY kind, channel

-- :put_in_inbox
INSERT INTO durably.inbox (id, namespace, recipient, notification, kind, content, created_at)
SELECT ?1::text::uuid, ?2::text, ?3::text, ?4::text::uuid, ?5::text, ?6::bytea, durably.now()
    ON CONFLICT DO NOTHING

-- :list_inbox
-- The newest first.
SELECT id::text, notification::text, kind, content, created_at, read_at, archived_at
  FROM durably.inbox
 WHERE namespace = ?1::text AND recipient = ?2::text
   AND (?3::text IS NULL OR notification < (SELECT notification FROM durably.inbox WHERE id = ?3::text::uuid))
   AND (?4::boolean OR archived_at IS NULL) AND (NOT ?5::boolean OR read_at IS NULL)
 ORDER BY notification DESC LIMIT ?6::int

-- :count_inbox
SELECT count(*), count(*) FILTER (WHERE read_at IS NULL)
  FROM durably.inbox WHERE namespace = ?1::text AND recipient = ?2::text AND archived_at IS NULL

-- :read_inbox
-- Those of these that were not read, or all of them.
UPDATE durably.inbox SET read_at = (SELECT durably.now())
 WHERE namespace = ?1::text AND recipient = ?2::text AND read_at IS NULL
   AND (?3::text[] IS NULL OR id = ANY(?3::text[]::uuid[]))
RETURNING id::text, notification::text, kind

-- :archive_inbox
UPDATE durably.inbox
   SET archived_at = (SELECT durably.now()), read_at = coalesce(read_at, (SELECT durably.now()))
 WHERE namespace = ?1::text AND recipient = ?2::text AND archived_at IS NULL
   AND (?3::text[] IS NULL OR id = ANY(?3::text[]::uuid[]))
RETURNING id::text, notification::text, kind

-- :was_read
SELECT 1 FROM durably.inbox WHERE notification = ?1::text::uuid AND recipient = ?2::text AND read_at IS NOT NULL LIMIT 1

-- :prune_inbox
-- What is archived was read too.
DELETE FROM durably.inbox
 WHERE id = ANY(ARRAY(SELECT id FROM durably.inbox
                       WHERE namespace = ?1::text AND read_at <= (SELECT durably.now()) - ?2::bigint LIMIT ?3::int))
RETURNING id::text

-- :prune_throttles
DELETE FROM durably.throttles
 WHERE ctid = ANY(ARRAY(SELECT ctid FROM durably.throttles
                         WHERE namespace = ?1::text AND since <= (SELECT durably.now()) - ?2::bigint LIMIT ?3::int))
   AND since <= (SELECT durably.now()) - ?2::bigint
RETURNING kind

-- :old_notifications
-- In the order of their ids, and whether a task of one of their routes is still known.
SELECT n.id::text,
       EXISTS (SELECT 1 FROM durably.routes r
                WHERE r.notification = n.id
                  AND ((SELECT t.id FROM durably.tasks t WHERE t.id = r.id) IS NOT NULL
                       OR (SELECT h.id FROM durably.history h WHERE h.id = r.id) IS NOT NULL
                       OR (SELECT t.id FROM durably.tasks t WHERE t.id = r.digest) IS NOT NULL
                       OR (SELECT h.id FROM durably.history h WHERE h.id = r.digest) IS NOT NULL))
  FROM durably.notifications n
 WHERE n.id > ?1::text::uuid AND n.created_at <= (SELECT durably.now()) - CASE WHEN n.problem IS NULL THEN ?2::bigint
                                                                             ELSE ?3::bigint END
 ORDER BY n.id LIMIT ?4::int

-- :forget_notifications
WITH gone AS (DELETE FROM durably.routes WHERE notification = ANY(?1::text[]::uuid[]))
DELETE FROM durably.notifications WHERE id = ANY(?1::text[]::uuid[]) RETURNING 1
