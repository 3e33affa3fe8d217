-- Live tasks in `tasks`, ended ones in `history`, failed attempts of both in `attempts`.
-- Times are microseconds since 1970 by now(). Full queue names are `queue`, or `namespace/queue`.
-- A number that a claim could not count up is refused when it is written: it would stop every claim.
--
-- tasks     the hot table: rows leave it when they end
-- turns     markers: "a task of this key (or limit group) was committed"; inserted by anyone, consumed by a poll
-- keys      one row per ordering key with waiting tasks; leasing it is what runs its head, and then its followers
-- lines     one row per (queue, limit group) with waiting tasks
-- gates     limits: of a queue (q:NAME) or of a group (g:NAME), with their token buckets
-- permits   which leased task uses which gate; a permit whose task is no longer leased under that token counts for nothing
-- claims    which tasks a session has leased under which token: each of them until it is settled, and often a bit longer
-- prunes    which ended tasks to remove at which moment: those that ended together, and are kept equally long
-- sessions  one lease per worker process
-- sleepers  which session waits for a notification on which queue

CREATE TABLE durably.meta (
    name  text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO durably.meta VALUES ('store', gen_random_uuid()::text);

CREATE SEQUENCE durably.order_seq CACHE 1;
CREATE SEQUENCE durably.token_seq CACHE 1;

CREATE FUNCTION durably.now() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

-- What is counted up without a look at it must have room. A constraint of the table would be parsed by every statement.
CREATE DOMAIN durably.version AS bigint CHECK (VALUE < 4611686018427387904);
CREATE DOMAIN durably.count AS int CHECK (VALUE < 1073741824);

-- What most tasks begin with is the default, which costs a statement less than to name it.
CREATE TABLE durably.tasks (
    id           uuid     NOT NULL,
    seq          bigint   NOT NULL DEFAULT nextval('durably.order_seq'),
    version      durably.version NOT NULL DEFAULT 0,
    created_at   bigint   NOT NULL,
    ready_at     bigint   NOT NULL,
    token        bigint   NOT NULL DEFAULT 0,
    partition    int      NOT NULL,
    priority     int      NOT NULL,
    attempt      durably.count NOT NULL DEFAULT 0,
    spent        durably.count NOT NULL DEFAULT 0,
    crashes      int      NOT NULL DEFAULT 0,
    once         boolean  NOT NULL DEFAULT false,
    alone        boolean  NOT NULL DEFAULT false,
    state        text     NOT NULL DEFAULT 'ready',
    queue        text     NOT NULL,
    name         text     NOT NULL,
    payload      bytea    NOT NULL,
    session      text,
    started_at   bigint,
    expires_at   bigint,
    key          text,
    policy       text,
    gate         text,
    options      bytea,
    tags         text,
    cancel       text,
    unique_scope text,
    unique_key   text,
    progress     text,
    details      bytea,
    CONSTRAINT tasks_pkey PRIMARY KEY (id) WITH (fillfactor = 40)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX tasks_ready   ON durably.tasks (queue, priority, ready_at) WHERE state = 'ready';
CREATE INDEX tasks_delayed ON durably.tasks (ready_at) WHERE state = 'delayed';
CREATE INDEX tasks_key     ON durably.tasks (queue, key, seq) WHERE state = 'blocked' AND key IS NOT NULL;
CREATE INDEX tasks_gate    ON durably.tasks (queue, gate, priority DESC, seq) WHERE state = 'blocked' AND key IS NULL;
CREATE INDEX tasks_expiry  ON durably.tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX tasks_rare    ON durably.tasks (queue) WHERE alone OR cancel IS NOT NULL;

-- Only the end of a task writes here, from a row of tasks: what is checked there is not checked again.
CREATE TABLE durably.history (
    id           uuid     PRIMARY KEY,
    seq          bigint  ,
    version      bigint  ,
    created_at   bigint  ,
    ready_at     bigint  ,
    finished_at  bigint  ,
    token        bigint  ,
    partition    int     ,
    priority     int     ,
    attempt      int     ,
    spent        int     ,
    crashes      int     ,
    once         boolean ,
    state        text    ,
    queue        text    ,
    name         text    ,
    payload      bytea   ,
    session      text,
    started_at   bigint,
    prune_at     bigint,
    expires_at   bigint,
    key          text,
    policy       text,
    gate         text,
    options      bytea,
    tags         text,
    cancel       text,
    unique_scope text,
    unique_key   text,
    details      bytea,
    reason       text,
    result       bytea
);
CREATE INDEX history_dead  ON durably.history (finished_at, id) WHERE state = 'dead';

CREATE TABLE durably.prunes (
    prune_at bigint NOT NULL,
    count    int    NOT NULL,
    tasks    uuid[] NOT NULL
);
ALTER TABLE durably.prunes ALTER COLUMN tasks SET STORAGE EXTERNAL;
CREATE INDEX prunes_due ON durably.prunes (prune_at);

CREATE TABLE durably.attempts (
    task        uuid   NOT NULL,
    attempt     int    NOT NULL,
    outcome     text   NOT NULL,
    kind        text   NOT NULL,
    message     text   NOT NULL,
    trace       text   NOT NULL,
    session     text,
    token       bigint NOT NULL,
    started_at  bigint,
    finished_at bigint NOT NULL,
    PRIMARY KEY (task, attempt)
);

CREATE TABLE durably.unique_keys (
    namespace   text NOT NULL,
    scope       text NOT NULL,
    key         text NOT NULL,
    task        uuid NOT NULL,
    fingerprint text NOT NULL,
    expires_at  bigint,
    state       text,
    result      bytea,
    PRIMARY KEY (namespace, scope, key)
);
CREATE INDEX unique_keys_task   ON durably.unique_keys (task);
CREATE INDEX unique_keys_expiry ON durably.unique_keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE durably.turns (
    seq      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue    text NOT NULL,
    key      text,
    gate     text,
    priority int NOT NULL,
    alone    boolean NOT NULL,
    ready_at bigint NOT NULL
);

CREATE TABLE durably.keys (
    queue      text    NOT NULL,
    key        text    NOT NULL,
    state      text    NOT NULL,
    ready_at   bigint  NOT NULL,
    priority   int     NOT NULL,
    alone      boolean NOT NULL,
    held       boolean NOT NULL DEFAULT false,
    gate       text,
    session    text,
    token      bigint  NOT NULL DEFAULT 0,
    head       uuid,
    followers  text,
    started_at bigint,
    reason     text,
    PRIMARY KEY (queue, key)
) WITH (fillfactor = 70);
CREATE INDEX keys_ready  ON durably.keys (queue, priority, ready_at) WHERE state = 'ready';
CREATE INDEX keys_leased ON durably.keys (session) WHERE state = 'leased';
CREATE INDEX keys_held   ON durably.keys (gate) WHERE held;

CREATE TABLE durably.lines (
    queue    text   NOT NULL,
    gate     text   NOT NULL,
    ready_at bigint NOT NULL,
    PRIMARY KEY (queue, gate)
);
CREATE INDEX lines_ready ON durably.lines (queue, ready_at);

CREATE TABLE durably.gates (
    name        text PRIMARY KEY,
    concurrency int,
    rate        double precision,
    burst       double precision NOT NULL,
    tokens      double precision NOT NULL,
    refilled_at bigint NOT NULL
);

CREATE TABLE durably.claims (
    session text   NOT NULL,
    token   bigint NOT NULL,
    tasks   uuid[] NOT NULL,
    PRIMARY KEY (session, token)
);
ALTER TABLE durably.claims ALTER COLUMN tasks SET STORAGE EXTERNAL;

CREATE TABLE durably.permits (
    gate  text   NOT NULL,
    task  uuid   NOT NULL,
    token bigint NOT NULL,
    PRIMARY KEY (gate, task)
);
CREATE INDEX permits_task ON durably.permits (task);

CREATE TABLE durably.sessions (
    id         text   PRIMARY KEY,
    state      text   NOT NULL,
    started_at bigint NOT NULL,
    beat_at    bigint NOT NULL,
    expires_at bigint NOT NULL,
    host       text   NOT NULL,
    pid        bigint NOT NULL,
    info       text   NOT NULL
) WITH (fillfactor = 50);

CREATE UNLOGGED TABLE durably.sleepers (
    queue   text NOT NULL,
    session text NOT NULL,
    PRIMARY KEY (queue, session)
);

CREATE TABLE durably.queues (
    name   text PRIMARY KEY,
    state  text NOT NULL,
    cutoff bigint
);

CREATE TABLE durably.cancel_requests (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task   uuid   NOT NULL,
    reason text   NOT NULL
);
