-- What operators set. Came later than version 1 of the tables, which knows nothing of it and is not disturbed.
CREATE TABLE IF NOT EXISTS setting_change (
    request BLOB NOT NULL PRIMARY KEY,
    at_ns INTEGER NOT NULL,
    node TEXT NOT NULL,
    boot BLOB NOT NULL,
    actor TEXT NOT NULL,
    tenant TEXT NOT NULL,
    part TEXT NOT NULL,
    old TEXT NOT NULL,
    new TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS setting_change_at ON setting_change (at_ns);
