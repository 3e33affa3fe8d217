-- A notification becomes routes, each of which is a task. What it says, and to whom, is here.
--
-- notifications  one row for each: what happened, and the key under which it is accepted once
-- routes         which task brings which notification to which recipient, and over which channel
-- digests        the one that is open for a recipient, a kind and a channel
-- throttles      how many a recipient has got of a kind, over a channel, in a window of time
-- preferences    what recipients want, and what not
-- inbox          what recipients see in the application itself

CREATE TABLE durably_notifications (
    id         TEXT    PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    key        TEXT,
    data       BLOB    NOT NULL,
    problem    TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX durably_notifications_key ON durably_notifications (namespace, kind, key) WHERE key IS NOT NULL;
CREATE INDEX durably_notifications_namespace ON durably_notifications (namespace, id);

CREATE TABLE durably_routes (
    id           TEXT PRIMARY KEY,
    notification TEXT NOT NULL,
    namespace    TEXT NOT NULL,
    recipient    TEXT NOT NULL,
    channel      TEXT NOT NULL,
    digest       TEXT
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX durably_routes_notification ON durably_routes (notification, recipient, channel);
CREATE INDEX durably_routes_digest ON durably_routes (digest) WHERE digest IS NOT NULL;
CREATE INDEX durably_routes_recipient ON durably_routes (namespace, recipient, notification);

CREATE TABLE durably_digests (
    namespace TEXT    NOT NULL,
    recipient TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    channel   TEXT    NOT NULL,
    task      TEXT    NOT NULL,
    due_at    INTEGER NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_throttles (
    namespace TEXT    NOT NULL,
    recipient TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    channel   TEXT    NOT NULL,
    since     INTEGER NOT NULL,
    count     INTEGER NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_throttles_since ON durably_throttles (namespace, since);

CREATE TABLE durably_preferences (
    namespace TEXT    NOT NULL,
    recipient TEXT    NOT NULL,
    kind      TEXT    NOT NULL,
    channel   TEXT    NOT NULL,
    wanted    INTEGER NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_inbox (
    id           TEXT    PRIMARY KEY,
    namespace    TEXT    NOT NULL,
    recipient    TEXT    NOT NULL,
    notification TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    content      BLOB    NOT NULL,
    created_at   INTEGER NOT NULL,
    read_at      INTEGER,
    archived_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_inbox_recipient ON durably_inbox (namespace, recipient, notification);
CREATE INDEX durably_inbox_unread ON durably_inbox (namespace, recipient) WHERE read_at IS NULL AND archived_at IS NULL;
CREATE INDEX durably_inbox_notification ON durably_inbox (notification, recipient);
CREATE INDEX durably_inbox_read ON durably_inbox (namespace, read_at) WHERE read_at IS NOT NULL;
