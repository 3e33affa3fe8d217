-- A delivery is a task: its row is in `tasks`, then in `history`. What it delivers, and to whom, is here.
--
-- destinations  one row per peer: its address, its rules, and what it has shown of itself lately
-- messages      each stored once, however many are to get it
-- deliveries    which task brings which message to which destination
-- lines         that of a destination is held back until a moment, whatever its limit says

CREATE TABLE durably.destinations (
    namespace  text   NOT NULL,
    name       text   NOT NULL,
    channel    text   NOT NULL,
    address    text   NOT NULL,
    rules      text   NOT NULL,
    condition  text   NOT NULL,
    standing   text   NOT NULL,
    secrets    bytea,
    version    bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 70);

CREATE TABLE durably.messages (
    id           uuid   PRIMARY KEY,
    created_at   bigint NOT NULL,
    kind         text   NOT NULL,
    sender       text,
    content_type text   NOT NULL,
    headers      text   NOT NULL,
    body         bytea  NOT NULL
);

CREATE TABLE durably.deliveries (
    message     uuid NOT NULL,
    namespace   text NOT NULL,
    destination text NOT NULL,
    task        uuid NOT NULL,
    PRIMARY KEY (message, namespace, destination)
);
CREATE INDEX deliveries_destination ON durably.deliveries (namespace, destination, task);

ALTER TABLE durably.lines ADD COLUMN held_until bigint NOT NULL DEFAULT 0;
