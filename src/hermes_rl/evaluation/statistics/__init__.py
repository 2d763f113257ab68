"""Estimates and confidence intervals for `evaluate` and `compare`.

Items are the independent units; the samples of one item are not. Standard library only, and the same scores always give
the same result. docs/statistics.md has the reasons and the measured coverage.
"""
