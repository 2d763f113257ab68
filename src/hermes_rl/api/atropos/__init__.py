"""Routes compatible with Atropos' run-api, over the durable store, for environments and trainers of atroposlib 0.4.0.

Requests, responses and status codes match run-api wherever run-api is correct. The only state outside the store is a
short-lived cache of the queue status.
"""
