-- A notification becomes routes, each of which is a task. What it says, and to whom, is here.
--
-- notifications  one row for each: what happened, and the key under which it is accepted once
-- routes         which task brings which notification to which recipient, and over which channel
-- digests        the one that is open for a recipient, a kind and a channel
-- throttles      how many a recipient has got of a kind, over a channel, in a window of time
-- preferences    what recipients want, and what not
-- inbox          what recipients see in the application itself

CREATE TABLE durably.notifications (
    id         uuid   PRIMARY KEY,
    namespace  text   NOT NULL,
    kind       text   NOT NULL,
    key        text,
    data       bytea  NOT NULL,
    problem    text,
    created_at bigint NOT NULL
);
CREATE UNIQUE INDEX notifications_key ON durably.notifications (namespace, kind, key) WHERE key IS NOT NULL;
CREATE INDEX notifications_namespace ON durably.notifications (namespace, id);

CREATE TABLE durably.routes (
    id           uuid PRIMARY KEY,
    notification uuid NOT NULL,
    namespace    text NOT NULL,
    recipient    text NOT NULL,
    channel      text NOT NULL,
    digest       uuid
);
CREATE UNIQUE INDEX routes_notification ON durably.routes (notification, recipient, channel);
CREATE INDEX routes_digest ON durably.routes (digest) WHERE digest IS NOT NULL;
CREATE INDEX routes_recipient ON durably.routes (namespace, recipient, notification);

CREATE TABLE durably.digests (
    namespace text   NOT NULL,
    recipient text   NOT NULL,
    kind      text   NOT NULL,
    channel   text   NOT NULL,
    task      uuid   NOT NULL,
    due_at    bigint NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
);

CREATE TABLE durably.throttles (
    namespace text   NOT NULL,
    recipient text   NOT NULL,
    kind      text   NOT NULL,
    channel   text   NOT NULL,
    since     bigint NOT NULL,
    count     int    NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
) WITH (fillfactor = 70);
CREATE INDEX throttles_since ON durably.throttles (namespace, since);

CREATE TABLE durably.preferences (
    namespace text    NOT NULL,
    recipient text    NOT NULL,
    kind      text    NOT NULL,
    channel   text    NOT NULL,
    wanted    boolean NOT NULL,
    PRIMARY KEY (namespace, recipient, kind, channel)
);

CREATE TABLE durably.inbox (
    id           uuid   PRIMARY KEY,
    namespace    text   NOT NULL,
    recipient    text   NOT NULL,
    notification uuid   NOT NULL,
    kind         text   NOT NULL,
    content      bytea  NOT NULL,
    created_at   bigint NOT NULL,
    read_at      bigint,
    archived_at  bigint
);
CREATE INDEX inbox_recipient ON durably.inbox (namespace, recipient, notification);
CREATE INDEX inbox_unread ON durably.inbox (namespace, recipient) WHERE read_at IS NULL AND archived_at IS NULL;
CREATE INDEX inbox_notification ON durably.inbox (notification, recipient);
CREATE INDEX inbox_read ON durably.inbox (namespace, read_at) WHERE read_at IS NOT NULL;
