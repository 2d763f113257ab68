"""MCP servers of the official SDK as toolsets: what they answer, how they fail, and that none stays behind."""

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.process_tree import all_pids
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.mcp_servers import MAX_RESULT_CHARS, McpServer, McpSettings, argument_checker
from hermes_rl.tools.registry import all_tools, open_toolsets
from hermes_rl.tools.selection import ToolsetSelection
from hermes_rl.tools.session import ToolOutcome
from tests.support.environments import FileEnv, opened
from tests.support.mcp_server import PICTURE, ROOT, command, http_command, http_server
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text, always, calls_then_text
from tests.support.web_pages import serving

SECRET = "hidden-value-1234"
Ask = Callable[..., Awaitable[ToolOutcome]]


def stdio(mark: str = "", **settings: Any) -> dict[str, Any]:
    return {"command": command(mark) if mark else command(), "cwd": str(ROOT), **settings}


def new_mark() -> str:
    """A word by which the processes of one test are told from all others."""
    return f"mark-{uuid.uuid4().hex}"


def processes_with(mark: str) -> list[int]:
    found = []
    for pid in all_pids():
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in arguments:
            found.append(pid)
    return found


async def there(file: Path) -> None:
    async with asyncio.timeout(60):
        while not file.exists():
            await asyncio.sleep(0.01)


async def none_left(mark: str) -> bool:
    """Whether every process with this mark is gone soon."""
    for _ in range(100):
        if not processes_with(mark):
            return True
        await asyncio.sleep(0.1)
    return False


@asynccontextmanager
async def tools_of(settings: dict[str, Any], **others: dict[str, Any]) -> AsyncIterator[ToolHost]:
    every = {"mcp:test": settings, **{f"mcp:{name}": values for name, values in others.items()}}
    async with open_toolsets(every, every) as toolsets:
        pool = SandboxPool(LocalBackend())
        host = ToolHost(all_tools(), pool, calls_in_flight=16, terminal_timeout=10, toolsets=toolsets)
        try:
            yield host
        finally:
            await host.close()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """One HTTP server for the tests that do it no harm."""
    with subprocess.Popen(http_command(), stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


@pytest.fixture(params=["stdio", "http"])
async def host(request: pytest.FixtureRequest, url: str) -> AsyncIterator[ToolHost]:
    server = stdio(shared=True) if request.param == "stdio" else {"url": url}
    async with tools_of({**server, "timeout": 20}) as host:
        yield host


@pytest.fixture
def ask(host: ToolHost) -> Ask:
    async def ask(name: str, **arguments: Any) -> ToolOutcome:
        return await host.session("rollout").call(name, arguments)

    return ask


# What a server offers and answers.


async def test_each_tool_has_the_servers_schema_and_description(host: ToolHost) -> None:
    function = host.tools["add"].schema["function"]
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["properties"]["first"] == {
        "description": "One number.",
        "title": "First",
        "type": "integer",
    }
    assert function["parameters"]["required"] == ["first"]
    assert host.tools["count"].schema["function"]["parameters"]["properties"] == {}


async def test_a_call_is_answered(ask: Ask) -> None:
    assert await ask("add", first=40, second=2) == ToolOutcome("42")


async def test_a_name_that_the_models_form_does_not_allow_is_changed(ask: Ask) -> None:
    assert await ask("odd_name_with_spaces") == ToolOutcome("odd")


async def test_a_parameter_may_have_the_name_of_one_of_ours(ask: Ask) -> None:
    assert await ask("session", session="one") == ToolOutcome("session one")


async def test_structured_content_without_text_is_told_as_json(ask: Ask) -> None:
    assert json.loads((await ask("only_structured")).text) == {"answer": 42}


async def test_what_is_no_text_is_told_as_a_note(ask: Ask) -> None:
    note = f"[image/png: {len(PICTURE)} bytes that cannot be shown here]"
    assert (await ask("picture")).text == f"see\n{note}\n[resource page: http://127.0.0.1/page]\na note"


async def test_a_very_long_answer_is_shortened(ask: Ask) -> None:
    text = (await ask("long_text", length=2 * MAX_RESULT_CHARS)).text
    assert len(text) < MAX_RESULT_CHARS + 100 and "characters left out" in text


async def test_an_error_that_the_server_reports_is_told_to_the_model(ask: Ask) -> None:
    outcome = await ask("fail", why="no such city")
    assert "no such city" in (outcome.error or "")
    assert await ask("add", first=1) == ToolOutcome("1")


async def test_wrong_arguments_are_told_to_the_model(ask: Ask) -> None:
    for arguments, told in (
        ({"first": "one"}, "first: 'one' is not of type 'integer'"),
        ({}, "arguments: 'first' is a required property"),
        ({"first": 1, "secnod": 2}, "secnod: there is no such parameter"),
        ({"first": [1]}, "first: [1] is not of type 'integer'"),
    ):
        outcome = await ask("add", **arguments)
        assert told in (outcome.error or "")
        assert (outcome.error or "").endswith("Its parameters: first, second")
    # What is wrong is named, and not repeated at length.
    assert len((await ask("add", first="x" * 1_000_000)).error or "") < 1_000


async def test_calls_of_many_rollouts_at_once_get_each_their_own_answer(host: ToolHost) -> None:
    async def one(number: int) -> str:
        return (await host.session(f"rollout {number % 3}").call("add", {"first": number})).text

    assert await asyncio.gather(*map(one, range(24))) == [str(number) for number in range(24)]


# Rollouts apart.


async def test_rollouts_do_not_see_what_another_left_in_the_server() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark)) as host:
        one, other = host.session("one"), host.session("other")
        outcomes = await asyncio.gather(one.call("count", {}), other.call("count", {}))
        assert [outcome.text for outcome in outcomes] == ["1", "1"]
        assert (await one.call("count", {})).text == "2"
        assert len(processes_with(mark)) == 2


