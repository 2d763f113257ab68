"""Load an environment class from a name or a file."""
