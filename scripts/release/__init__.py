"""A release: the two distributions built as they are published, and each way to install them tried."""
