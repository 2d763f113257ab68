"""A run's processes: started in order, kept, restarted, ended in reverse, and never left behind."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hermes_rl.runs.supervision.starting import await_phase, resume_run, start_run, stop_run

__all__ = ["await_phase", "resume_run", "start_run", "stop_run"]


def __getattr__(name: str) -> Any:
    # Keepers are of this package too, and shall be small.
    if name in __all__:
        return getattr(import_module("hermes_rl.runs.supervision.starting"), name)
    raise AttributeError(name)
