"""Atropos' own routes over the durable store: what atroposlib 0.4.0's environments and trainers speak to.

Always true: requests, answers and status codes are run-api's wherever run-api's are right; nothing is held between two
requests that the store does not hold, but for a view of the queue that is a moment old.
"""
