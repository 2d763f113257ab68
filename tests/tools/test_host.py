import asyncio

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost


def new_host() -> ToolHost:
    return ToolHost({}, SandboxPool(LocalBackend()), calls_in_flight=1, terminal_timeout=1)


async def test_outside_of_an_environment_there_is_no_host() -> None:
    with pytest.raises(ConfigError, match="no environment is running here"):
        ToolHost.current()


async def test_within_its_block_a_host_is_the_current_one() -> None:
    host = new_host()
    with host.running():
        assert ToolHost.current() is host


async def test_after_its_block_the_host_before_is_current_again() -> None:
    outer, inner = new_host(), new_host()
    with outer.running():
        with inner.running():
            pass
        assert ToolHost.current() is outer


async def test_tasks_started_within_the_block_find_the_host() -> None:
    async def find() -> ToolHost:
        return ToolHost.current()

    host = new_host()
    with host.running():
        task = asyncio.create_task(find())
    assert await task is host


async def test_threads_started_within_the_block_find_the_host() -> None:
    host = new_host()
    with host.running():
        assert await asyncio.to_thread(ToolHost.current) is host


async def test_two_environments_at_once_find_each_their_own() -> None:
    async def environment() -> bool:
        host = new_host()
        with host.running():
            await asyncio.sleep(0.01)
            return ToolHost.current() is host

    assert all(await asyncio.gather(environment(), environment()))
