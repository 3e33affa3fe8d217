-- A mail is a message to a transport. What only mails have is here.
--
-- mails         one row per mail: what it is about, and the key under which it is accepted once
-- suppressions  addresses that get no mail, or none of a category
-- templates     every version of every template that is kept here

CREATE TABLE durably.mails (
    id         uuid   PRIMARY KEY,
    namespace  text   NOT NULL,
    created_at bigint NOT NULL,
    key        text,
    about      bytea  NOT NULL
);
CREATE UNIQUE INDEX mails_key ON durably.mails (namespace, key) WHERE key IS NOT NULL;
CREATE INDEX mails_namespace ON durably.mails (namespace, id);

CREATE TABLE durably.suppressions (
    namespace  text   NOT NULL,
    address    text   NOT NULL,
    category   text   NOT NULL,
    cause      text   NOT NULL,
    note       text   NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (namespace, address, category)
);

CREATE TABLE durably.templates (
    namespace  text   NOT NULL,
    name       text   NOT NULL,
    locale     text   NOT NULL,
    version    int    NOT NULL,
    source     text   NOT NULL,
    created_at bigint NOT NULL,
    PRIMARY KEY (namespace, name, locale, version)
);
