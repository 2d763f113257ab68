"""Attacks from inside: a program in its sandbox reaches its own rollout's door of the gateway, and nothing else."""

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hermes_rl import APIServerConfig
from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.gateway.rollout import GatewayRollout
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.store.database.store import open_store
from hermes_rl.store.records import group_to_record
from tests.rollout.external.programs import ITEM, python
from tests.sandbox.living import living, nap
from tests.support.environments import FileEnv
from tests.support.inference import inference, saying
from tests.support.scripted_model import ScriptedModel, Status, Text, always
from tests.support.trajectory_api import served as trajectory_api

HELLO = always(Text("hello"))
PROVIDER_KEY = "sk-provider-0123456789abcdef"
# What an attack prints when it comes to nothing.
OUT_OF_REACH = "out of reach"
TRIES = f"""
import socket, sys, urllib.error
ask('hi')
def tries(attack):
    try: print("reached", attack())
    except urllib.error.HTTPError as error: print("refused", error.code)
    except OSError: print("{OUT_OF_REACH}")
"""


@asynccontextmanager
async def attacked(program: str, **variables: str) -> AsyncIterator[tuple[FileEnv, ScriptedModel]]:
    async with ScriptedModel(HELLO) as model:
        endpoint = APIServerConfig(
            base_url=model.base_url, model_name="scripted", api_key=PROVIDER_KEY, max_retries=0, timeout=20
        )
        config = FileEnv.env_config_cls(
            agent_command=python(TRIES + program), agent_env=variables, rollout_retries=0, terminal_backend="bubblewrap"
        )
        env = FileEnv(config, [endpoint])
        async with env.opened():
            yield env, model


async def one_rollout(env: FileEnv) -> Rollout:
    (rollout,) = (await run_group(env, ITEM, size=1)).rollouts
    return rollout


def said(rollout: Rollout) -> str:
    assert rollout.scored, rollout.failure
    output: str = rollout.metadata["program"]["output"]
    return output.strip()


async def outcome(program: str, **variables: str) -> str:
    async with attacked(program, **variables) as (env, _):
        return said(await one_rollout(env))


async def test_another_rollouts_key_is_refused() -> None:
    async with attacked("tries(lambda: ask('hi', key=os.environ['STOLEN']))") as (env, _):
        assert env.gateway is not None
        other = env.gateway.keys.open(GatewayRollout(env.server))
        env.config.agent_env["STOLEN"] = other.key
        assert said(await one_rollout(env)) == "refused 401"
        assert not other.rollout.calls


async def test_a_key_is_worth_nothing_after_its_rollout() -> None:
    async with attacked("print(os.environ['OPENAI_API_KEY'])") as (env, _):
        env.config.agent_env["STOLEN"] = said(await one_rollout(env))
        env.config.agent_command = python(TRIES + "tries(lambda: ask('hi', key=os.environ['STOLEN']))")
        assert said(await one_rollout(env)) == "refused 401"


async def test_another_rollouts_url_is_refused_with_ones_own_key_and_with_the_stolen_one() -> None:
    program = """
theirs = os.environ["ANTHROPIC_BASE_URL"] + os.environ["THEIRS"] + "/v1"
tries(lambda: ask('hi', base=theirs))
tries(lambda: ask('hi', base=theirs, key=os.environ['STOLEN']))
"""
    async with attacked(program) as (env, _):
        assert env.gateway is not None
        other = env.gateway.keys.open(GatewayRollout(env.server))
        env.config.agent_env |= {"THEIRS": other.path, "STOLEN": other.key}
        assert said(await one_rollout(env)) == "refused 401\nrefused 401"
        assert not other.rollout.calls


async def test_no_key_is_no_way_in() -> None:
    assert await outcome("tries(lambda: ask('hi', key=''))") == "refused 401"


async def test_the_model_itself_is_out_of_reach() -> None:
    async with attacked("tries(lambda: ask('hi', base=os.environ['MODEL']))") as (env, model):
        env.config.agent_env["MODEL"] = model.base_url
        assert said(await one_rollout(env)) == OUT_OF_REACH


