"""Finds functions that block the event loop, and with it every rollout, for over 100 ms.

A thread watches the loop's heartbeat and samples the loop thread's stack when it is late. A function is reported only
if one callback was sampled in it for that long; delays from a busy machine or many short callbacks are counted as
unattributed.
"""

import ast
import asyncio
import inspect
import linecache
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from hermes_rl.core.author_code import is_author_code

# Heartbeats per limit, and stack samples per limit once a heartbeat is late. Heartbeats cost more than samples.
HEARTBEATS_PER_LIMIT, SAMPLES_PER_LIMIT = 4, 10
# A hold this long is reported before it ends: it may never end.
STUCK_SECONDS = 5.0

_LOOP_FUNCTIONS = {"_run_once", "run_forever", "run_until_complete"}


@dataclass(frozen=True, slots=True)
class Hold:
    """A function that held the loop once. `callee` is what it was calling; None when it was computing itself."""

    function: str
    file: str
    line: int
    callee: str | None
    seconds: float
    ended: bool = True

    def __str__(self) -> str:
        held = "held the event loop" if self.ended else "has been holding the event loop"
        return (
            f"{self.function} in {Path(self.file).name}:{self.line} {held} for {self.seconds:.2f} s "
            f"in {self.callee or 'its own code'}, and every rollout waited; use an async call, "
            "asyncio.to_thread or @cpu_reward"
        )


@dataclass(slots=True)
class HoldCount:
    """All holds of one function."""

    count: int
    seconds: float
    longest: Hold


@contextmanager
def watch_loop(
    loop: asyncio.AbstractEventLoop, *, report: Callable[[Hold], object], limit: float = 0.1
) -> Iterator["Watchdog"]:
    """Watch the running loop inside this block. `report` is called once per function, in the watchdog's thread."""
    watchdog = Watchdog(loop, report, limit)
    watchdog.start()
    try:
        yield watchdog
    finally:
        watchdog.stop()


class Watchdog:
    """`holds` counts by (file, function); `unattributed` counts delays that no function caused."""

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[Hold], object], limit: float) -> None:
        self.holds: dict[tuple[str, str], HoldCount] = {}
        self.unattributed = 0
        self.longest_unattributed = 0.0
        self._loop, self._report, self._limit = loop, report, limit
        self._period, self._pause = limit / HEARTBEATS_PER_LIMIT, limit / SAMPLES_PER_LIMIT
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="hermes-rl watchdog", daemon=True)
        # Written by the loop's thread, read by ours.
        self._beats = 0
        self._last_beat = 0.0
        self._longest_gap = 0.0
        self._handle: asyncio.Handle | None = None
        self._loop_thread = 0
        self._base_frames: frozenset[FrameType] = frozenset()
        self._usage = _ThreadUsage(0)
        # Used only by our thread: samples since the last beat.
        self._suspects: dict[FrameType, _Suspect] = {}
        self._reported: set[tuple[str, str]] = set()

    def start(self) -> None:
        self._handle = self._loop.call_soon(self._first_beat)

    def stop(self) -> None:
        self._stopping.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread.is_alive():
            self._thread.join()
        self._usage.close()
        # Frames keep their functions' locals alive.
        self._suspects, self._base_frames = {}, frozenset()

    def metrics(self) -> dict[str, float]:
        """Counts and durations of holds and unattributed delays."""
        holds = list(self.holds.values())
        return {
            "loop/holds": sum(held.count for held in holds),
            "loop/held_seconds": round(sum(held.seconds for held in holds), 3),
            "loop/longest_hold": round(max((held.longest.seconds for held in holds), default=0.0), 3),
            "loop/late_for_nobody": self.unattributed,
            "loop/longest_late_for_nobody": round(self.longest_unattributed, 3),
        }

    # --- in the loop's thread ---

    def _first_beat(self) -> None:
        self._loop_thread = threading.get_ident()
        self._usage = _ThreadUsage(threading.get_native_id())
        # Frames below every callback, such as the program that runs the loop, cannot be the cause.
        self._base_frames = frozenset(
            frame for frame in _stack(inspect.currentframe()) if not _is_callback_frame(frame)
        )
        self._last_beat = time.monotonic()
        self._thread.start()
        self._beat()

    def _beat(self) -> None:
        now = time.monotonic()
        self._longest_gap = max(self._longest_gap, now - self._last_beat)
        self._last_beat = now
        self._beats += 1
        self._handle = self._loop.call_later(self._period, self._beat)

    # --- in the watchdog's thread ---

    def _run_thread(self) -> None:
        own_usage = _ThreadUsage(threading.get_native_id())
        try:
            self._sample_until_stopped(own_usage)
        finally:
            own_usage.close()

    def _sample_until_stopped(self, own_usage: "_ThreadUsage") -> None:
        beats, last_sample, before, late = 0, 0.0, self._usage.read(), False
        own_before = own_usage.read()
        while not self._stopping.wait(self._pause if late else self._period):
            now, beat, count = time.monotonic(), self._last_beat, self._beats
            late = now - beat > self._period + self._pause
            # Before any file read: that releases the GIL, and C code that held it would be over.
            frame = sys._current_frames().get(self._loop_thread) if late else None  # noqa: SLF001 - made for this
            after, own_after = self._usage.read(), own_usage.read()
            if count != beats:
                beats = count
                self._attribute_delay()
            if late:
                # The first sample covers all the time since the beat.
                seconds = now - max(last_sample, beat)
                waiting = own_after.queued - own_before.queued
                self._sample(
                    frame, _Interval(seconds, before, after, sampler_blocked=seconds - waiting > 3 * self._period)
                )
                last_sample = now
            del frame
            before, own_before = after, own_after

    def _sample(self, innermost: FrameType | None, interval: "_Interval") -> None:
        chain = [
            frame
            for frame in _stack(innermost)
            if frame not in self._base_frames and frame.f_code.co_name not in _LOOP_FUNCTIONS
        ]
        if not chain:
            return
        # The outermost frame identifies the callback: each callback has its own, even for the same function.
        suspect = self._suspects.setdefault(chain[-1], _Suspect())
        suspect.seconds += interval.held
        frame = next((frame for frame in chain if is_author_code(frame.f_code.co_filename)), None)
        if frame is not None:
            # Python switches threads between instructions, most often at calls: in a function that computes, the
            # sampled call would be an arbitrary cheap one.
            callee = None if frame is innermost and interval.computed_with_gil_available else _callee(frame)
            suspect.add_sample(frame, callee, interval.held)
        if suspect.seconds > STUCK_SECONDS and (hold := suspect.hold) is not None:
            self._report_once(replace(hold, seconds=suspect.seconds, ended=False))

    def _attribute_delay(self) -> None:
        """The loop runs again: record what held it, if the delay was long enough."""
        late, self._longest_gap = self._longest_gap - self._period, 0.0
        suspects, self._suspects = list(self._suspects.values()), {}
        if late < self._limit:
            return
        worst = max(suspects, key=lambda suspect: suspect.seconds, default=_Suspect())
        hold = worst.hold
        # Time after the last sample is not covered by samples.
        if hold is None or worst.seconds + self._pause < self._limit:
            self.unattributed += 1
            self.longest_unattributed = max(self.longest_unattributed, late)
            return
        hold = replace(hold, seconds=min(late, worst.seconds + self._pause))
        held = self.holds.setdefault((hold.file, hold.function), HoldCount(0, 0.0, hold))
        held.count += 1
        held.seconds += hold.seconds
        held.longest = max(held.longest, hold, key=lambda longest: longest.seconds)
        self._report_once(hold)

    def _report_once(self, hold: Hold) -> None:
        if (hold.file, hold.function) not in self._reported:
            self._reported.add((hold.file, hold.function))
            self._report(hold)