async def test_a_shared_server_is_one_process_for_all_rollouts() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark, shared=True)) as host:
        calls = [host.session(str(number)).call("count", {}) for number in range(4)]
        assert sorted(outcome.text for outcome in await asyncio.gather(*calls)) == ["1", "2", "3", "4"]
        assert len(processes_with(mark)) == 1
    assert await none_left(mark)


async def test_a_rollout_that_never_calls_starts_no_process() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark)) as host:
        host.session("quiet")
        assert await none_left(mark)


# Failing servers.


async def fails(host: ToolHost, name: str, rollout: str = "rollout", **arguments: Any) -> ToolHostError:
    with pytest.raises(ToolHostError) as caught:
        await host.session(rollout).call(name, arguments)
    return caught.value


async def test_an_error_of_the_protocol_is_the_worlds_fault_unless_it_is_about_the_arguments(
    host: ToolHost, ask: Ask
) -> None:
    assert (await ask("protocol_error", code=-32602)).error == "error -32602"
    error = await fails(host, "protocol_error", code=-32603)
    assert (error.cause, str(error)) == ("error", "the MCP server test failed: error -32603")
    assert await ask("add", first=1) == ToolOutcome("1")


async def test_a_program_that_dies_in_a_call_is_the_worlds_fault_and_the_next_call_has_a_new_one() -> None:
    async with tools_of(stdio()) as host:
        before = (await host.session("rollout").call("process_id", {})).text
        error = await fails(host, "die")
        assert (error.cause, str(error)) == (
            "died",
            "the MCP server test closed the connection; its stderr: boom: out of luck",
        )
        after = (await host.session("rollout").call("process_id", {})).text
    assert before != after


async def test_a_shared_program_that_dies_fails_those_who_were_calling_and_nobody_later(tmp_path: Path) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    async with tools_of(stdio(shared=True)) as host:
        waiting = asyncio.create_task(fails(host, "wait_for", "one", begun=str(begun), end=str(end)))
        await there(begun)
        assert (await fails(host, "die", "two")).cause == "died"
        assert (await waiting).cause == "died"
        outcomes = await asyncio.gather(*(host.session(name).call("count", {}) for name in ("one", "two", "three")))
    assert sorted(outcome.text for outcome in outcomes) == ["1", "2", "3"]


async def test_an_http_server_that_dies_in_a_call_is_reached_again_when_it_is_back() -> None:
    async with http_server() as (url, _), tools_of({"url": url, "timeout": 10}) as host:
        assert (await fails(host, "die")).cause == "died"
        assert (await fails(host, "add", first=1)).cause == "unreachable"
        async with http_server(int(url.split(":")[2].split("/")[0])):
            assert (await host.session("rollout").call("add", {"first": 1})).text == "1"


async def test_a_call_that_takes_too_long_is_the_worlds_fault_and_does_not_disturb_the_others(tmp_path: Path) -> None:
    begun, end = tmp_path / "begun", tmp_path / "end"
    async with tools_of(stdio(shared=True, timeout=8)) as host:
        late = asyncio.create_task(fails(host, "wait", "late", seconds=60))
        # So that it is under way when the other is given up, and has time left.
        await asyncio.sleep(4)
        calling = host.session("in time").call("wait_for", {"begun": str(begun), "end": str(end)})
        in_time = asyncio.create_task(calling)
        await there(begun)
        assert (await late).cause == "hang"
        assert not in_time.done()
        end.touch()
        assert (await in_time).text == "there it is"
        assert (await host.session("late").call("add", {"first": 1})).text == "1"


