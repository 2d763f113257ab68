"""The context of one caller of the tools: its session, and the functions that the tools call.

Always true: nothing is global. Callers with different sessions see the same runs, and never each other's draft.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.inference_test.runner import run_test as test_inference
from hermes_rl.orchestration.status.results import results
from hermes_rl.orchestration.status.run_list import list_runs
from hermes_rl.orchestration.status.status import status
from hermes_rl.orchestration.supervision import resume_run, start_run, stop_run

ProgressCallback = Callable[[float, float, str], Awaitable[None]]
"""Called with the amount done, the total, and a message."""


async def no_progress(done: float, total: float, message: str) -> None:
    """Discard progress reports."""


@dataclass(frozen=True, slots=True)
class RunFunctions:
    """The operations on runs; replaceable in tests."""

    start: Callable[..., str] = start_run
    stop: Callable[[str], None] = stop_run
    resume: Callable[[str], None] = resume_run
    status: Callable[..., dict[str, Any]] = status
    results: Callable[[str], dict[str, Any]] = results
    list_runs: Callable[[], list[dict[str, Any]]] = list_runs
    test_inference: Callable[..., Awaitable[dict[str, Any]]] = test_inference


@dataclass(frozen=True, slots=True)
class CallerContext:
    session: str = "default"
    runs: RunFunctions = field(default_factory=RunFunctions)
    progress: ProgressCallback = no_progress
    allowed_files: AllowedFiles | None = None
    """The files that this caller may have loaded; None for any."""
