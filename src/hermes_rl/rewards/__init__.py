"""Rewards: sandbox access, judges, test cases, composition, and running blocking rewards off the event loop."""
