"""Storage of finished groups: JSONL records, the binary format, and the durable database."""