def own_address() -> str:
    """This machine's address to others; its loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: the kernel only chooses the address that it would send from.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize("place", ["127.0.0.1", "::1", "its own address"])
async def test_what_listens_on_the_host_is_out_of_reach(place: str) -> None:
    connections = 0

    async def served(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    host = own_address() if place == "its own address" else place
    server = await asyncio.start_server(served, host, 0)
    port = server.sockets[0].getsockname()[1]
    program = f"tries(lambda: socket.create_connection(({host!r}, {port}), timeout=5))"
    assert await outcome(program) == OUT_OF_REACH
    server.close()
    assert connections == 0


async def test_a_real_trajectory_api_and_a_trainers_inference_server_are_out_of_reach(tmp_path: Path) -> None:
    program = """
for url in os.environ["SERVERS"].split(): tries(lambda: urllib.request.urlopen(url, timeout=5).status)
"""
    async with (
        open_store(str(tmp_path / "store.db")) as store,
        trajectory_api(store) as api,
        inference(saying("Yes.")) as trainer,
        aiohttp.ClientSession() as session,
    ):
        urls = [f"{api}/health", f"{trainer.url}/health"]
        for url in urls:
            async with session.get(url) as answer:
                assert answer.status == 200
        assert await outcome(program, SERVERS=" ".join(urls)) == f"{OUT_OF_REACH}\n{OUT_OF_REACH}"


async def test_an_abstract_socket_of_the_host_is_out_of_reach() -> None:
    name = f"\0hermes-rl-test-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, socket.socket(socket.AF_UNIX) as own:
        listening.bind(name)
        listening.listen()
        own.connect(name)
        program = f"tries(lambda: socket.socket(socket.AF_UNIX).connect({name!r}))"
        assert await outcome(program) == OUT_OF_REACH


@pytest.mark.parametrize("place", ["127.0.0.1", "its own address"])
async def test_no_datagram_leaves_the_sandbox(place: str) -> None:
    host = own_address() if place == "its own address" else place
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening, socket.socket(type=socket.SOCK_DGRAM) as own:
        listening.bind((host, 0))
        listening.settimeout(60)
        address = listening.getsockname()
        await outcome(f"tries(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'from inside', {address}))")
        own.sendto(b"from outside", address)
        assert listening.recv(100) == b"from outside"


async def test_no_name_is_resolved() -> None:
    assert await outcome("tries(lambda: socket.getaddrinfo('example.com', 80))") == OUT_OF_REACH


async def test_processes_of_the_host_and_of_other_sandboxes_are_not_seen() -> None:
    ours, theirs = nap(), nap()
    program = """
told = [open(f"/proc/{pid}/cmdline").read() for pid in filter(str.isdigit, os.listdir("/proc"))]
print([one for one in told if one.startswith("sleep")])
"""
    backend = BubblewrapBackend()
    on_the_host = await asyncio.create_subprocess_exec(*ours.split())
    try:
        async with await backend.start() as other:
            await other.exec(f"setsid {theirs} > /dev/null 2>&1 &", timeout=60)
            async with asyncio.timeout(60):
                while (len(living(ours)), len(living(theirs))) != (1, 1):
                    await asyncio.sleep(0.02)
            assert await outcome(program) == "[]"
    finally:
        on_the_host.kill()
        await on_the_host.wait()
        await backend.close()


@pytest.mark.parametrize("address", ["192.0.2.1", "1.1.1.1", "169.254.169.254"])
async def test_the_network_is_out_of_reach(address: str) -> None:
    assert await outcome(f"tries(lambda: socket.create_connection(('{address}', 80), timeout=5))") == OUT_OF_REACH


async def test_the_gateways_sockets_are_no_files_inside() -> None:
    program = """
import glob
def look():
    for path in glob.glob("/tmp/**", recursive=True) + glob.glob("/run/**", recursive=True):
        if os.path.exists(path) and __import__("stat").S_ISSOCK(os.stat(path).st_mode): return path
    raise OSError
tries(look)
"""
    assert await outcome(program) == OUT_OF_REACH


LOOK_FOR_THE_KEY = f"""
key = {PROVIDER_KEY[:12]!r} + {PROVIDER_KEY[12:]!r}
def look():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try: found = open(f"/proc/{{pid}}/{{name}}").read()
            except PermissionError: continue
            if key in found: return pid, name
    places = ("/tmp", "/run", "/etc", "/root", "/home", "/var", os.getcwd())
    for folder, _, names in (one for top in places for one in os.walk(top)):
        for name in names:
            try:
                if key.encode() in open(os.path.join(folder, name), "rb").read(): return folder, name
            except OSError: continue
    raise OSError
