"""The API's own routes, under /v1 and beside it: each file is one party's."""
