"""The durable store of groups on SQLite or PostgreSQL: add, lease, acknowledge, look up."""