@dataclass(slots=True)
class _Suspect:
    """One callback: how long it was sampled, and in which author functions."""

    seconds: float = 0.0
    # By file and function: the last sampled line, and the seconds in each callee.
    functions: dict[tuple[str, str], tuple[int, Counter[str | None]]] = field(default_factory=dict)

    @property
    def hold(self) -> Hold | None:
        """The function sampled longest, with its callee if that took most of the time."""
        if not self.functions:
            return None
        (file, function), (line, callees) = max(self.functions.items(), key=lambda entry: entry[1][1].total())
        callee, seconds = callees.most_common(1)[0]
        total = callees.total()
        return Hold(function, file, line, callee if seconds > total / 2 else None, total)

    def add_sample(self, frame: FrameType, callee: str | None, seconds: float) -> None:
        code = frame.f_code
        key = (code.co_filename, code.co_qualname)
        callees = self.functions[key][1] if key in self.functions else Counter[str | None]()
        # Counter is typed for integers only.
        callees[callee] += seconds  # type: ignore[assignment]
        self.functions[key] = (frame.f_lineno or code.co_firstlineno, callees)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and its callers. In a greenlet, where rewards run, the stack ends at the greenlet's first frame."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_callback_frame(frame: FrameType) -> bool:
    """Whether this asyncio frame lasts no longer than a callback; uvloop has no such frames."""
    return frame.f_code.co_name in {"_run_once", "_run"}


def _callee(frame: FrameType) -> str | None:
    """The call the frame is executing, from its source code: C functions have no frames."""
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
        expression = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    expression = expression.value if isinstance(expression, ast.Await) else expression
    return ast.unparse(expression.func)[:80] if isinstance(expression, ast.Call) else None


@dataclass(frozen=True, slots=True)
class _Usage:
    """Seconds that a thread has run, and waited for a CPU."""

    computing: float = 0.0
    queued: float = 0.0
    known: bool = False


@dataclass(frozen=True, slots=True)
class _Interval:
    """The time between two samples, as the loop's thread spent it.

    `sampler_blocked`: the watchdog should have sampled in between and could not, although it had a CPU.
    """

    seconds: float
    before: _Usage
    after: _Usage
    sampler_blocked: bool

    @property
    def held(self) -> float:
        """Seconds that the loop's thread was running or sleeping in a call, not waiting for a CPU."""
        held = self.seconds - (self.after.queued - self.before.queued)
        if self.sampler_blocked and self.after.known:
            # If the loop's thread blocked us with C code that holds the GIL, it was running.
            held = min(held, self._computing)
        return max(held, 0.0)

    @property
    def computed_with_gil_available(self) -> bool:
        """Whether it ran most of the time and still let the watchdog sample."""
        return not self.sampler_blocked and self._computing > self.seconds / 2

    @property
    def _computing(self) -> float:
        return self.after.computing - self.before.computing


class _ThreadUsage:
    """The kernel's CPU statistics of a thread; zeros where they are not available."""

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
