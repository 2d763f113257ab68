"""Questions about images: the endpoint gets the very bytes of the file, and its faults never become the policy's."""

import base64
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hermes_rl.core.errors import ConfigError, ToolHostError
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Backend
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools, open_toolsets
from hermes_rl.tools.session import ToolOutcome, ToolSession
from hermes_rl.tools.vision import _grey_square, media_type
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import (
    Calls,
    EmptyChoices,
    Garbage,
    Hang,
    RawMessage,
    Reply,
    Reset,
    ScriptedModel,
    Status,
    Text,
    Truncated,
    always,
    in_order,
)

# Bytes of every value, so that nothing on the way may treat them as text.
NOISE = bytes(range(256)) * 40
IMAGES = {
    "image/png": _grey_square(3) + NOISE,
    "image/jpeg": b"\xff\xd8\xff\xe0" + NOISE,
    "image/gif": b"GIF89a" + NOISE,
    "image/webp": b"RIFF\x00\x10\x00\x00WEBPVP8 " + NOISE,
}
PNG = IMAGES["image/png"]
SECRET = "sk-vision-123"


def image_in(request: dict[str, Any]) -> tuple[str, bytes, str]:
    """The media type and the bytes of the image in a request, and the question; fails on any other form."""
    [message] = request["messages"]
    [question, image] = message["content"]
    assert (message["role"], question["type"], image["type"]) == ("user", "text", "image_url")
    head, _, data = image["image_url"]["url"].partition(";base64,")
    return head.removeprefix("data:"), base64.b64decode(data, validate=True), question["text"]


def describes(request: dict[str, Any]) -> Reply:
    """An endpoint that answers only to what it really received."""
    kind, data, question = image_in(request)
    return Text(f"{kind} {len(data)} {zlib.crc32(data)} {question}")


