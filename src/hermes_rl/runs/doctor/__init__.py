"""`hermes-rl doctor`: what a run needs of this machine, what is missing, and the line that mends it."""

from hermes_rl.runs.doctor.examination import CHECKS, Check, examination, examine
from hermes_rl.runs.doctor.finding import Finding, State, healthy

__all__ = ["CHECKS", "Check", "Finding", "State", "examination", "examine", "healthy"]
