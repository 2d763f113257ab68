"""The public conformance suite: `hermes-rl sandbox check BACKEND` shows that a backend keeps its promises."""

from hermes_rl.sandbox.conformance.check import Check
from hermes_rl.sandbox.conformance.suite import CHECKS, GROUPS, Outcome, Report, Row, check_backend, selected

__all__ = ["CHECKS", "GROUPS", "Check", "Outcome", "Report", "Row", "check_backend", "selected"]
