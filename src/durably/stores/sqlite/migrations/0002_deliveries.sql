-- A delivery is a task: its row is in `tasks`, then in `history`. What it delivers, and to whom, is here.
--
-- destinations  one row per peer: its address, its rules, and what it has shown of itself lately
-- messages      each stored once, however many are to get it
-- deliveries    which task brings which message to which destination
-- lines         that of a destination is held back until a moment, whatever its limit says

CREATE TABLE durably_destinations (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    channel    TEXT    NOT NULL,
    address    TEXT    NOT NULL,
    rules      TEXT    NOT NULL,
    condition  TEXT    NOT NULL,
    standing   TEXT    NOT NULL,
    secrets    BLOB,
    version    INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_messages (
    id           TEXT    PRIMARY KEY,
    created_at   INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    sender       TEXT,
    content_type TEXT    NOT NULL,
    headers      TEXT    NOT NULL,
    body         BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_deliveries (
    message     TEXT NOT NULL,
    namespace   TEXT NOT NULL,
    destination TEXT NOT NULL,
    task        TEXT NOT NULL,
    PRIMARY KEY (message, namespace, destination)
) STRICT, WITHOUT ROWID;
CREATE INDEX durably_deliveries_destination ON durably_deliveries (namespace, destination, task);

ALTER TABLE durably_lines ADD COLUMN held_until INTEGER NOT NULL DEFAULT 0;
