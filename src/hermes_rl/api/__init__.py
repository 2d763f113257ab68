"""The trajectory API: groups in, batches out, durable in between; its server, its client, and Atropos' own routes."""
