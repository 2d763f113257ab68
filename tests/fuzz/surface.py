"""What is fuzzed: a surface takes bytes from outside, and either accepts or refuses them.

Always true: an input that makes it fail is a Defect with a kind; the same defect has the same key, whatever the input.
"""

import linecache
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

CASES = Path(__file__).parent / "cases"
# CPU time of one input. The slowest valid one takes milliseconds.
HANG_SECONDS = 10.0
# Executions between two looks at the clock.
BATCH = 200


class Kind(StrEnum):
    CRASH = "crash"
    HANG = "hang"
    SERVER_ERROR = "5xx"


class DefectError(Exception):
    """What an input did. `key` names the place in the code."""

    def __init__(self, kind: Kind, key: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.key = key


class NotSentError(Exception):
    """The input cannot be sent at all, and was not executed."""


Run = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Surface:
    """`open` gives the function that executes one input, and closes what that needs.

    The function raises DefectError.
    """

    name: str
    inputs: Callable[[], st.SearchStrategy[bytes]]
    open: Callable[[], AbstractContextManager[Run]]

    @property
    def cases(self) -> dict[str, bytes]:
        """Inputs that failed once, by the name of their file."""
        return {path.name: case_from_text(path.read_text()) for path in sorted((CASES / self.name).glob("*"))}


def case_to_text(data: bytes) -> str:
    """Bytes as text: the repository holds no binary files."""
    return data.decode("latin-1").encode("unicode_escape").decode() + "\n"


def case_from_text(text: str) -> bytes:
    return text.removesuffix("\n").encode().decode("unicode_escape").encode("latin-1")


@dataclass(slots=True)
class Findings:
    executions: int = 0
    defects: dict[str, tuple[DefectError, bytes]] = field(default_factory=dict)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))


def fuzz(
    surface: Surface, run: Run, found: Findings, number: int, go_on: Callable[[], bool], examples: int = BATCH
) -> None:
    """Execute new inputs, the same for the same `number`, while `go_on`."""

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(surface.inputs())
    def one(data: bytes) -> None:
        if not go_on():
            return
        try:
            run(data)
        except NotSentError:
            return
        except DefectError as defect:
            found.counts[defect.kind] += 1
            found.defects.setdefault(defect.key, (defect, data))
        found.executions += 1

    one()


def reader(read: Callable[[bytes], object], refusals: tuple[type[Exception], ...]) -> Run:
    """Execute a reader in this process: it returns, or raises one of `refusals`; anything else is a defect."""

    def run(data: bytes) -> None:
        try:
            with _cpu_limit(HANG_SECONDS):
                read(data)
        except refusals:
            return
        except _TooLongError as error:
            raise DefectError(
                Kind.HANG, f"hang at {_place(error)}", f"{HANG_SECONDS:g} s of CPU at {_place(error)}"
            ) from None
        except Exception as error:
            place = f"{type(error).__name__} at {_place(error)}"
            raise DefectError(Kind.CRASH, place, f"{place}: {str(error)[:300]}") from error

    return run


class _TooLongError(BaseException):
    pass


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooLongError

    before: Any = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _place(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "hermes_rl" in frame.filename] or frames
    path = ours[-1].filename.rpartition("hermes_rl/")[2]
    return f"{path}:{ours[-1].name}: {linecache.getline(ours[-1].filename, ours[-1].lineno or 0).strip()}"


def shrink(run: Run, data: bytes, key: str, executions: int = 400) -> bytes:
    """A shorter input with the same defect, by leaving parts out."""
    size = len(data) // 2
    while size and executions > 0:
        at = 0
        while at < len(data) and executions > 0:
            shorter = data[:at] + data[at + size :]
            executions -= 1
            if _key(run, shorter) == key:
                data = shorter
            else:
                at += size
        size //= 2
    return data


def _key(run: Run, data: bytes) -> str | None:
    try:
        run(data)
    except DefectError as defect:
        return defect.key
    except NotSentError:
        return None
    return None


@contextmanager
def opened(run: Run) -> Iterator[Run]:
    """A surface that needs nothing."""
    yield run
