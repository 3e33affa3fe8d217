-- Accepting tasks. A caller's transaction runs these too: they insert, and lock no row that a worker writes.

-- :insert_tasks
-- One row per draft, in the given order, unless it is known already: a request that was given up for lost may still
-- arrive when its task, sent again, has long ended. A marker for each key, or limit group, in which one of them must
-- wait its turn, which tells of the first; a hint to whoever sleeps.
WITH draft AS (
    SELECT d.*, (SELECT durably.now()) AS now
      FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::bytea[], ?5::int[], ?6::bigint[], ?7::bigint[], ?8::text[],
                  ?9::text[], ?10::text[], ?11::bytea[], ?12::text[], ?13::boolean[], ?14::bigint[], ?15::text[],
                  ?16::text[], ?17::int[]) WITH ORDINALITY
        AS d(id, name, queue, payload, priority, due_in, at, key, policy, gate, options, tags, once, expires_in,
             unique_scope, unique_key, partition, position)
     WHERE (SELECT h.id FROM durably.history h WHERE h.id = d.id::uuid) IS NULL
     ORDER BY position
), accepted AS (
    INSERT INTO durably.tasks (id, seq, version, created_at, ready_at, expires_at, token, partition, priority, attempt,
                               spent, crashes, once, alone, state, name, queue, key, policy, gate, payload, options,
                               tags, unique_scope, unique_key)
    SELECT id::uuid, nextval('durably.order_seq'), 0, now, greatest(coalesce(at, now + due_in), now), now + expires_in,
           0, partition, priority, 0, 0, 0, once, false,
           CASE WHEN coalesce(at, now + due_in) > now THEN 'delayed'
                WHEN key IS NULL AND gate IS NULL THEN 'ready' ELSE 'blocked' END,
           name, queue, key, policy, gate, payload, options, tags, unique_scope, unique_key
      FROM draft
        ON CONFLICT DO NOTHING
    RETURNING seq, queue, key, gate, priority, state, alone, ready_at
), marked AS (
    INSERT INTO durably.turns (queue, key, gate, priority, alone, ready_at)
    SELECT queue, key, gate, priority, alone, ready_at
      FROM (SELECT DISTINCT ON (queue, key, CASE WHEN key IS NULL THEN gate END) *
              FROM accepted WHERE state = 'blocked'
             ORDER BY queue, key, CASE WHEN key IS NULL THEN gate END, seq) first_ones
     ORDER BY seq
)
SELECT queue, pg_notify('durably', queue)::text
  FROM (SELECT DISTINCT queue FROM accepted) q
 WHERE EXISTS (SELECT 1 FROM durably.sleepers s WHERE s.queue = q.queue)

-- :insert_plain
-- One draft with nothing special about it, to be run at once.
WITH accepted AS (
    INSERT INTO durably.tasks (id, created_at, ready_at, partition, priority, name, queue, payload)
    SELECT ?1::text::uuid, now, now, ?6::int, ?5::int, ?2::text, ?3::text, ?4::bytea
      FROM (SELECT durably.now() AS now OFFSET 0) n
     WHERE (SELECT h.id FROM durably.history h WHERE h.id = ?1::text::uuid) IS NULL
        ON CONFLICT DO NOTHING
)
SELECT pg_notify('durably', ?3::text)::text FROM durably.sleepers WHERE queue = ?3::text LIMIT 1

-- :insert_new
-- The same for a draft that was never sent before. Its id is met by nobody, and if it is, the statement above takes over.
WITH accepted AS (
    INSERT INTO durably.tasks (id, created_at, ready_at, partition, priority, name, queue, payload)
    SELECT ?1::uuid, now, now, ?6::int, ?5::int, ?2::text, ?3::text, ?4::bytea
      FROM (SELECT durably.now() AS now OFFSET 0) n
     WHERE (SELECT h.id FROM durably.history h WHERE h.id = ?1::uuid) IS NULL
)
SELECT pg_notify('durably', ?3::text)::text FROM durably.sleepers WHERE queue = ?3::text LIMIT 1

