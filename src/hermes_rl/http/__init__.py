"""Shared by all our HTTP servers: listening, authentication, body limits, errors, metrics and traces."""
