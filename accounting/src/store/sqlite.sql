-- The ledger, version 3. Times are nanoseconds; *_ns of `entry` but from_ns and length_ns are since 1970 (UTC).
CREATE TABLE gpu (
    gpu_key INTEGER PRIMARY KEY,
    node TEXT NOT NULL,
    gpu TEXT NOT NULL,
    model TEXT NOT NULL,
    anchor_seq INTEGER NOT NULL,
    anchor_digest BLOB NOT NULL,
    kept_from_ns INTEGER NOT NULL,
    UNIQUE (node, gpu)
) STRICT;
CREATE TABLE tenant (
    tenant_key INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- Name of its account; null in what version 1 wrote.
    account TEXT,
    -- The run that wrote of it last: with the last entry of that run it may go.
    boot BLOB NOT NULL
) STRICT;
-- A window if gap is null.
CREATE TABLE entry (
    gpu_key INTEGER NOT NULL REFERENCES gpu,
    seq INTEGER NOT NULL,
    boot BLOB NOT NULL,
    start_ns INTEGER NOT NULL,
    end_ns INTEGER NOT NULL,
    from_ns INTEGER NOT NULL,
    length_ns INTEGER NOT NULL,
    gap TEXT,
    digest BLOB NOT NULL,
    PRIMARY KEY (gpu_key, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX entry_start ON entry (gpu_key, start_ns);
CREATE TABLE usage (
    gpu_key INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    tenant_key INTEGER NOT NULL REFERENCES tenant,
    id BLOB NOT NULL,
    engine_ns INTEGER NOT NULL,
    estimated_ns INTEGER NOT NULL,
    fault_ns INTEGER NOT NULL,
    copy_ns INTEGER NOT NULL,
    copy_bytes INTEGER,
    held_ns INTEGER NOT NULL,
    waiting_ns INTEGER NOT NULL,
    memory_byte_ns TEXT,
    weight INTEGER NOT NULL,
    quota_ns INTEGER,
    period_ns INTEGER,
    signals INTEGER NOT NULL,
    error_bound_ns INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    -- Null without metadata, and in what earlier versions wrote.
    metadata_key INTEGER,
    PRIMARY KEY (gpu_key, seq, tenant_key)
) STRICT, WITHOUT ROWID;
CREATE TABLE engine (
    gpu_key INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    engine INTEGER NOT NULL,
    compute INTEGER NOT NULL,
    used_ns INTEGER NOT NULL,
    fault_ns INTEGER NOT NULL,
    switching_ns INTEGER NOT NULL,
    idle_ns INTEGER NOT NULL,
    unobserved_ns INTEGER NOT NULL,
    gap_ns INTEGER NOT NULL,
    error_bound_ns INTEGER NOT NULL,
    PRIMARY KEY (gpu_key, seq, engine)
) STRICT, WITHOUT ROWID;
