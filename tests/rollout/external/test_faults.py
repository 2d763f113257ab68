"""Programs that misbehave in a real sandbox: their own rollout is scored or fails by cause, and nothing is left."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.rollout.group import run_group
from hermes_rl.store.records import read_groups
from tests.rollout.external import hostile_env
from tests.rollout.external.programs import ITEM, python, rollout_of
from tests.sandbox.living import living, nap
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text, always

HELLO = always(Text("hello"))
JAIL: dict[str, Any] = {"terminal_backend": "bubblewrap"}
# A line to the gateway, on which anything can be written.
RAW = """
import socket
def line():
    host, port = os.environ["OPENAI_BASE_URL"].split("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=60)
def said(sent):
    with line() as one:
        try:
            one.sendall(sent)
            return one.recv(1 << 16)
        except OSError: return b""
KEY = os.environ["OPENAI_API_KEY"]
def post(body, head=""):
    first = f"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer {KEY}\\r\\n{head}"
    return first.encode() + b"Content-Length: %d\\r\\nConnection: close\\r\\n\\r\\n" % len(body) + body
"""
GARBAGE = {
    "no HTTP": r'said(b"\0\xff nonsense\r\n\r\n")',
    "half a head": r'line().sendall(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Le")',
    "two lengths": r'said(post(b"{}", "Content-Length: 9\r\n"))',
    "a wrong length": r'said(b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n")',
    "broken chunks": r'said(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")',
    "an endless head": r'said(b"POST / HTTP/1.1\r\nX: " + b"x" * (32 << 20))',
    "an endless trailer": r'said(post(b"", "Transfer-Encoding: chunked\r\n") + b"0\r\nX: " + b"x" * (32 << 20))',
    "many heads": r'said(b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1_000_000)',
    "broken JSON": r'said(post(b"{" * 1000))',
    "broken UTF-8": r'said(post(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}"))',
    "half a character": r'said(post(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud800\"}]}"))',
    "deep JSON": r'said(post(b"[" * 1_000_000))',
    "wrong types": r'said(post(b"{\"messages\": {\"role\": 7}, \"tools\": \"all\", \"n\": -1}"))',
    "numbers without end": r'said(post(b"{\"max_tokens\": " + b"9" * 100_000 + b"}"))',
    "too large": r'said(post(b"x" * (9 << 20)))',
    "another path": r'said(b"DELETE /rollouts/x HTTP/1.1\r\n\r\n")',
    "an upgrade": r'said(b"GET /v1/models HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")',
}


def output(rollout: Rollout) -> str:
    text: str = rollout.metadata["program"]["output"]
    return text


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_is_the_senders_loss_and_it_may_go_on(kind: str) -> None:
    program = f"{RAW}\nask('hi')\n{GARBAGE[kind]}\nprint(ask('still there?'))"
    rollout = await rollout_of(HELLO, agent_command=python(program), **JAIL)
    assert rollout.failure is None, rollout.failure
    assert (rollout.stop_reason, output(rollout)) == (StopReason.NATURAL, "hello\n")


async def test_a_program_that_never_asks_and_never_exits_is_unscored_and_ended() -> None:
    mine = nap()
    rollout = await rollout_of(HELLO, agent_command=f"setsid {mine} & {mine}", worker_timeout=3, **JAIL)
    assert (str(rollout.failure), rollout.score) == ("framework/worker_timeout", None)
    assert living(mine) == []


async def test_output_without_end_is_ended_at_the_policys_deadline() -> None:
    flood = "ask('hi')\nwhile True: print('x' * 100_000)"
    rollout = await rollout_of(HELLO, agent_command=python(flood), rollout_deadline=2.0, **JAIL)
    assert rollout.stop_reason is StopReason.DEADLINE
    assert len(output(rollout)) < 20_000


async def test_requests_that_never_end_leave_room_for_those_that_do() -> None:
    slow = """
held = [line() for _ in range(200)]
for one in held: one.sendall(post(b"x" * 100)[:-50])
import time; time.sleep(0.5)
print(ask('hi'))
"""
    rollout = await rollout_of(HELLO, agent_command=python(RAW + slow), **JAIL)
    assert (rollout.stop_reason, output(rollout), rollout.turns_used) == (StopReason.NATURAL, "hello\n", 1)


async def test_who_hangs_up_in_mid_stream_has_its_answer_recorded_whole() -> None:
    answer = "word " * 500_000
    hangs_up = """
import struct
one = line()
one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
one.sendall(post(json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()))
print(one.recv(100).split()[1])
one.close()
"""
    rollout = await rollout_of(always(Text(answer)), agent_command=python(RAW + hangs_up), **JAIL)
    assert (rollout.stop_reason, output(rollout)) == (StopReason.NATURAL, "b'200'\n")
    assert [message["content"] for message in rollout.messages] == ["hi", answer]


async def test_nothing_is_held_for_programs_that_misbehaved() -> None:
    program = RAW + "\n".join(one for kind, one in GARBAGE.items() if kind != "too large") + "\nask('hi')"
    async with ScriptedModel(HELLO) as model, opened(FileEnv, model, agent_command=python(program), **JAIL) as env:
        before = len(os.listdir("/proc/self/fd"))
        group = await run_group(env, ITEM, size=2)
        assert [rollout.failure for rollout in group.rollouts] == [None, None]
        assert env.gateway is not None
        assert (len(env.gateway.keys), env.tools.pool.live) == (0, 0)
        async with asyncio.timeout(60):
            # The client keeps its connections to the model.
            while len(os.listdir("/proc/self/fd")) > before + model.peak + 4:
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_run_with_attackers_in_it_scores_the_others_as_ever_and_writes_no_key(tmp_path: Path) -> None:
    provider, mine = "sk-provider-0123456789abcdef", nap()
    settings = {
        "agent_command": "exec python3 agent.py",
        "agent_env": {"PROMPT_FILE": "{prompt_file}", "NAP": mine},
        "agent_files": {"agent.py": str(hostile_env.AGENT)},
        "rollout_deadline": 5.0,
        "worker_timeout": 60,
        "group_size": 2,
        "total_steps": len(hostile_env.KINDS),
        "max_num_workers": 4,
        "terminal_backend": "bubblewrap",
        "data_path_to_save_groups": "groups.jsonl",
    }
    flags = [word for name, value in settings.items() for word in (f"--env.{name}", _flag(value))]
    async with ScriptedModel(hostile_env.writes_the_number) as model:
        words = ["process", f"{hostile_env.__file__}:Numbers", "--openai.base_url", model.base_url, *flags]
        words += ["--max-unscored", "1"]
        words += ["--openai.model_name", "scripted", "--openai.api_key", "env:PROVIDER"]
        environment = {"PROVIDER": provider, "HERMES_HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hermes_rl", *words),
            cwd=tmp_path,
            env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[3])},
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(200):
            _, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()
    groups = {group.item["number"]: group for group in read_groups(tmp_path / "groups.jsonl")}
    ended = {
        hostile_env.KINDS[number]: {
            str(one.failure) if one.failure else (one.score, str(one.stop_reason)) for one in group.rollouts
        }
        for number, group in groups.items()
    }
    assert ended == hostile_env.ENDS
    written = (tmp_path / "groups.jsonl").read_bytes() + complaints
    assert provider.encode() not in written
    assert b"sk-rl-" not in written
    assert (living(mine), list(tmp_path.glob("hermes-rl-*"))) == ([], [])


def _flag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
