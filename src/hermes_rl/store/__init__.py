"""What is finished is kept: records on disk today; the durable store of groups joins them here."""
