"""The conformance suite: runs every check of the sandbox protocol on a backend, one after the other.

Always true: neither a failure nor a hanging backend stops the suite. Every check has a deadline, and a task that
ignores its cancellation is abandoned.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance import background, commands, files, isolation, lifetime, limits, startup, timeouts
from hermes_rl.sandbox.conformance.check import Check, CheckContext, CheckFailedError, NotClaimedError
from hermes_rl.sandbox.protocol import Backend

GROUPS = (
    startup.GROUP,
    commands.GROUP,
    timeouts.GROUP,
    background.GROUP,
    files.GROUP,
    isolation.GROUP,
    limits.GROUP,
    lifetime.GROUP,
)
CHECKS: tuple[Check, ...] = tuple(check for group in GROUPS for check in group.checks)

DEADLINE = 30.0
START_DEADLINE = 60.0
_CANCEL_TIME = 5.0


class _RepeatedFailure(StrEnum):
    """Failures that end the suite when they repeat without a pass in between."""

    START = "no sandbox could be started"
    HANG = "the backend hung"


_GIVE_UP_AFTER = {_RepeatedFailure.START: 3, _RepeatedFailure.HANG: 15}


class _HangError(CheckFailedError):
    pass


class CheckOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not_claimed"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check. `message` says what was observed, or why there was nothing to check."""

    group: str
    name: str
    description: str
    outcome: CheckOutcome
    seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class ConformanceReport:
    backend: str
    rows: list[CheckResult] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[CheckResult]:
        return [row for row in self.rows if row.outcome == CheckOutcome.FAILED]

    def count(self, outcome: CheckOutcome) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        counts = {str(outcome): self.count(outcome) for outcome in CheckOutcome}
        rows = [asdict(row) | {"outcome": str(row.outcome)} for row in self.rows]
        return {"backend": self.backend, "passed": self.passed, "counts": counts, "rows": rows}


Progress = Callable[[Check, CheckResult | None], object]


def select_checks(only: str | None = None) -> list[Check]:
    """The checks whose group, name or description contains this text; ConfigError if there are none."""
    text = (only or "").lower()
    checks = [each for each in CHECKS if text in f"{each.group} {each.name} {each.description}".lower()]
    if not checks:
        groups = ", ".join(group.name for group in GROUPS)
        raise ConfigError(f"no check has {only!r} in its name or description; the groups are {groups}")
    return checks


async def check_backend(
    backend: Backend,
    *,
    image: str | None = None,
    progress: Progress | None = None,
    only: str | None = None,
    patience: float = 1.0,
    ledger: Path | None = None,
) -> ConformanceReport:
    """Run all checks, or those that `only` selects. The backend stays open; sandboxes of the checks are closed.

    Every sandbox starts from `image`. `progress` is called before each check, with None, and after it, with its result.
    `patience` multiplies the deadlines for a slow backend. `ledger` is the backend's ledger directory if it is not the
    default.
    """
    report = ConformanceReport(getattr(backend, "name", type(backend).__name__))
    await _warm_up(CheckContext(backend, image, ledger), patience)
    failures_in_a_row = Counter[_RepeatedFailure]()
    for check in select_checks(only):
        if progress is not None:
            progress(check, None)
        began = time.monotonic()
        skip_reason = next(
            (
                f"{kind} in the checks before"
                for kind in _RepeatedFailure
                if failures_in_a_row[kind] >= _GIVE_UP_AFTER[kind]
            ),
            "",
        )
        check_run = _CheckRun(check, CheckContext(backend, image, ledger), patience, skip_reason)
        outcome, message = await check_run.outcome()
        if check_run.failure_kind is not None:
            failures_in_a_row[check_run.failure_kind] += 1
        elif outcome != CheckOutcome.NOT_CLAIMED and not skip_reason:
            failures_in_a_row.clear()
        seconds = round(time.monotonic() - began, 3)
        result = CheckResult(check.group, check.name, check.description, outcome, seconds, message)
        report.rows.append(result)
        if progress is not None:
            progress(check, result)
    return report


async def _warm_up(context: CheckContext, patience: float) -> None:
    """Some backends know their capabilities only after the first start. A failure here also fails in a check."""
    with suppress(Exception):
        sandbox = await _with_deadline(context.start(), START_DEADLINE * patience, "the start of a sandbox")
        await _with_deadline(sandbox.close(), DEADLINE * patience, "closing the sandbox")


class _CheckRun:
    """One check: start, body and cleanup, each with a deadline."""

    def __init__(self, check: Check, context: CheckContext, patience: float, skip_reason: str) -> None:
        self._check = check
        self._trial = context
        self._patience = patience
        self._skip_reason = skip_reason
        self.failure_kind: _RepeatedFailure | None = None

    async def outcome(self) -> tuple[CheckOutcome, str]:
        if not self._check.claimed(self._trial.capabilities):
            return CheckOutcome.NOT_CLAIMED, f"the backend does not claim {self._check.claims}"
        error = await self._error()
        if isinstance(error, _HangError):
            self.failure_kind = self.failure_kind or _RepeatedFailure.HANG
        if error is None:
            return CheckOutcome.PASSED, ""
        if isinstance(error, NotClaimedError):
            return CheckOutcome.NOT_CLAIMED, str(error)
        if isinstance(error, CheckFailedError):
            return CheckOutcome.FAILED, str(error)
        cause = f" ({error.cause})" if isinstance(error, SandboxError) else ""
        return CheckOutcome.FAILED, f"{type(error).__name__}{cause}: {error}"

    async def _error(self) -> Exception | None:
        """The exception of the check, else that of closing its sandboxes."""
        raised: list[Exception] = []
        try:
            await self._body()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, the check failed and the suite continues
            raised.append(error)
        for sandbox in self._trial.started:
            try:
                await _with_deadline(sandbox.close(), DEADLINE * self._patience, "closing the sandbox")
            except Exception as error:  # noqa: BLE001 - as above
                raised.append(error)
        return raised[0] if raised else None

    async def _body(self) -> None:
        check, context = self._check, self._trial
        if self._skip_reason:
            raise CheckFailedError(f"not tried: {self._skip_reason}")
        if check.on_backend is not None:
            # It starts its own sandboxes, so it gets that time too.
            await _with_deadline(check.on_backend(context), (DEADLINE + START_DEADLINE) * self._patience, "the check")
        if check.on_sandbox is not None:
            self.failure_kind = _RepeatedFailure.START
            sandbox = await _with_deadline(context.start(), START_DEADLINE * self._patience, "the start of a sandbox")
            self.failure_kind = None
            await _with_deadline(check.on_sandbox(sandbox), DEADLINE * self._patience, "the check")


async def _with_deadline(awaitable: Awaitable[Any], deadline: float, what: str) -> Any:
    task = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait([task], timeout=deadline)
    except asyncio.CancelledError:
        task.cancel()
        raise
    if done:
        return task.result()
    task.cancel()
    await asyncio.wait([task], timeout=min(_CANCEL_TIME, deadline))
    task.add_done_callback(lambda late: late.cancelled() or late.exception())
    raise _HangError(f"{what} did not end within {deadline:g} s: the backend hangs, or needs more patience")