async def test_a_program_that_hangs_and_ignores_the_call_to_leave_is_killed() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark, timeout=1)) as host:
        error = await fails(host, "freeze")
        assert (error.cause, str(error)) == ("hang", "the MCP server test did not answer within 1 s")
        assert processes_with(mark)
    assert processes_with(mark) == []


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_call_that_hangs_is_an_error_of_its_rollout_which_is_scored(transport: str, url: str) -> None:
    """The policy chose the call's arguments, so a hang must not void its rollout."""

    def script(request: dict[str, Any]) -> Reply:
        if request["messages"][-1]["role"] == "tool":
            return Text("done")
        return Calls([("wait", '{"seconds": 60}')]) if "write 1" in str(request["messages"]) else Text("nothing to do")

    async with ScriptedModel(script) as model:
        server = {"url": url} if transport == "http" else stdio()
        async with opened(McpEnv, model, tool_settings={"mcp:test": {**server, "timeout": 1}}) as env:
            broken, whole = await asyncio.gather(
                run_group(env, {"number": 1}, size=2), run_group(env, {"number": 2}, size=2)
            )
    assert [rollout.failure for rollout in broken.rollouts] == [None, None]
    assert broken.scores == [0.0, 0.0]
    assert [list(rollout.metadata["charged"]) for rollout in broken.rollouts] == [["tool/hang"], ["tool/hang"]]
    assert whole.scores == [0.0, 0.0]


# Nothing stays behind, and nothing gets out.


async def test_the_process_of_a_rollout_is_gone_with_its_session() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark)) as host:
        await host.session("one").call("count", {})
        assert len(processes_with(mark)) == 1
        await host.close_session("one")
        assert processes_with(mark) == []


async def test_a_cancelled_call_leaves_no_process() -> None:
    mark = new_mark()
    async with tools_of(stdio(mark)) as host:
        # At moments before, while and after the server starts.
        for pause in (0.0, 0.05, 0.4, 2.5):
            calling = asyncio.create_task(host.session(f"after {pause}").call("wait", {"seconds": 60}))
            await asyncio.sleep(pause)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            assert calling.cancelled()
    assert processes_with(mark) == []


async def test_a_program_gets_nothing_of_our_environment_but_what_env_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    monkeypatch.setenv("SERVER_KEY", SECRET)
    env = {"GIVEN": "plain", "TOKEN": "env:SERVER_KEY"}
    async with tools_of(stdio(env=env)) as host:
        text = (await host.session("rollout").call("environment", {})).text
    variables = dict(line.split("=", 1) for line in text.splitlines())
    allowed = {"GIVEN", "TOKEN", "HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LC_CTYPE"}
    assert set(variables) - allowed == set()
    assert variables["GIVEN"] == "plain"
    # It arrived, and what the model is told of it is hidden.
    assert variables["TOKEN"] == "**********"
    assert SECRET not in text


async def test_headers_are_sent_and_their_secrets_told_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_HEADER", f"Bearer {SECRET}")
    async with http_server(WANTED_TOKEN=f"Bearer {SECRET}") as (url, _):
        headers = {"Authorization": "env:SERVER_HEADER"}
        async with tools_of({"url": url, "headers": headers}) as host:
            assert (await host.session("rollout").call("add", {"first": 1})).text == "1"
            assert SECRET not in (await host.session("rollout").call("environment", {})).text
        with pytest.raises(ConfigError, match="cannot be reached"):
            async with tools_of({"url": url}):
                pass


