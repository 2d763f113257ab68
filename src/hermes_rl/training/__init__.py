"""The trainer: trains on batches and serves inference from the newest weights."""
