"""Lets sync code inside a coroutine wait for awaitables without blocking the event loop.

`bridged(coroutine)` steps the coroutine inside greenlets. `wait(awaitable)`, called from sync code below it, awaits in
the same task and returns the result. Tasks the coroutine starts are bridged too, by a task factory that checks a
context variable; threads it starts wait across threads.
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
    """Run a coroutine; `wait` works inside it and in the tasks and threads it starts."""
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is not _task_factory:
        loop.set_task_factory(_task_factory)
    token = _bridged_loop.set(loop)
    try:
        return await _run_in_greenlets(coroutine)
    finally:
        _bridged_loop.reset(token)


def wait(awaitable: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop | None = None) -> T:
    """Return an awaitable's result in sync code. `loop` is where to run it when called from another thread."""
    current = getcurrent()
    if isinstance(current, _Stepper):
        # The parent greenlet awaits it in this task.
        answer: T = current.parent.switch(_Request(awaitable))  # type: ignore[union-attr]
        return answer
    target_loop = loop or _bridged_loop.get()
    if target_loop is None or _is_running_here(target_loop):
        awaitable.close()
        raise RuntimeError(
            "this sync call would block the event loop: call it inside setup, compute_reward or evaluate, in a task or "
            "thread they start, or in your own thread"
        )
    return asyncio.run_coroutine_threadsafe(awaitable, target_loop).result()


@dataclass(frozen=True, slots=True)
class _Request:
    awaitable: Awaitable[Any]


class _Stepper(greenlet):
    """Runs one step of a coroutine; switches to its parent with the awaitable to wait for."""


@dataclass(frozen=True, slots=True)
class _GreenletSteps:
    """Awaiting this steps the coroutine inside greenlets and passes its yields to the loop."""

    coroutine: Coroutine[Any, Any, Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[Any], Any] = self.coroutine.send
        value: Any = None
        while True:
            stepper = _Stepper(_step)
            # Otherwise a greenlet starts with an empty context and loses the context variables.
            stepper.gr_context = getcurrent().gr_context
            outcome = stepper.switch(resume, value)
            while isinstance(outcome, _Request):
                try:
                    answer = yield from outcome.awaitable.__await__()
                except BaseException as error:  # noqa: BLE001 (the exception belongs to the waiting sync code)
                    stepper.parent = getcurrent()
                    outcome = stepper.throw(error)
                else:
                    # Inside another bridge a new greenlet may resume us; the result must come back to this one.
                    stepper.parent = getcurrent()
                    outcome = stepper.switch(answer)
            finished, result = outcome
            if finished:
                return result
            try:
                value = yield result
                resume = self.coroutine.send
            except BaseException as error:  # noqa: BLE001 (the coroutine handles it)
                resume, value = self.coroutine.throw, error


def _step(resume: Callable[[Any], Any], value: Any) -> tuple[bool, Any]:
    """One step: (True, its return value) when the coroutine ended, else (False, what it yielded)."""
    try:
        return False, resume(value)
    except StopIteration as end:
        return True, end.value


async def _run_in_greenlets(coroutine: Coroutine[Any, Any, T]) -> T:
    result: T = await _GreenletSteps(coroutine)
    return result


def _task_factory(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T] | Generator[Any, None, T], **options: Any
) -> asyncio.Task[T]:
    if _bridged_loop.get() is loop and asyncio.iscoroutine(coroutine):
        coroutine = _run_in_greenlets(coroutine)
    return asyncio.Task(coroutine, loop=loop, **options)


def _is_running_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
