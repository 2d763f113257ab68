"""Our environments behind `env serve --openenv`, played by our own OpenEnv environment and by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hermes_rl import AgentResult, HermesAgentBaseEnv, ToolContext, ToolSession, tool
from hermes_rl.cli.environment_command import resolve_environment
from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import run_script
from hermes_rl.interop.openenv.our_server import Access, OpenEnvServer, serving
from hermes_rl.rollout.config import HermesAgentEnvConfig

ENDPOINT = NO_MODEL.model_copy(update={"health_check": False})


@tool
async def look(session: ToolSession, place: str) -> str:
    """Look at a place.

    Args:
        place: Where to look.
    """
    if place == "away":
        session.end("left")
    if place == "broken":
        raise RuntimeError("the author's bug")
    return f"{place}: {session.item['word']}"


class WordEnv(HermesAgentBaseEnv[dict[str, str], HermesAgentEnvConfig]):
    """Say the word that a tool shows."""

    name = "word"
    default_toolsets = ()
    own_tools = (look,)
    items = tuple({"word": word} for word in ("one", "two", "three"))

    def train_items(self) -> list[dict[str, str]]:
        return list(self.items)

    def format_prompt(self, item: dict[str, str]) -> str:
        return f"Find the word of {len(item['word'])} letters."

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> float:
        return float(result.final_response == item["word"])


class Replies(WordEnv):
    """A user who asks once more."""

    async def next_user_message(self, item: Any, messages: list[Any]) -> str | None:
        return "Sure?" if sum(message["role"] == "assistant" for message in messages) == 1 else None


class Compares(WordEnv):
    async def compute_group_rewards(self, item: Any, results: Any) -> list[float]:
        return [0.0 for _ in results]


@asynccontextmanager
async def served(
    kind: type[HermesAgentBaseEnv] = WordEnv, *, token: str | None = None, max_episodes: int = 2, **settings: Any
) -> AsyncIterator[tuple[str, list[Any]]]:
    config = kind.env_config_cls(terminal_backend="local", use_wandb=False, **settings)
    env, ended = kind(config, [ENDPOINT]), []
    async with env.opened():
        hosts = None if token else frozenset({"127.0.0.1"})
        server = OpenEnvServer(
            env,
            Access(token, hosts),
            split="train",
            max_episodes=max_episodes,
            finished=lambda *told: ended.append(told),
        )
        async with serving(server, "127.0.0.1", 0) as url:
            yield url, ended


class Client:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def ask(self, kind: str, **data: Any) -> dict[str, Any]:
        await self.socket.send_json({"type": kind, "data": data})
        answer: dict[str, Any] = await self.socket.receive_json(timeout=20)
        assert answer["type"] in ({"reset": "observation", "step": "observation"}.get(kind, kind), "error")
        return dict(answer["data"])

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.ask("step", type="call_tool", tool_name=name, arguments=arguments)


@asynccontextmanager
async def client(url: str, path: str = "/ws", **headers: str) -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(f"{url}{path}") as socket:
        yield Client(socket)


async def test_the_seed_is_the_item_and_the_reward_comes_with_the_end() -> None:
    async with served() as (url, ended), client(url) as one:
        first = await one.ask("reset", seed=1)
        assert first["observation"]["prompt"] == "Find the word of 3 letters."
        assert (first["reward"], first["done"]) == (None, False)
        tools = (await one.ask("step", type="list_tools"))["observation"]["tools"]
        assert [each["name"] for each in tools] == ["look", "submit_answer"]
        assert tools[0]["input_schema"]["required"] == ["place"]
        seen = await one.call("look", place="here")
        assert seen["observation"]["result"]["data"] == "here: two"
        assert (seen["reward"], seen["done"], seen["observation"]["error"]) == (None, False, None)
        last = await one.call("submit_answer", text="two")
        assert (last["reward"], last["done"]) == (1.0, True)
        again = await one.call("look", place="here")
        assert (again["reward"], again["done"]) == (1.0, True)
        assert (await one.ask("state"))["step_count"] == 2
        assert ended == [(first["metadata"]["item_id"], 1.0, 2)]


async def test_a_tool_may_end_the_episode_and_a_reset_begins_another() -> None:
    async with served() as (url, _), client(url) as one:
        await one.ask("reset", seed=0)
        left = await one.call("look", place="away")
        assert (left["reward"], left["done"], left["observation"]["result"]["data"]) == (0.0, True, "away: one")
        await one.ask("reset", seed=5)
        assert (await one.call("look", place="x"))["observation"]["result"]["data"] == "x: three"


async def test_without_a_seed_the_items_follow_each_other() -> None:
    async with served() as (url, _), client(url) as one:
        words = []
        for _ in range(4):
            await one.ask("reset")
            words.append((await one.call("look", place="a"))["observation"]["result"]["data"])
    assert words == ["a: one", "a: two", "a: three", "a: one"]


async def test_a_tools_error_is_told_and_a_bug_of_the_author_is_no_reward() -> None:
    async with served() as (url, _), client(url) as one:
        await one.ask("reset", seed=0)
        wrong = await one.call("look", at=1)
        assert wrong["observation"]["error"]["error_type"] == "execution_error"
        assert wrong["observation"]["result"]["is_error"]
        unknown = await one.call("fly")
        assert "unknown tool 'fly'" in unknown["observation"]["error"]["message"]
        failed = await one.call("look", place="broken")
        assert failed["code"] == "EXECUTION_ERROR"
        assert "the author's bug" in failed["message"]
        assert "reward" not in failed
        assert (await one.ask("reset", seed=0))["done"] is False


async def test_a_conversation_goes_on_until_the_user_is_content() -> None:
    async with served(Replies) as (url, _), client(url) as one:
        await one.ask("reset", seed=0)
        asked = await one.call("submit_answer", text="two")
        assert (asked["observation"]["result"]["data"], asked["done"]) == ("Sure?", False)
        assert (await one.call("submit_answer", text="one"))["reward"] == 1.0


async def test_the_turn_limit_ends_the_episode() -> None:
    async with served(max_agent_turns=2) as (url, _), client(url) as one:
        await one.ask("reset", seed=0)
        assert not (await one.call("look", place="a"))["done"]
        assert (await one.call("look", place="a"))["done"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("not json", "INVALID_JSON"),
        ('["reset"]', "UNKNOWN_TYPE"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "reset", "data": 3}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": "1"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "fly"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "call_tool", "tool_name": "look"}}', "VALIDATION_ERROR"),
    ],
)
async def test_what_is_not_of_the_contract_is_an_error_and_the_connection_goes_on(message: str, code: str) -> None:
    async with served() as (url, _), client(url) as one:
        await one.socket.send_str(message)
        answer = await one.socket.receive_json(timeout=20)
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert "observation" in await one.ask("reset", seed=0)


async def test_mcp_tools_are_called_over_http_and_over_the_socket() -> None:
    async with served() as (url, _), aiohttp.ClientSession() as http:

        async def rpc(method: str, **parameters: Any) -> dict[str, Any]:
            request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": parameters}
            async with http.post(f"{url}/mcp", json=request) as answer:
                return dict(await answer.json())

        session = (await rpc("openenv/session/create"))["result"]["session_id"]
        assert (await rpc("tools/call", name="look", arguments={"place": "a"}, session_id=session))["error"]
        async with client(url, f"/ws?session_id={session}") as one:
            await one.ask("reset", seed=2)
            tools = (await rpc("tools/list", session_id=session))["result"]["tools"]
            assert [each["name"] for each in tools] == ["look", "submit_answer"]
            called = await rpc("tools/call", name="look", arguments={"place": "a"}, session_id=session)
            assert called["result"]["data"] == "a: three"
            answer = {"name": "submit_answer", "arguments": {"text": "three"}}
            told = await one.ask("mcp", jsonrpc="2.0", id=1, method="tools/call", params=answer)
            assert told["result"]["is_error"] is False
            last = await one.call("look", place="a")
            assert (last["reward"], last["done"]) == (1.0, True)
        closed = await rpc("openenv/session/close", session_id=session)
        assert closed["result"]["closed"]


async def test_a_connection_too_many_is_refused_and_one_that_ends_makes_room() -> None:
    async with served(max_episodes=1) as (url, _):
        async with client(url) as one:
            await one.ask("reset", seed=0)
            async with client(url) as other:
                refused = await other.socket.receive_json(timeout=20)
                assert refused["data"]["code"] == "CAPACITY_REACHED"
        async with asyncio.timeout(20):
            while True:
                async with client(url) as other:
                    if "observation" in await other.ask("reset", seed=0):
                        break


@pytest.mark.parametrize("during", ["a tool", "the reset"])
async def test_a_client_that_leaves_ends_its_rollout(during: str) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def hang(where: str) -> None:
        if where == during:
            began.set()
            try:
                await asyncio.sleep(60)
            finally:
                ended.set()

    class Waits(WordEnv):
        async def initial_state(self, item: Any) -> None:
            await hang("the reset")

        @tool
        async def wait(self, session: ToolSession) -> str:
            """Wait."""
            await hang("a tool")
            return "late"

    async with served(Waits) as (url, _):
        async with client(url) as one:
            for kind, data in (
                ("reset", {"seed": 0}),
                ("step", {"type": "call_tool", "tool_name": "wait", "arguments": {}}),
            ):
                await one.socket.send_json({"type": kind, "data": data})
            await began.wait()
        async with asyncio.timeout(20):
            await ended.wait()


async def test_other_websites_other_hosts_and_clients_without_the_token_are_refused() -> None:
    async with served() as (url, _):
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with client(url, **headers):
                    pass
            assert refused.value.status == 403
    async with served(token="secret") as (url, _):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            async with client(url):
                pass
        assert refused.value.status == 401
        async with client(url, Authorization="Bearer secret") as one:
            assert "observation" in await one.ask("reset", seed=0)


async def test_environments_that_a_client_cannot_play_are_refused() -> None:
    with pytest.raises(ConfigError, match="comparing them"):
        async with served(Compares):
            pass


async def test_our_own_openenv_environment_gets_the_same_scores_from_it() -> None:
    async with served(max_episodes=4) as (url, _):
        kind = resolve_environment(f"openenv:{url}")
        config, _ = kind.config_init()
        settings = {"rollout_retries": 0, "terminal_backend": "local", "train_seeds": 3, "eval_seeds": 0}
        env = kind(config.model_copy(update=settings), [ENDPOINT])
        scores = []
        async with env.opened():
            for item in env.train_items() or []:
                steps: list[Any] = [("look", {"place": "a"}), ("submit_answer", {"text": "three"})]
                scores.append((await run_script(env, item, steps)).rollout.score)
    assert scores == [0.0, 0.0, 1.0]
