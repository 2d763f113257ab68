"""The numbers that `evaluate` and `compare` report, and how sure they are.

Items are the independent units; the samples of one item are not. Nothing here draws on more than the standard library,
and the same scores always give the same numbers. docs/statistics.md has the reasons and the measured coverage.
"""
