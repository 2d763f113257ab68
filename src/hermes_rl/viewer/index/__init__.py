"""A SQLite index over the groups of a file or store: rows for paging and filtering, and full-text search."""
