-- A mail is a message to a transport. What only mails have is here.
--
-- mails         one row per mail: what it is about, and the key under which it is accepted once
-- suppressions  addresses that get no mail, or none of a category
-- templates     every version of every template that is kept here

CREATE TABLE durably_mails (
    id         TEXT    PRIMARY KEY,
    namespace  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    key        TEXT,
    about      BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX durably_mails_key ON durably_mails (namespace, key) WHERE key IS NOT NULL;
CREATE INDEX durably_mails_namespace ON durably_mails (namespace, id);

CREATE TABLE durably_suppressions (
    namespace  TEXT    NOT NULL,
    address    TEXT    NOT NULL,
    category   TEXT    NOT NULL,
    cause      TEXT    NOT NULL,
    note       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, address, category)
) STRICT, WITHOUT ROWID;

CREATE TABLE durably_templates (
    namespace  TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    locale     TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    source     TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (namespace, name, locale, version)
) STRICT, WITHOUT ROWID;
