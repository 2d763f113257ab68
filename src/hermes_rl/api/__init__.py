"""The trajectory API: groups in, batches out, durable in between; server, client, and Atropos-compatible routes."""
