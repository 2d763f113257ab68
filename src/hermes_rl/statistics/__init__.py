"""The numbers that `evaluate` and `compare` report, and how sure they are.

Items are the independent units; the samples of one item are not. Nothing here draws on more than the standard library,
and the same scores always give the same numbers. docs/statistics.md has the reasons and the measured coverage.
"""

from hermes_rl.statistics.intervals import Bounds, Interval, mean_interval
from hermes_rl.statistics.paired import Comparison, compare
from hermes_rl.statistics.passes import PassRate, pass_at_k, pass_hat_k

__all__ = [
    "Bounds",
    "Comparison",
    "Interval",
    "PassRate",
    "compare",
    "mean_interval",
    "pass_at_k",
    "pass_hat_k",
]
