"""The event loop that the product runs on, made so that a test that hangs on it ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

Factories = dict[str, Callable[[], asyncio.AbstractEventLoop]]


def product_loop() -> asyncio.AbstractEventLoop:
    """pytest-timeout raises in a signal handler. uvloop reports that as the error of a callback and goes on."""
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_end_on_timeout)
    return loop


def _end_on_timeout(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    error = context.get("exception")
    if isinstance(error, pytest.fail.Exception):
        for task in asyncio.all_tasks(loop):
            task.cancel(str(error))
