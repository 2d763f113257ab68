"""The sandbox backends, one file each, and their registry."""