# What is wrong is said before the first rollout.


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, r"tool_settings of mcp:test: .*set either command \(a program\) or url"),
        ({"command": ["x"], "url": "http://127.0.0.1:1"}, "set either command"),
        ({"command": []}, "command: List should have at least 1 item"),
        ({"url": "127.0.0.1:1"}, "a url starts with http://"),
        ({"url": "http://127.0.0.1:1", "env": {"A": "b"}}, "env and cwd go with command"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers go with url"),
        ({"command": ["x"], "env": {"A": "env:NO_SUCH"}}, "mcp:test: A names the variable NO_SUCH, which is not set"),
        ({"command": ["/no/such/program"]}, r"mcp:test failed: .*No such file.* Fix tool_settings of mcp:test"),
        ({"command": [sys.executable, "-c", "raise SystemExit('no licence')"]}, "its stderr: no licence"),
        ({"command": ["sleep", "60"], "start_timeout": 0.5}, r"was not ready within 0\.5 s"),
        ({"command": ["echo", "hello"]}, "cannot be reached"),
        ({"url": "http://127.0.0.1:1/mcp"}, "cannot be reached: ConnectError"),
    ],
)
async def test_a_server_that_cannot_work_is_refused_at_the_start(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        async with tools_of(settings):
            pass


async def test_a_server_that_never_gets_ready_is_not_left_running() -> None:
    program = f"sleep 600.{uuid.uuid4().int % 10**12:012d}".split()
    with pytest.raises(ConfigError, match="was not ready"):
        async with tools_of({"command": program, "start_timeout": 0.5}):
            pass
    assert processes_with(program[1]) == []


async def test_without_the_sdk_the_line_to_install_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[mcp\]'"):
        async with tools_of(stdio()):
            pass


async def test_a_tool_of_a_name_that_is_taken_is_refused_and_a_prefix_helps() -> None:
    with pytest.raises(ConfigError, match=r"two tools are named add, from mcp:test and from mcp:other; set a prefix"):
        async with tools_of(stdio(), other=stdio()):
            pass
    async with tools_of(stdio(tools=["add"]), other=stdio(tools=["add", "count"], prefix="other_")) as host:
        assert set(host.tools) - set(all_tools()) == {"add", "other_add", "other_count"}
        assert (await host.session("rollout").call("other_add", {"first": 3})).text == "3"


async def test_a_tool_that_the_server_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the server has no tool subtract; it has add, "):
        async with tools_of(stdio(tools=["add", "subtract"])):
            pass


async def test_a_schema_that_is_broken_is_refused_and_one_that_refers_elsewhere_is_left_to_the_server() -> None:
    server = McpServer("mcp:test", McpSettings(command=["x"]))
    with pytest.raises(ConfigError, match="the schema of odd is invalid"):
        argument_checker({"type": "object", "properties": {"x": {"type": "colour"}}}, "odd", server)
    elsewhere = {"type": "object", "properties": {"x": {"$ref": "http://127.0.0.1:1/schema.json"}}}
    assert argument_checker(elsewhere, "far", server)({"x": 1}) == {"x": 1}


def test_any_name_after_mcp_is_a_toolset_and_odd_ones_are_refused() -> None:
    assert ToolsetSelection(enabled=["mcp:my-files.v2"]).candidates() == ["mcp:my-files.v2"]
    for name in ("mcp:", "mcp:a b", "mcp:a/b"):
        with pytest.raises(ConfigError, match="is not the name of an MCP toolset"):
            ToolsetSelection(enabled=[name])


# An agent at work.


class McpEnv(FileEnv):
    default_toolsets = ("mcp:test", "terminal")


def adds_and_writes(request: dict[str, Any]) -> Reply:
    match [message["content"] for message in request["messages"] if message["role"] == "tool"]:
        case []:
            return Calls([("add", '{"first": 3, "second": 4}')])
        case [total]:
            return Calls([("terminal", json.dumps({"command": f"echo {total} > answer"}))])
    return Text("done")


async def test_a_redirect_of_a_server_is_not_followed(url: str) -> None:
    """The author named this host and no other; with the redirect, the headers would go there."""

    async def redirects(_: web.BaseRequest) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(url)

    async with serving(redirects) as elsewhere:
        with pytest.raises(ConfigError, match="the toolset mcp:test failed"):
            async with tools_of({"url": f"{elsewhere}/mcp"}):
                pass


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_an_agent_uses_a_server(transport: str, url: str) -> None:
    mark = new_mark()
    async with ScriptedModel(adds_and_writes) as model:
        server = {"url": url} if transport == "http" else stdio(mark)
        async with opened(McpEnv, model, tool_settings={"mcp:test": server}) as env:
            group = await run_group(env, {"number": 7}, size=2)
            assert processes_with(mark) == []
    assert group.scores == [1.0, 1.0]
    assert {use.name for rollout in group.rollouts for use in rollout.tool_uses} == {"add", "terminal"}
    assert "add" in [tool["function"]["name"] for tool in model.bodies[0]["tools"]]


async def test_an_agent_that_misuses_a_tool_is_told_and_goes_on() -> None:
    async with (
        ScriptedModel(calls_then_text("add", '{"frist": 1}')) as model,
        opened(McpEnv, model, tool_settings={"mcp:test": stdio()}) as env,
    ):
        [rollout] = (await run_group(env, {"number": 7}, size=1)).rollouts
    assert rollout.score == 0.0
    assert "frist: there is no such parameter" in (rollout.tool_uses[0].error or "")


async def test_a_shared_server_is_gone_when_the_environment_closes() -> None:
    mark = new_mark()
    async with (
        ScriptedModel(always(Text("hello"))) as model,
        opened(McpEnv, model, tool_settings={"mcp:test": stdio(mark, shared=True)}),
    ):
        assert len(processes_with(mark)) == 1
    assert processes_with(mark) == []