@asynccontextmanager
async def endpoint(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[str]:
    """An endpoint for what the scripted model does not see: headers and very large bodies."""
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def vision(base_url: str, backend: Backend | None = None, **settings: Any) -> AsyncIterator[ToolSession]:
    values = {"base_url": base_url, "model_name": "eyes", "health_check": False, "max_retries": 0, **settings}
    async with open_toolsets(["vision"], {"vision": values}) as toolsets:
        pool = SandboxPool(backend or LocalBackend())
        host = ToolHost(all_tools(), pool, calls_in_flight=4, terminal_timeout=10, toolsets=toolsets)
        try:
            yield host.session("rollout")
        finally:
            await host.close()


async def look(session: ToolSession, image: bytes = PNG, path: str = "picture") -> ToolOutcome:
    await (await session.sandbox()).write(f"{(await session.sandbox()).workspace}/{path}", image)
    return await session.call("vision_analyze", {"path": path, "question": "what is it?"})


@pytest.mark.parametrize("kind", IMAGES)
async def test_the_endpoint_receives_the_exact_bytes_of_the_file(backend: Backend, kind: str) -> None:
    async with ScriptedModel(describes) as model, vision(model.base_url, backend) as session:
        outcome = await look(session, IMAGES[kind])
    assert image_in(model.bodies[0]) == (kind, IMAGES[kind], "what is it?")
    expected = f"{kind} {len(IMAGES[kind])} {zlib.crc32(IMAGES[kind])} what is it?"
    assert (json.loads(outcome.text), outcome.error) == ({"answer": expected}, None)
    assert model.bodies[0]["model"] == "eyes"


async def test_a_redirect_of_the_endpoint_is_not_followed() -> None:
    """The author named this host and no other; with the redirect, image and key would go there."""
    async with ScriptedModel(describes) as other:

        async def redirects(_: web.Request) -> web.Response:
            raise web.HTTPTemporaryRedirect(f"{other.base_url}/chat/completions")

        async with endpoint(redirects) as url, vision(url) as session:
            with pytest.raises(ToolHostError, match="answered HTTP 307"):
                await look(session)
    assert not other.bodies


async def test_an_image_of_megabytes_arrives_whole() -> None:
    large = PNG + bytes(4 * 1024 * 1024)
    seen: list[bytes] = []

    async def answers(request: web.Request) -> web.Response:
        seen.append(image_in(await request.json())[1])
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": "large"}}]})

    async with endpoint(answers) as base_url, vision(base_url) as session:
        assert (await look(session, large)).text == '{"answer":"large"}'
    assert seen == [large]


async def test_the_name_of_a_file_says_nothing_about_its_kind() -> None:
    async with ScriptedModel(describes) as model, vision(model.base_url) as session:
        assert "image/gif" in (await look(session, IMAGES["image/gif"], "photo.jpg")).text
        assert (await look(session, b"<svg/>", "photo.png")).error == (
            "photo.png is not a PNG, JPEG, GIF or WebP image; convert it first"
        )
    assert model.requests == 1


@pytest.mark.parametrize(
    ("path", "told"),
    [("nowhere.png", "there is no file nowhere.png"), (".", ". is a directory"), ("/dev/null", "not a regular file")],
)
async def test_what_cannot_be_read_is_told_to_the_model(path: str, told: str) -> None:
    async with ScriptedModel(describes) as model, vision(model.base_url) as session:
        outcome = await session.call("vision_analyze", {"path": path, "question": "what?"})
    assert told in (outcome.error or "")
    assert model.requests == 0


async def test_an_image_over_the_bound_is_refused() -> None:
    async with ScriptedModel(describes) as model, vision(model.base_url, max_image_bytes=len(PNG) - 1) as session:
        assert f"larger than {len(PNG) - 1} bytes" in ((await look(session)).error or "")
    assert model.requests == 0


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_an_image_that_the_endpoint_refuses_is_told_to_the_model(status: int) -> None:
    script = always(Status(status, {"error": {"message": "cannot decode image"}}))
    async with ScriptedModel(script) as model, vision(model.base_url, max_retries=3) as session:
        outcome = await look(session)
    assert "the vision model refused the image" in (outcome.error or "")
    assert "cannot decode image" in (outcome.error or "")
    assert model.requests == 1


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (Status(401), "http_401"),
        (Status(404), "http_404"),
        (Status(429), "http_429"),
        (Status(503), "http_503"),
        (Garbage(), "bad_response"),
        (EmptyChoices(), "bad_response"),
        (RawMessage({"role": "assistant", "content": None}), "bad_response"),
        (Text("  "), "bad_response"),
        (Truncated(), "connection"),
        (Reset(), "connection"),
        (Hang(), "timeout"),
    ],
)
async def test_what_the_endpoint_does_wrong_is_the_worlds_fault(reply: Reply, cause: str) -> None:
    async with ScriptedModel(always(reply)) as model, vision(model.base_url, timeout=2) as session:
        with pytest.raises(ToolHostError) as caught:
            await look(session)
    assert caught.value.cause == cause
    assert model.base_url in str(caught.value) and "model eyes" in str(caught.value)


async def test_a_passing_fault_is_tried_again() -> None:
    script = in_order(Status(503), Reset(), then=Text("a cat"))
    async with ScriptedModel(script) as model, vision(model.base_url, max_retries=3) as session:
        assert json.loads((await look(session)).text) == {"answer": "a cat"}
    assert model.requests == 3


async def test_an_answer_in_parts_is_put_together() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "cat"}]
    async with (
        ScriptedModel(always(RawMessage({"role": "assistant", "content": parts}))) as model,
        vision(model.base_url) as session,
    ):
        assert json.loads((await look(session)).text) == {"answer": "a cat"}


