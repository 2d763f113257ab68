"""The watchdog: which function held the event loop, and with it every other rollout, for over 100 ms.

A thread watches the loop's heartbeat and, when it is late, looks at the stack of the loop's thread. Always true: a
place is named only when one and the same callback was seen there for the time; a loop that was late because the
machine was busy, or because of many short callbacks, is counted as nobody's.
"""

import ast
import asyncio
import inspect
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

# Heartbeats within one limit, and looks within one once the heart is late: many beats cost, many looks are sure.
BEATS, LOOKS = 4, 10
# After so many seconds it is said while the loop is still held: it may never end.
STUCK = 5.0

_PACKAGE = Path(__file__).resolve().parents[1]
_BUNDLED = f"{_PACKAGE / 'bundled'}{os.sep}"
_NOT_THE_AUTHORS = (
    f"{_PACKAGE}{os.sep}",
    *sorted({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib", "purelib", "platlib")}),
)
_LOOPS_OWN = {"_run_once", "run_forever", "run_until_complete"}


@dataclass(frozen=True, slots=True)
class Hold:
    """One time that a function held the loop. `callee` is what it called meanwhile, None for its own computing."""

    function: str
    file: str
    line: int
    callee: str | None
    seconds: float
    ended: bool = True

    def __str__(self) -> str:
        held = "held the event loop" if self.ended else "holds the event loop, until now"
        return (
            f"{self.function} in {Path(self.file).name}:{self.line} {held} for {self.seconds:.2f} s "
            f"in {self.callee or 'its own code'}, and every rollout waited; use an async form with await, "
            "asyncio.to_thread or @cpu_reward"
        )


@dataclass(slots=True)
class Held:
    """All times that one function held the loop."""

    count: int
    seconds: float
    longest: Hold


@contextmanager
def watching(
    loop: asyncio.AbstractEventLoop, *, report: Callable[[Hold], object], limit: float = 0.1
) -> Iterator["Watchdog"]:
    """Watch the running loop within this block. `report` is called once a function, in the watchdog's thread."""
    watchdog = Watchdog(loop, report, limit)
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()


class Watchdog:
    """`places` are the functions that held the loop, by (file, function); `nobody` counts what was nobody's fault."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[Hold], object], limit: float) -> None:
        self.places: dict[tuple[str, str], Held] = {}
        self.nobody = 0
        self.longest_of_nobody = 0.0
        self._loop, self._report, self._limit = loop, report, limit
        self._period, self._pause = limit / BEATS, limit / LOOKS
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hermes-rl watchdog", daemon=True)
        # Written by the loop's thread, read by ours.
        self._beats = 0
        self._last_beat = 0.0
        self._longest_gap = 0.0
        self._handle: asyncio.Handle | None = None
        self._loop_thread = 0
        self._base: frozenset[FrameType] = frozenset()
        self._usage = _ThreadUsage(0)
        # Our own: what was seen since the last beat.
        self._seen: dict[FrameType, _Suspect] = {}
        self._told: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._handle = self._loop.call_soon(self._first_beat)

    def stop(self) -> None:
        self._stopping.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread.is_alive():
            self._thread.join()
        self._usage.close()
        # Frames keep all that their functions had.
        self._seen, self._base = {}, frozenset()

    def metrics(self) -> dict[str, float]:
        """How often and for how long the loop was held, by authors' functions and by nobody's."""
        holds = list(self.places.values())
        return {
            "loop/holds": sum(held.count for held in holds),
            "loop/held_seconds": round(sum(held.seconds for held in holds), 3),
            "loop/longest_hold": round(max((held.longest.seconds for held in holds), default=0.0), 3),
            "loop/late_for_nobody": self.nobody,
            "loop/longest_late_for_nobody": round(self.longest_of_nobody, 3),
        }

    # --- in the loop's thread ---

    def _first_beat(self) -> None:
        self._loop_thread = threading.get_ident()
        self._usage = _ThreadUsage(threading.get_native_id())
        # What stands below every callback, the program that runs the loop above all, holds nothing.
        self._base = frozenset(frame for frame in _stack(inspect.currentframe()) if not _of_one_round(frame))
        self._last_beat = time.monotonic()
        self._thread.start()
        self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        self._longest_gap = max(self._longest_gap, now - self._last_beat)
        self._last_beat = now
        self._beats += 1
        self._handle = self._loop.call_later(self._period, self._beat)

    # --- in our own thread ---

    def _watch(self) -> None:
        own = _ThreadUsage(threading.get_native_id())
        try:
            self._watch_beside(own)
        finally:
            own.close()

    def _watch_beside(self, own: "_ThreadUsage") -> None:
        beats, looked, before, late = 0, 0.0, self._usage.read(), False
        own_before = own.read()
        while not self._stopping.wait(self._pause if late else self._period):
            now, beat, count = time.monotonic(), self._last_beat, self._beats
            late = now - beat > self._period + self._pause
            # Before anything that reads a file: it lets the loop go on, and C code that kept us waiting would be over.
            frame = sys._current_frames().get(self._loop_thread) if late else None  # noqa: SLF001 - made for this
            after, own_after = self._usage.read(), own.read()
            if count != beats:
                beats = count
                self._conclude()
            if late:
                # The first look stands for all the time since the beat.
                seconds = now - max(looked, beat)
                waiting = own_after.queued - own_before.queued
                self._look(frame, _Stretch(seconds, before, after, kept_away=seconds - waiting > 3 * self._period))
                looked = now
            del frame
            before, own_before = after, own_after

    def _look(self, innermost: FrameType | None, stretch: "_Stretch") -> None:
        chain = [
            frame for frame in _stack(innermost) if frame not in self._base and frame.f_code.co_name not in _LOOPS_OWN
        ]
        if not chain:
            return
        # The outermost frame is the callback's own: another callback has another one, even of the same function.
        suspect = self._seen.setdefault(chain[-1], _Suspect())
        suspect.seconds += stretch.held
        frame = next((frame for frame in chain if is_authors(frame.f_code.co_filename)), None)
        if frame is not None:
            # Python lets us look only between two instructions, most often at a call: of a function that computes it
            # would be a cheap one.
            callee = None if frame is innermost and stretch.computed_openly else _callee(frame)
            suspect.see(frame, callee, stretch.held)
        if suspect.seconds > STUCK and (hold := suspect.hold) is not None:
            self._tell(replace(hold, seconds=suspect.seconds, ended=False))

    def _conclude(self) -> None:
        """The loop goes on: who held it, if it was long enough."""
        late, self._longest_gap = self._longest_gap - self._period, 0.0
        suspects, self._seen = list(self._seen.values()), {}
        if late < self._limit:
            return
        worst = max(suspects, key=lambda suspect: suspect.seconds, default=_Suspect())
        hold = worst.hold
        # What it did after the last look was never seen.
        if hold is None or worst.seconds + self._pause < self._limit:
            self.nobody += 1
            self.longest_of_nobody = max(self.longest_of_nobody, late)
            return
        hold = replace(hold, seconds=min(late, worst.seconds + self._pause))
        held = self.places.setdefault((hold.file, hold.function), Held(0, 0.0, hold))
        held.count += 1
        held.seconds += hold.seconds
        held.longest = max(held.longest, hold, key=lambda one: one.seconds)
        self._tell(hold)

    def _tell(self, hold: Hold) -> None:
        if (hold.file, hold.function) not in self._told:
            self._told.add((hold.file, hold.function))
            self._report(hold)


def is_authors(file: str) -> bool:
    """Whether a file is neither Python's, nor an installed package's, nor ours; bundled environments are authors'."""
    if file.startswith("<") or "site-packages" in file or "dist-packages" in file:
        return False
    return file.startswith(_BUNDLED) or not file.startswith(_NOT_THE_AUTHORS)


@dataclass(slots=True)
class _Suspect:
    """One callback: how long it was seen, and in which functions of an author's."""

    seconds: float = 0.0
    # By file and function: the line seen last, and the seconds in each callee.
    functions: dict[tuple[str, str], tuple[int, Counter[str | None]]] = field(default_factory=dict)

    @property
    def hold(self) -> Hold | None:
        """The function seen longest. Only a callee that took most of its time is named."""
        if not self.functions:
            return None
        (file, function), (line, callees) = max(self.functions.items(), key=lambda entry: entry[1][1].total())
        callee, seconds = callees.most_common(1)[0]
        total = callees.total()
        return Hold(function, file, line, callee if seconds > total / 2 else None, total)

    def see(self, frame: FrameType, callee: str | None, seconds: float) -> None:
        code = frame.f_code
        key = (code.co_filename, code.co_qualname)
        callees = self.functions[key][1] if key in self.functions else Counter[str | None]()
        # Counter's type knows whole numbers only.
        callees[callee] += seconds  # type: ignore[assignment]
        self.functions[key] = (frame.f_lineno or code.co_firstlineno, callees)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those it was called from. In a greenlet, as rewards run in, it ends at the greenlet's own."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _of_one_round(frame: FrameType) -> bool:
    """Whether it is one of asyncio's frames that last no longer than a callback; uvloop has none."""
    return frame.f_code.co_name in {"_run_once", "_run"}


def _callee(frame: FrameType) -> str | None:
    """What the frame calls at this moment, as its source says it: C functions have no frame of their own."""
    positions = list(frame.f_code.co_positions())[frame.f_lasti // 2 : frame.f_lasti // 2 + 1]
    if not positions or None in positions[0]:
        return None
    first, last, begin, end = positions[0]
    lines = [
        linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first or 0, (last or 0) + 1)
    ]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        said = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    said = said.value if isinstance(said, ast.Await) else said
    return ast.unparse(said.func)[:80] if isinstance(said, ast.Call) else None


@dataclass(frozen=True, slots=True)
class _Usage:
    """Seconds that a thread has computed, and waited for a processor."""

    computing: float = 0.0
    queued: float = 0.0
    known: bool = False


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The time between two looks, as the loop's thread spent it.

    `kept_away`: we should have looked in between, and it was no lack of a processor that kept us.
    """

    seconds: float
    before: _Usage
    after: _Usage
    kept_away: bool

    @property
    def held(self) -> float:
        """How much of it the loop's thread was at work or asleep in a call, and not waiting for a processor."""
        held = self.seconds - (self.after.queued - self.before.queued)
        if self.kept_away and self.after.known:
            # If the loop's thread kept us away, in C code that lets no other in, then it was computing.
            held = min(held, self._computing)
        return max(held, 0.0)

    @property
    def computed_openly(self) -> bool:
        """Whether it computed most of the time, and let us look all the same."""
        return not self.kept_away and self._computing > self.seconds / 2

    @property
    def _computing(self) -> float:
        return self.after.computing - self.before.computing


class _ThreadUsage:
    """What the kernel counts for a thread of ours; nothing where it does not tell."""

    def __init__(self, native_id: int) -> None:
        self._fd: int | None = None
        try:
            self._fd = os.open(f"/proc/self/task/{native_id}/schedstat", os.O_RDONLY)
        except OSError:
            return

    def read(self) -> _Usage:
        if self._fd is None:
            return _Usage()
        try:
            computing, queued, _ = os.pread(self._fd, 200, 0).split()
        except (OSError, ValueError):
            return _Usage()
        return _Usage(int(computing) / 1e9, int(queued) / 1e9, known=True)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
