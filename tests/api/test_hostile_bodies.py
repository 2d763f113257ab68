"""Bodies that are made to hurt, against the real process: each is refused by a 4xx, and memory stays bounded."""

import asyncio
import gzip
import io
import random
import struct
import sys
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from hermes_rl.core import fast_json
from hermes_rl.store.container import JSON, PartContent, frame, json_part, pack_parts
from tests.store.database.making import make_group
from tests.support.api_process import ApiProcess

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MEGABYTE = 2**20
LIMIT = 16 * MEGABYTE
# Eight bodies, and of one at a time what it becomes as Python's own objects: about thirty times its size.
MOST_MEMORY = 800 * MEGABYTE


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[tuple[ApiProcess, aiohttp.ClientSession]]:
    process = await asyncio.to_thread(ApiProcess, str(tmp_path / "store.db"), "--max-body", str(LIMIT // MEGABYTE))
    with process:
        # A line that was idle while a body was made may be closed under the next request.
        lines = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(process.url, connector=lines) as session:
            async with session.post("/v1/environments", json={"name": "e"}) as answer:
                assert answer.status == 200
            yield process, session


def peak(process: ApiProcess) -> int:
    text = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(text.split("VmHWM:")[1].split()[0]) * 1024


def zeros(count: int) -> bytes:
    """A gzip stream that unpacks to so many zeros."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([*(packer.compress(bytes(MEGABYTE)) for _ in range(count // MEGABYTE)), packer.flush()])


def packed_group() -> bytes:
    """A group whose JSON is a list of twenty million zeros, in a few kilobytes."""
    text = fast_json.dumps([0] * 20_000_000)
    zeros = PartContent("conversations", JSON, len(text), zstd.compress(text), text)
    return pack_parts([json_part("group", "x"), zeros])


def lying_group() -> bytes:
    """A group whose header announces what is not there."""
    part = {"name": "tokens", "type": "i32", "size": 4 * 10**9, "offset": 0, "length": 16 * 10**9, "crc32": 0}
    return frame(fast_json.dumps({"id": "x", "parts": [part]}), b"")


def nested(depth: int) -> bytes:
    return b'{"tokens":' + b"[" * depth + b"]" * depth + b"}"


GROUPS: dict[str, Callable[[], bytes]] = {
    "noise": lambda: random.Random(1).randbytes(LIMIT),
    "zeros": lambda: bytes(LIMIT),
    "packed": packed_group,
    "lying": lying_group,
    "torn": lambda: make_group()[:-10],
    "long header": lambda: struct.pack("<8sII", b"\x89HRLG\r\n\x1a", 1, 2**32 - 1) + bytes(1_000),
}
SCORED: dict[str, tuple[Callable[[], bytes], bool]] = {
    "noise": (lambda: random.Random(1).randbytes(LIMIT), False),
    "bomb": (lambda: zeros(500 * MEGABYTE), True),
    "truncated gzip": (lambda: gzip.compress(b'{"tokens": [[1]]}' * 100)[:-20], True),
    "no gzip": (lambda: b"nothing packed", True),
    "nested": (lambda: nested(1_000_000), False),
    "nested and packed": (lambda: gzip.compress(nested(5_000_000)), True),
    "numbers": (lambda: b'{"tokens":[[' + b"1," * (LIMIT // 2 - 100) + b'1]],"masks":[[1]],"scores":[1]}', False),
    "a number": (lambda: b'{"tokens":[[' + b"9" * (LIMIT - 100) + b"]]}", False),
    "a text": (lambda: b'{"tokens":"' + b"x" * (LIMIT - 100) + b'"}', False),
}


@pytest.mark.parametrize("name", GROUPS)
async def test_bytes_that_are_no_group_are_refused_and_forgotten(
    api: tuple[ApiProcess, aiohttp.ClientSession], name: str
) -> None:
    process, session = api
    data = GROUPS[name]()

    async def post() -> int:
        async with session.post("/v1/environments/1/groups", data=io.BytesIO(data)) as answer:
            return answer.status

    assert {await task for task in [asyncio.create_task(post()) for _ in range(8)]} == {400}
    assert peak(process) < MOST_MEMORY


@pytest.mark.parametrize("name", SCORED)
async def test_json_that_is_made_to_hurt_is_refused_and_forgotten(
    api: tuple[ApiProcess, aiohttp.ClientSession], name: str
) -> None:
    process, session = api
    make, packed = SCORED[name]
    data = make()
    headers = {"Content-Type": "application/json", **({"Content-Encoding": "gzip"} if packed else {})}

    async def post() -> int:
        async with session.post("/scored_data", data=io.BytesIO(data), headers=headers) as answer:
            return answer.status

    statuses = {await task for task in [asyncio.create_task(post()) for _ in range(8)]}
    print(name, statuses, f"{peak(process) / MEGABYTE:.0f} MB at most")
    assert all(400 <= status < 500 for status in statuses)
    assert peak(process) < MOST_MEMORY


async def test_a_crowd_that_announces_much_and_sends_little_takes_no_memory(
    api: tuple[ApiProcess, aiohttp.ClientSession],
) -> None:
    process, session = api
    head = f"POST /v1/environments/1/groups HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {LIMIT}\r\n\r\nabc"
    lines = [await asyncio.open_connection("127.0.0.1", process.port) for _ in range(200)]
    for _, writer in lines:
        writer.write(head.encode())
    async with session.get("/ready") as answer:
        assert answer.status == 200
    for _, writer in lines:
        writer.close()
    assert peak(process) < 200 * MEGABYTE
