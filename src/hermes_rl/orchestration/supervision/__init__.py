"""Supervision of a run's processes: start in order, restart on failure, stop in reverse, leave nothing running."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_rl.orchestration.supervision.commands import await_phase, resume_run, start_run, stop_run

__all__ = ["await_phase", "resume_run", "start_run", "stop_run"]


def __getattr__(name: str) -> Any:
    # Lazy: shims import this package too and must stay small.
    if name in __all__:
        return getattr(import_module("hermes_rl.orchestration.supervision.commands"), name)
    raise AttributeError(name)
