"""Clients of the trajectory API: environments deliver groups, trainers lease batches."""