-- :insert_unheard
-- The same without the hint, for somebody who has just looked and saw nobody asleep; and without a look into history,
-- for somebody who, if the answer is lost, makes sure that this has come to its end before the task is sent again.
INSERT INTO durably.tasks (id, created_at, ready_at, partition, priority, name, queue, payload)
SELECT ?1::uuid, now, now, ?6::int, ?5::int, ?2::text, ?3::text, ?4::bytea
  FROM (SELECT durably.now() AS now OFFSET 0) n

-- :insert_all_new
-- The same for some of them.
WITH accepted AS (
    INSERT INTO durably.tasks (id, created_at, ready_at, partition, priority, name, queue, payload)
    SELECT d.id, d.now, d.now, d.partition, d.priority, d.name, d.queue, d.payload
      FROM (SELECT *, (SELECT durably.now()) AS now
              FROM unnest(?1::uuid[], ?2::text[], ?3::text[], ?4::bytea[], ?5::int[], ?6::int[])
                AS u(id, name, queue, payload, priority, partition)) d
     WHERE (SELECT h.id FROM durably.history h WHERE h.id = d.id) IS NULL
)
SELECT queue, pg_notify('durably', queue)::text
  FROM (SELECT DISTINCT queue FROM unnest(?3::text[]) u(queue)) q
 WHERE EXISTS (SELECT 1 FROM durably.sleepers s WHERE s.queue = q.queue)

-- :copy_tasks
-- Many drafts with nothing special about them. Until the commit their ids keep out whoever sends them again.
COPY durably.tasks (id, name, queue, payload, priority, partition, created_at, ready_at) FROM STDIN

-- :take_unique
-- The drafts whose unique key was free, and now is theirs. A period's start is part of its key.
INSERT INTO durably.unique_keys (namespace, scope, key, task, fingerprint, expires_at)
SELECT namespace, scope, CASE WHEN period IS NULL THEN key ELSE key || '@' || (now / period) END,
       id::uuid, fingerprint, (now / period + 1) * period
  FROM (SELECT *, (SELECT durably.now()) AS now
          FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::text[], ?6::bigint[])
            AS d(id, namespace, scope, key, fingerprint, period)) d
 ORDER BY namespace, scope, key
    ON CONFLICT DO NOTHING
RETURNING task::text

-- :find_unique
-- Who holds the unique keys of these drafts.
SELECT d.id, u.task::text, u.fingerprint
  FROM (SELECT *, (SELECT durably.now()) AS now
          FROM unnest(?1::text[], ?2::text[], ?3::text[], ?4::text[], ?5::bigint[])
            AS d(id, namespace, scope, key, period)) d
 CROSS JOIN LATERAL (
        SELECT task, fingerprint FROM durably.unique_keys
         WHERE namespace = d.namespace AND scope = d.scope
           AND key = CASE WHEN d.period IS NULL THEN d.key ELSE d.key || '@' || (d.now / d.period) END
        OFFSET 0) u

-- :confirm
-- Whoever is answered that a task is there already has written nothing, so its commit would not wait for the standbys. But
-- the first try may have reached none of them, if its process was ended or the server crashed meanwhile. A number for the
-- transaction alone would not do: something must be written.
SELECT pg_logical_emit_message(true, 'durably', '')::text

-- :forget_revived
-- A repeated insert may have met the moment in which its task ended: what is in history stays there.
DELETE FROM durably.tasks t
 WHERE t.id = ANY(?1::text[]::uuid[]) AND t.version = 0
   AND (SELECT h.id FROM durably.history h WHERE h.id = t.id) IS NOT NULL

-- :request_cancel
INSERT INTO durably.cancel_requests (task, reason)
SELECT id::uuid, ?2::text FROM unnest(?1::text[]) AS d(id)

-- :identity
-- Which store this database holds, to tell the caller's connection from a stranger's.
SELECT value FROM durably.meta WHERE name = 'store'
