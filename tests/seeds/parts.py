"""What the seeds' files run on: a scripted model with a chat and a token route, and the commands of the guide."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from hermes_rl.cli.main import hermes_rl as commands
from hermes_rl.console.config_options import read_sections
from hermes_rl.console.run_command import run_click
from hermes_rl.environment.command import _serve
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.resolve_config import resolve_settings
from tests.support.chat_models import chat_model
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Status, Text
from tests.support.token_servers import Asked, Tokens, VLLMServer

MODEL = chat_model("chatml")
FIXTURES = Path(__file__).parent / "fixtures"
VERDICT = '{"score": 1.0}'


def next_step(prompt: str, *, answered: bool) -> str | tuple[str, dict[str, str]]:
    """What the model says to the last user message, or the tool it calls: it does what it is asked."""
    if "Reply with JSON" in prompt:
        return VERDICT
    if prompt.startswith("add "):
        return str(sum(map(int, prompt.split()[1:])))
    number = prompt.rsplit(maxsplit=1)[-1]
    return f"wrote {number}" if answered else ("terminal", {"command": f"echo {number} > answer"})


def chats(request: dict[str, Any]) -> Reply:
    messages = request["messages"]
    prompt = next(message["content"] for message in reversed(messages) if message["role"] == "user")
    step = next_step(prompt, answered=messages[-1]["role"] == "tool")
    return Text(step) if isinstance(step, str) else Calls([(step[0], json.dumps(step[1]))])


def samples(asked: Asked) -> Tokens:
    turns = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False).split("<|im_start|>")
    users = [turn.removeprefix("user\n").partition("<|im_end|>")[0] for turn in turns if turn.startswith("user\n")]
    prompts = [text for text in users if "<tool_response>" not in text]
    answered = any("<tool_response>" in turn or turn.startswith("tool\n") for turn in turns)
    step = next_step(prompts[-1], answered=answered)
    if not isinstance(step, str):
        step = f"<tool_call>\n{json.dumps({'name': step[0], 'arguments': step[1]})}\n</tool_call>"
    return Tokens((*MODEL.tokenizer.encode(step, add_special_tokens=False), MODEL.stop_ids[0]))


class SeedModel(VLLMServer):
    """Both routes on one port, as vLLM has them; a request for n chat completions gets n."""

    def __init__(self) -> None:
        super().__init__(samples)
        sampled = self.script
        self.script = lambda body: chats(body) if "messages" in body else sampled(body)

    def _whole(self, body: dict[str, Any], reply: Any) -> web.Response:
        if "messages" not in body:
            return super()._whole(body, reply)
        response = ScriptedModel._whole(self, body, reply)
        assert isinstance(response.body, bytes)
        answer = json.loads(response.body)
        answer["choices"] = [{**answer["choices"][0], "index": index} for index in range(body.get("n", 1))]
        return web.json_response(answer)


class FailingModel(SeedModel):
    """The requests that `fails` is true of are answered with a 500."""

    def __init__(self, fails: Callable[[dict[str, Any]], bool]) -> None:
        super().__init__()
        answers = self.script
        self.script = lambda body: Status(500) if fails(body) else answers(body)

    def _whole(self, body: dict[str, Any], reply: Any) -> web.Response:
        return ScriptedModel._whole(self, body, reply) if isinstance(reply, Status) else super()._whole(body, reply)


def openai_flags(base_url: str, server_type: str = "openai") -> tuple[str, ...]:
    return (
        *("--openai.base_url", base_url, "--openai.model_name", "scripted"),
        *("--openai.server_type", server_type, "--openai.health_check", "false"),
    )


async def python(file: Path, verb: str, *flags: str, folder: Path) -> str:
    """`python FILE VERB …` in a folder, with a home of its own; what it printed."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(file), verb, *flags],
        cwd=folder,
        env={**os.environ, "HERMES_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def hermes_rl(file: Path, verb: str, *flags: str) -> None:
    """`hermes-rl VERB FILE …` in this process, which saves its imports; not for serve, which needs the main thread."""
    code = await asyncio.to_thread(run_click, commands, [verb, str(file), *flags], "hermes-rl")
    assert code == 0, f"exit code {code}"


async def serve(file: Path, *flags: str) -> dict[str, Any]:
    """The same for serve, on the running event loop; what it would print as JSON."""
    environment = load_environment(str(file))
    sections: dict[str, dict[str, str]] = {"env": {}, "openai": {}}
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        section, _, name = flag.removeprefix("--").partition(".")
        sections[section][name] = value
    settings = resolve_settings(environment, read_sections(None), sections["env"], sections["openai"])
    return await _serve(environment, settings)


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
