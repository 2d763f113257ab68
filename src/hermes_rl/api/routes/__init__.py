"""The native routes of the API, one file per kind of caller."""
