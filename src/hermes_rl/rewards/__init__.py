"""Scoring: the door into the sandbox, judges, tests, composition, and what keeps rewards that block off the loop."""
