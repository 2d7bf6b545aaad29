-- Metadata of tenants, each content once, as JSON; usage refers to it where it is not empty.
CREATE TABLE IF NOT EXISTS metadata (
    metadata_key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    content TEXT NOT NULL,
    -- The run that wrote of it last, as of a tenant.
    boot BLOB NOT NULL
) STRICT;