tries(look)
"""


async def test_the_providers_key_is_nowhere_inside() -> None:
    assert await outcome(LOOK_FOR_THE_KEY) == OUT_OF_REACH


async def test_a_key_that_is_inside_would_be_found() -> None:
    assert (await outcome(LOOK_FOR_THE_KEY, LEAKED=PROVIDER_KEY)).startswith("reached")


@pytest.mark.parametrize("folder", ["/tmp", "."])
async def test_a_key_in_a_file_would_be_found(folder: str) -> None:
    leaks = f"open({folder!r} + '/leak', 'w').write(os.environ.pop('LEAKED')); os.execv(sys.executable, ARGUMENTS)"
    again = "ARGUMENTS = [sys.executable, '-c', os.environ.pop('AGAIN')]\n"
    found = await outcome(again + leaks, LEAKED=PROVIDER_KEY, AGAIN="".join(python(TRIES + LOOK_FOR_THE_KEY)[2:]))
    assert found.startswith("reached")


async def test_an_error_of_the_provider_that_holds_its_key_is_told_to_nobody() -> None:
    async with attacked("ask('hi')") as (env, model):
        model.script = always(Status(401, f"Incorrect API key provided: {PROVIDER_KEY}"))
        group = await run_group(env, ITEM, size=1)
    assert group.rollouts[0].failure is not None
    assert PROVIDER_KEY not in str(group_to_record(group))


async def test_the_key_is_in_no_argument() -> None:
    program = """
mine = os.environ["OPENAI_API_KEY"]
found = [pid for pid in filter(str.isdigit, os.listdir("/proc")) if mine in open(f"/proc/{pid}/cmdline").read()]
print(found)
"""
    assert await outcome(program) == "[]"


async def test_paths_that_are_no_providers_are_refused() -> None:
    program = """
def asks(path):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    origin = os.environ["ANTHROPIC_BASE_URL"]
    return urllib.request.urlopen(urllib.request.Request(origin + path, headers=headers), timeout=60).status
for path in ("/rollouts", "/metrics", "/v1/files", "/../v1/models", "/v1/models"): tries(lambda: asks(path))
"""
    assert await outcome(program) == "refused 404\nrefused 404\nrefused 404\nrefused 404\nreached 200"


async def test_a_policy_that_kills_its_way_out_is_scored_all_the_same() -> None:
    program = """
for pid in filter(str.isdigit, os.listdir("/proc")):
    if "end of a port forward" in open(f"/proc/{pid}/cmdline").read() and int(pid) != os.getpid(): os.kill(int(pid), 9)
ask('still there?')
"""
    async with attacked(program) as (env, _):
        rollout = await one_rollout(env)
    assert (rollout.score, rollout.stop_reason) == (0.0, StopReason.CRASHED)


async def test_rollouts_beside_an_attacker_go_on() -> None:
    flood = """
import threading
def knock():
    for _ in range(50):
        try: ask('hi', key='sk-none')
        except OSError: pass
if sys.argv[1] == "write 7": [threading.Thread(target=knock).start() for _ in range(20)]
"""

    class OneAttacks(FileEnv):
        async def compute_reward(self, item: Any, result: Any, ctx: Any) -> float:
            return 1.0

    async with ScriptedModel(HELLO) as model:
        endpoint = APIServerConfig(base_url=model.base_url, model_name="scripted", max_retries=0, timeout=20)
        config = OneAttacks.env_config_cls(agent_command=[*python(TRIES + flood), "{prompt}"], rollout_deadline=2.0)
        env = OneAttacks(config, [endpoint])
        async with env.opened():
            groups = await asyncio.gather(*(run_group(env, {"number": number}, size=1) for number in (7, 8, 9)))
    ends = [group.rollouts[0].stop_reason for group in groups]
    assert ends[1:] == [StopReason.NATURAL] * 2
    assert all(group.scores == [1.0] for group in groups)
