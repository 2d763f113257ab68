"""The trainer: batches in, better weights out, inference served from the newest ones."""
