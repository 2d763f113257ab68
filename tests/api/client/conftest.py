"""A real API for each test that takes `api`, and a line to it that can be cut for each that takes `line`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hermes_rl.api.client.connection import ApiConnection
from tests.api.client.running_api import Line, RunningApi, line_to, running_api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[RunningApi]:
    async with running_api(tmp_path / "store.db") as running:
        yield running


@pytest.fixture
async def connection(api: RunningApi) -> AsyncIterator[ApiConnection]:
    async with ApiConnection(api.url) as opened:
        yield opened


@pytest.fixture
async def line(api: RunningApi) -> AsyncIterator[Line]:
    async with line_to(api.port) as opened:
        yield opened


@pytest.fixture
async def frail(line: Line) -> AsyncIterator[ApiConnection]:
    """A connection over the line that can be cut."""
    async with ApiConnection(line.url) as opened:
        yield opened
