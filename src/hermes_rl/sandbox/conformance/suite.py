"""The conformance suite: every promise of the sandbox protocol, tried on a backend, one after the other.

Always true: a failure never stops the suite, and neither does a backend that hangs: every check has a deadline, and
what does not heed its cancellation is left behind.
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

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance import background, files, isolation, lifetime, limits, running, starting, timeouts
from hermes_rl.sandbox.conformance.check import BrokenPromiseError, Check, NotClaimedError, Trial
from hermes_rl.sandbox.protocol import Backend

GROUPS = (
    starting.GROUP,
    running.GROUP,
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


class _Trouble(StrEnum):
    """What makes it pointless to go on, when it happens so often in a row."""

    START = "no sandbox could be started"
    HANG = "the backend hung"


_ENOUGH = {_Trouble.START: 3, _Trouble.HANG: 15}


class _HangsError(BrokenPromiseError):
    pass


class Outcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_CLAIMED = "not_claimed"


@dataclass(frozen=True, slots=True)
class Row:
    """What came of one check. `message` says what was seen, or why there was nothing to try."""

    group: str
    name: str
    description: str
    outcome: Outcome
    seconds: float
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    backend: str
    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> list[Row]:
        return [row for row in self.rows if row.outcome == Outcome.FAILED]

    def count(self, outcome: Outcome) -> int:
        return sum(row.outcome == outcome for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        counts = {str(outcome): self.count(outcome) for outcome in Outcome}
        rows = [asdict(row) | {"outcome": str(row.outcome)} for row in self.rows]
        return {"backend": self.backend, "passed": self.passed, "counts": counts, "rows": rows}


Progress = Callable[[Check, Row | None], object]


def selected(only: str | None = None) -> list[Check]:
    """The checks whose group, name or description has this text in it; ConfigError when there are none."""
    wanted = (only or "").lower()
    found = [one for one in CHECKS if wanted in f"{one.group} {one.name} {one.description}".lower()]
    if not found:
        groups = ", ".join(group.name for group in GROUPS)
        raise ConfigError(f"no check has {only!r} in its name or description; the groups are {groups}")
    return found


async def check_backend(
    backend: Backend,
    *,
    image: str | None = None,
    progress: Progress | None = None,
    only: str | None = None,
    patience: float = 1.0,
    ledger: Path | None = None,
) -> Report:
    """Try every promise, or those that `only` selects. The backend stays open; what the checks started is closed.

    `image` is the one that every sandbox starts from. `progress` hears of each check before it, with None, and after
    it. `patience` stretches the deadlines for a backend that is slow. `ledger` is where the backend keeps its own
    when it is not in the usual place.
    """
    report = Report(getattr(backend, "name", type(backend).__name__))
    await _acquaint(Trial(backend, image, ledger), patience)
    in_a_row = Counter[_Trouble]()
    for check in selected(only):
        if progress is not None:
            progress(check, None)
        began = time.monotonic()
        given_up = next((f"{kind} in the checks before" for kind in _Trouble if in_a_row[kind] >= _ENOUGH[kind]), "")
        attempt = _Attempt(check, Trial(backend, image, ledger), patience, given_up)
        outcome, message = await attempt.outcome()
        if attempt.trouble is not None:
            in_a_row[attempt.trouble] += 1
        elif outcome != Outcome.NOT_CLAIMED and not given_up:
            in_a_row.clear()
        seconds = round(time.monotonic() - began, 3)
        row = Row(check.group, check.name, check.description, outcome, seconds, message)
        report.rows.append(row)
        if progress is not None:
            progress(check, row)
    return report


async def _acquaint(trial: Trial, patience: float) -> None:
    """Some backends know what they hold only once they have started a sandbox; what fails here fails in a check too."""
    with suppress(Exception):
        sandbox = await _in_time(trial.start(), START_DEADLINE * patience, "the start of a sandbox")
        await _in_time(sandbox.close(), DEADLINE * patience, "closing the sandbox")


class _Attempt:
    """One check: its start, itself, and the closing of what it started, each within its time."""

    def __init__(self, check: Check, trial: Trial, patience: float, given_up: str) -> None:
        self._check = check
        self._trial = trial
        self._patience = patience
        self._given_up = given_up
        self.trouble: _Trouble | None = None

    async def outcome(self) -> tuple[Outcome, str]:
        if not self._check.claimed(self._trial.can):
            return Outcome.NOT_CLAIMED, f"the backend does not claim {self._check.claims}"
        error = await self._error()
        if isinstance(error, _HangsError):
            self.trouble = self.trouble or _Trouble.HANG
        if error is None:
            return Outcome.PASSED, ""
        if isinstance(error, NotClaimedError):
            return Outcome.NOT_CLAIMED, str(error)
        if isinstance(error, BrokenPromiseError):
            return Outcome.FAILED, str(error)
        cause = f" ({error.cause})" if isinstance(error, SandboxError) else ""
        return Outcome.FAILED, f"{type(error).__name__}{cause}: {error}"

    async def _error(self) -> Exception | None:
        """What the check raised, else what closing did."""
        raised: list[Exception] = []
        try:
            await self._body()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, its check failed and the suite goes on
            raised.append(error)
        for sandbox in self._trial.started:
            try:
                await _in_time(sandbox.close(), DEADLINE * self._patience, "closing the sandbox")
            except Exception as error:  # noqa: BLE001 - as above
                raised.append(error)
        return raised[0] if raised else None

    async def _body(self) -> None:
        check, trial = self._check, self._trial
        if self._given_up:
            raise BrokenPromiseError(f"not tried: {self._given_up}")
        if check.on_backend is not None:
            # It starts its own, so it has that time too.
            await _in_time(check.on_backend(trial), (DEADLINE + START_DEADLINE) * self._patience, "the check")
        if check.on_sandbox is not None:
            self.trouble = _Trouble.START
            sandbox = await _in_time(trial.start(), START_DEADLINE * self._patience, "the start of a sandbox")
            self.trouble = None
            await _in_time(check.on_sandbox(sandbox), DEADLINE * self._patience, "the check")


async def _in_time(work: Awaitable[Any], deadline: float, what: str) -> Any:
    task = asyncio.ensure_future(work)
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
    raise _HangsError(f"{what} did not end within {deadline:g} s: the backend hangs, or needs more patience")