async def test_the_key_goes_into_the_request_and_into_no_error(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def repeats_the_key(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.Response(status=401, text=f"wrong key: {request.headers.get('Authorization')}")

    (tmp_path / "key").write_text(SECRET + "\n")
    async with endpoint(repeats_the_key) as base_url, vision(base_url, api_key=f"file:{tmp_path}/key") as session:
        with pytest.raises(ToolHostError) as caught:
            await look(session)
    assert seen == [f"Bearer {SECRET}"]
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, r"needs a multimodal model: set tool_settings\.vision\.base_url"),
        ({"base_url": "localhost:1", "model_name": "eyes"}, r"tool_settings\.vision\.base_url"),
        ({"base_url": "http://127.0.0.1:1/v1"}, r"tool_settings\.vision\.model_name"),
        ({"api_key": SECRET}, r"api_key: Value error, write env:NAME or file:PATH here, not the key itself$"),
        (
            {"base_url": "http://127.0.0.1:1/v1", "model_name": "eyes", "api_key": "env:NO_SUCH_KEY"},
            r"tool_settings\.vision\.api_key names the variable NO_SUCH_KEY, which is not set",
        ),
        (
            {"base_url": "http://127.0.0.1:1/v1", "model_name": "eyes", "max_retries": 0},
            r"the vision toolset does not work: http://127\.0\.0\.1:1/v1 .*cannot be reached",
        ),
    ],
)
async def test_settings_that_cannot_work_are_refused_at_the_start(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        async with open_toolsets(["vision"], {"vision": settings}):
            pass


async def test_an_endpoint_that_reads_no_images_is_refused_at_the_start() -> None:
    async with ScriptedModel(always(Status(400, "this model takes no images"))) as model:
        with pytest.raises(ConfigError, match="this model takes no images"):
            async with vision(model.base_url, health_check=True):
                pass
    kind, data, _ = image_in(model.bodies[0])
    assert (kind, media_type(data)) == ("image/png", "image/png")


class VisionEnv(FileEnv):
    default_toolsets = ("vision", "terminal")


async def test_an_agent_looks_at_the_image_it_made() -> None:
    """The agent writes an image into its sandbox, asks what it shows, and writes down what it was told."""
    make = f"echo {base64.b64encode(PNG).decode()} | base64 -d > seen.png"

    def agent(request: dict[str, Any]) -> Reply:
        match [message for message in request["messages"] if message["role"] == "tool"]:
            case []:
                return Calls([("terminal", json.dumps({"command": make}))])
            case [_]:
                return Calls([("vision_analyze", json.dumps({"path": "seen.png", "question": "which number?"}))])
            case [_, told]:
                answer = json.loads(told["content"])["answer"]
                return Calls([("terminal", json.dumps({"command": f"echo {answer} > answer"}))])
        return Text("done")

    def eyes(request: dict[str, Any]) -> Reply:
        return Text("7" if image_in(request)[1] == PNG else "nothing")

    async with ScriptedModel(eyes) as seeing, ScriptedModel(agent) as model:
        settings = {"vision": {"base_url": seeing.base_url, "model_name": "eyes"}}
        async with opened(VisionEnv, model, tool_settings=settings) as env:
            group = await run_group(env, {"number": 7}, size=2)
    assert group.scores == [1.0, 1.0]
    assert seeing.requests == 3  # two rollouts, and the question before the first


async def test_a_call_that_the_endpoint_fails_is_a_tool_error_and_the_rollout_is_scored() -> None:
    """The policy chose the image, so a 500 must not void its rollout."""
    call = ("vision_analyze", json.dumps({"path": "seen.png", "question": "?"}))
    make = ("terminal", json.dumps({"command": f"echo {base64.b64encode(PNG).decode()} | base64 -d > seen.png"}))
    async with (
        ScriptedModel(in_order(Text("grey"), then=Status(500))) as seeing,
        ScriptedModel(in_order(Calls([make]), Calls([call]), then=Text("done"))) as model,
    ):
        settings = {"vision": {"base_url": seeing.base_url, "model_name": "eyes", "max_retries": 0}}
        async with opened(VisionEnv, model, tool_settings=settings, rollout_retries=0) as env:
            group = await run_group(env, {"number": 7}, size=1)
    assert group.rollouts[0].failure is None
    assert group.scores == [0.0]
    assert list(group.rollouts[0].metadata["charged"]) == ["tool/http_500"]
    result = [message for message in group.rollouts[0].messages if message["role"] == "tool"][-1]
    assert "error" in json.loads(result["content"])
