-- The open window of each GPU. Came later than version 2 of the tables, which knows nothing of it and is not disturbed.
CREATE TABLE IF NOT EXISTS draft (
    node TEXT COLLATE "C" NOT NULL,
    gpu TEXT COLLATE "C" NOT NULL,
    after BYTEA NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (node, gpu)
);
