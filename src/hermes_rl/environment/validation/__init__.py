"""Validation: what an environment's own tests and `hermes-rl validate` ask of it."""

from hermes_rl.environment.validation.report import Finding, Report, Severity
from hermes_rl.environment.validation.running import check_environment, run_validation, validate_environment

__all__ = ["Finding", "Report", "Severity", "check_environment", "run_validation", "validate_environment"]
