-- Live tasks in `tasks`, ended ones in `history`, failed attempts of both in `attempts`.
-- Times are microseconds since 1970 by the host's clock. Full queue names are `queue`, or `namespace/queue`.
-- Tables are STRICT: a value of the wrong type, which a claim would stumble over, is refused when it is written.
-- So is a number that a claim could not count up.
--
-- tasks     the hot table: rows leave it when they end
-- turns     markers: "a task of this key (or limit group) was committed"; inserted by anyone, consumed by a poll
-- keys      one row per ordering key with waiting tasks; leasing it is what runs its head, and then its followers
-- lines     one row per (queue, limit group) with waiting tasks
-- gates     limits: of a queue (q:NAME) or of a group (g:NAME), with their token buckets
-- permits   which leased task uses which gate; a permit whose task is no longer leased under that token counts for nothing
-- sessions  one lease per worker process
-- sleepers  which session waits for a notification on which queue

CREATE TABLE durably_meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;
INSERT INTO durably_meta VALUES ('store', lower(hex(randomblob(16)))), ('token', '0');


CREATE TABLE durably_tasks (
    seq          INTEGER PRIMARY KEY, -- above that of every other live task; the numbers of ended ones come again
    id           TEXT     NOT NULL UNIQUE,
    version      INTEGER   NOT NULL,
    created_at   INTEGER   NOT NULL,
    ready_at     INTEGER   NOT NULL,
    started_at   INTEGER,
    expires_at   INTEGER,
    token        INTEGER   NOT NULL,
    partition    INTEGER      NOT NULL,
    priority     INTEGER      NOT NULL,
    attempt      INTEGER      NOT NULL,
    spent        INTEGER      NOT NULL,
    crashes      INTEGER      NOT NULL,
    once         INTEGER  NOT NULL,
    alone        INTEGER  NOT NULL,
    state        TEXT     NOT NULL,
    name         TEXT     NOT NULL,
    queue        TEXT     NOT NULL,
    key          TEXT,
    policy       TEXT,
    gate         TEXT,
    session      TEXT,
    payload      BLOB    NOT NULL,
    options      BLOB,
    tags         TEXT,
    cancel       TEXT,
    unique_scope TEXT,
    unique_key   TEXT,
    progress     TEXT,
    details      BLOB,
    CHECK (version < 4611686018427387904 AND attempt < 1073741824 AND spent < 1073741824)
) STRICT;
CREATE INDEX durably_tasks_ready   ON durably_tasks (queue, priority, ready_at) WHERE state = 'ready';
CREATE INDEX durably_tasks_delayed ON durably_tasks (ready_at) WHERE state = 'delayed';
CREATE INDEX durably_tasks_key     ON durably_tasks (queue, key, seq) WHERE state = 'blocked' AND key IS NOT NULL;
CREATE INDEX durably_tasks_gate    ON durably_tasks (queue, gate, priority DESC, seq) WHERE state = 'blocked' AND key IS NULL;
CREATE INDEX durably_tasks_leased  ON durably_tasks (session, token) WHERE state = 'leased';
CREATE INDEX durably_tasks_expiry  ON durably_tasks (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX durably_tasks_cancel  ON durably_tasks (id) WHERE cancel IS NOT NULL;
CREATE INDEX durably_tasks_alone   ON durably_tasks (queue) WHERE alone;
CREATE INDEX durably_tasks_waiting ON durably_tasks (queue) WHERE state = 'ready' AND unique_scope = 'waiting';

CREATE TABLE durably_history (
    id           TEXT     NOT NULL UNIQUE,
    seq          INTEGER   NOT NULL,
    version      INTEGER   NOT NULL,
    created_at   INTEGER   NOT NULL,
    ready_at     INTEGER   NOT NULL,
    started_at   INTEGER,
    expires_at   INTEGER,
    finished_at  INTEGER   NOT NULL,
    prune_at     INTEGER,
    token        INTEGER   NOT NULL,
    partition    INTEGER      NOT NULL,
    priority     INTEGER      NOT NULL,
    attempt      INTEGER      NOT NULL,
    spent        INTEGER      NOT NULL,
    crashes      INTEGER      NOT NULL,
    once         INTEGER  NOT NULL,
    state        TEXT     NOT NULL,
    name         TEXT     NOT NULL,
    queue        TEXT     NOT NULL,
    key          TEXT,
    policy       TEXT,
    gate         TEXT,
    session      TEXT,
    payload      BLOB    NOT NULL,
    options      BLOB,
    tags         TEXT,
    cancel       TEXT,
    unique_scope TEXT,
    unique_key   TEXT,
    details      BLOB,
    reason       TEXT,
    result       BLOB
) STRICT;
CREATE INDEX durably_history_prune ON durably_history (prune_at) WHERE prune_at IS NOT NULL;
CREATE INDEX durably_history_dead  ON durably_history (finished_at, id) WHERE state = 'dead';

CREATE TABLE durably_attempts (
    task        TEXT   NOT NULL,
    attempt     INTEGER    NOT NULL,
    outcome     TEXT   NOT NULL,
    kind        TEXT   NOT NULL,
    message     TEXT   NOT NULL,
    trace       TEXT   NOT NULL,
    session     TEXT,
    token       INTEGER NOT NULL,
    started_at  INTEGER,
    finished_at INTEGER NOT NULL,
    PRIMARY KEY (task, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_unique_keys (
    namespace   TEXT NOT NULL,
    scope       TEXT NOT NULL,
    key         TEXT NOT NULL,
    task        TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    expires_at  INTEGER,
    state       TEXT,
    result      BLOB,
    PRIMARY KEY (namespace, scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_unique_keys_task   ON durably_unique_keys (task);
CREATE INDEX durably_unique_keys_expiry ON durably_unique_keys (expires_at) WHERE expires_at IS NOT NULL;

CREATE TABLE durably_turns (
    seq      INTEGER PRIMARY KEY,
    queue    TEXT NOT NULL,
    key      TEXT,
    gate     TEXT,
    priority INTEGER NOT NULL,
    alone    INTEGER NOT NULL,
    ready_at INTEGER NOT NULL
) STRICT;

CREATE TABLE durably_keys (
    queue      TEXT    NOT NULL,
    key        TEXT    NOT NULL,
    state      TEXT    NOT NULL,
    ready_at   INTEGER  NOT NULL,
    priority   INTEGER     NOT NULL,
    alone      INTEGER NOT NULL,
    held       INTEGER NOT NULL DEFAULT 0,
    gate       TEXT,
    session    TEXT,
    token      INTEGER  NOT NULL DEFAULT 0,
    head       TEXT,
    followers  TEXT,
    started_at INTEGER,
    reason     TEXT,
    PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_keys_ready  ON durably_keys (queue, priority, ready_at) WHERE state = 'ready';
CREATE INDEX durably_keys_leased ON durably_keys (session) WHERE state = 'leased';
CREATE INDEX durably_keys_held   ON durably_keys (gate) WHERE held;

CREATE TABLE durably_lines (
    queue    TEXT   NOT NULL,
    gate     TEXT   NOT NULL,
    ready_at INTEGER NOT NULL,
    PRIMARY KEY (queue, gate)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_lines_ready ON durably_lines (queue, ready_at);

CREATE TABLE durably_gates (
    name        TEXT PRIMARY KEY,
    concurrency INTEGER,
    rate        REAL,
    burst       REAL NOT NULL,
    tokens      REAL NOT NULL,
    refilled_at INTEGER NOT NULL
) STRICT;

CREATE TABLE durably_permits (
    gate  TEXT   NOT NULL,
    task  TEXT   NOT NULL,
    token INTEGER NOT NULL,
    PRIMARY KEY (gate, task)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_permits_task ON durably_permits (task);

CREATE TABLE durably_sessions (
    id         TEXT   PRIMARY KEY,
    state      TEXT   NOT NULL,
    started_at INTEGER NOT NULL,
    beat_at    INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    host       TEXT   NOT NULL,
    pid        INTEGER NOT NULL,
    info       TEXT   NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_sleepers (
    queue   TEXT NOT NULL,
    session TEXT NOT NULL,
    PRIMARY KEY (queue, session)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_queues (
    name   TEXT PRIMARY KEY,
    state  TEXT NOT NULL,
    cutoff INTEGER
) STRICT;

CREATE TABLE durably_cancel_requests (
    seq    INTEGER PRIMARY KEY,
    task   TEXT   NOT NULL,
    reason TEXT   NOT NULL
) STRICT;
