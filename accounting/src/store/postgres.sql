-- The ledgers of a fleet, version 3. As the file's (sqlite.sql), with one row per GPU of every node.
CREATE TABLE gpu (
    gpu_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    node TEXT COLLATE "C" NOT NULL,
    gpu TEXT COLLATE "C" NOT NULL,
    model TEXT NOT NULL,
    anchor_seq BIGINT NOT NULL,
    anchor_digest BYTEA NOT NULL,
    kept_from_ns BIGINT NOT NULL,
    UNIQUE (node, gpu)
);
CREATE TABLE tenant (
    tenant_key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    account TEXT
);
CREATE TABLE entry (
    gpu_key BIGINT NOT NULL REFERENCES gpu,
    seq BIGINT NOT NULL,
    boot BYTEA NOT NULL,
    start_ns BIGINT NOT NULL,
    end_ns BIGINT NOT NULL,
    from_ns BIGINT NOT NULL,
    length_ns BIGINT NOT NULL,
    gap TEXT,
    digest BYTEA NOT NULL,
    PRIMARY KEY (gpu_key, seq)
);
CREATE INDEX entry_start ON entry (gpu_key, start_ns);
CREATE TABLE usage (
    gpu_key BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    tenant_key BIGINT NOT NULL REFERENCES tenant,
    id BYTEA NOT NULL,
    engine_ns BIGINT NOT NULL,
    estimated_ns BIGINT NOT NULL,
    fault_ns BIGINT NOT NULL,
    copy_ns BIGINT NOT NULL,
    copy_bytes BIGINT,
    held_ns BIGINT NOT NULL,
    waiting_ns BIGINT NOT NULL,
    memory_byte_ns NUMERIC(39),
    weight BIGINT NOT NULL,
    quota_ns BIGINT,
    period_ns BIGINT,
    signals BIGINT NOT NULL,
    error_bound_ns BIGINT NOT NULL,
    turns BIGINT NOT NULL,
    metadata_key BIGINT,
    PRIMARY KEY (gpu_key, seq, tenant_key)
);
CREATE TABLE engine (
    gpu_key BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    engine BIGINT NOT NULL,
    compute BOOLEAN NOT NULL,
    used_ns BIGINT NOT NULL,
    fault_ns BIGINT NOT NULL,
    switching_ns BIGINT NOT NULL,
    idle_ns BIGINT NOT NULL,
    unobserved_ns BIGINT NOT NULL,
    gap_ns BIGINT NOT NULL,
    error_bound_ns BIGINT NOT NULL,
    PRIMARY KEY (gpu_key, seq, engine)
);
CREATE TABLE ledger_version (version BIGINT NOT NULL);
INSERT INTO ledger_version VALUES (3);
