"""Sync calls inside async code wait on the event loop without blocking it.

`bridged(coroutine)` steps the coroutine inside greenlets; `wait(awaitable)`, called by plain sync code anywhere below
it, hands the awaitable to the loop and goes on with its result, in the same task. Tasks that the coroutine starts are
bridged too, by a task factory that looks at a context variable; threads it starts wait across threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")

_bridged_loop: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("bridged_loop", default=None)


async def bridged(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in which, and in whose tasks and threads, `wait` may be called."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not _task_factory:
        loop.set_task_factory(_task_factory)
    token = _bridged_loop.set(loop)
    try:
        return await _as_steps(coroutine)
    finally:
        _bridged_loop.reset(token)


def wait(awaitable: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """The result of an awaitable, from sync code. `loop` is where to run it when called in a foreign thread."""
    here = getcurrent()
    if isinstance(here, _Stepper):
        # The awaitable travels to the parent greenlet, which awaits it in this very task.
        answer: T = here.parent.switch(_Request(awaitable))  # type: ignore[union-attr]
        return answer
    home = loop or _bridged_loop.get()
    if home is None or _runs_here(home):
        awaitable.close()
        raise RuntimeError(
            "this sync call would block the event loop: call it inside setup, compute_reward or evaluate, in a task or "
            "thread they start, or in a thread of your own"
        )
    return asyncio.run_coroutine_threadsafe(awaitable, home).result()


@dataclass(frozen=True, slots=True)
class _Request:
    awaitable: Awaitable[Any]


class _Stepper(greenlet):
    """Runs one step of a coroutine; switches to its parent with whatever must be awaited."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Awaiting this steps the coroutine inside greenlets and passes its bare yields up to the loop."""

    coroutine: Coroutine[Any, Any, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self.coroutine.send
        value: Any = None
        while True:
            stepper = _Stepper(_step)
            # A greenlet starts with an empty context otherwise, and context variables would be lost in it.
            stepper.gr_context = getcurrent().gr_context
            outcome = stepper.switch(resume, value)
            while isinstance(outcome, _Request):
                try:
                    answer = yield from outcome.awaitable.__await__()
                except BaseException as error:  # noqa: BLE001 (whatever was raised belongs to the waiting sync code)
                    stepper.parent = getcurrent()
                    outcome = stepper.throw(error)
                else:
                    # Inside another bridge we may be resumed by a new greenlet; the answer must come back to this one.
                    stepper.parent = getcurrent()
                    outcome = stepper.switch(answer)
            finished, result = outcome
            if finished:
                return result
            try:
                value = yield result
                resume = self.coroutine.send
            except BaseException as error:  # noqa: BLE001 (the coroutine decides what to do with it)
                resume, value = self.coroutine.throw, error


def _step(resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """One step: (True, its return value) when the coroutine ended, else (False, what it yielded)."""
    try:
        return False, resume(value)
    except StopIteration as end:
        return True, end.value


async def _as_steps(coroutine: Coroutine[Any, Any, T]) -> T:
    result: T = await _Steps(coroutine)
    return result


def _task_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    if _bridged_loop.get() is loop and asyncio.iscoroutine(coroutine):
        coroutine = _as_steps(coroutine)
    return asyncio.Task(coroutine, loop=loop, **options)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
