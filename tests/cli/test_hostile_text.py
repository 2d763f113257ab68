"""Text of a model, a tool, an item, a file name or a server is shown on the terminal and never interpreted by it."""

import asyncio
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.scripted_model import Calls, ScriptedModel, Text

# Sets the clipboard and the window's title, uses an 8-bit CSI, reverses the direction of text; then rich markup.
HOSTILE = "\x1b]52;c;cHduZWQ=\x07\x1b]0;owned\x07\x9b31m\u202e[/x] \\[/x] [red]"
INTERPRETED = ("\x1b]", "\x07", "\x9b", "\u202e")
FILE = "\x1b]0;owned\x07 \\[_x] [red]"

ENVIRONMENT = f'''
from hermes_rl import HermesAgentBaseEnv, Reward

HOSTILE = {HOSTILE!r}


class HostileEnv(HermesAgentBaseEnv):
    """Describes itself: {HOSTILE.encode("unicode_escape").decode()}"""

    name = "hostile"
    default_toolsets = ("terminal",)

    def train_items(self):
        return [HOSTILE, HOSTILE + "2"]

    def eval_items(self):
        return [HOSTILE + "3"]

    def item_id(self, item):
        return item

    def format_prompt(self, item):
        return item

    async def compute_reward(self, item, result, ctx):
        if "fails" in result.messages[-1]["content"]:
            raise ValueError(HOSTILE)
        return Reward(1.0, {{HOSTILE: 1.0}})
'''


def answer(request: dict[str, Any]) -> Text | Calls:
    if request["messages"][-1]["role"] == "tool":
        return Text(HOSTILE + ("fails" if request["seed"] % 2 else ""))
    return Calls([("terminal", r'{"command": "printf \"\\033]52;c;eA==\\007[/x]\"; date +%N"}')], HOSTILE)


def on_terminal(*arguments: str, cwd: Path) -> str:
    """Everything a command prints to a pseudo-terminal, with both outputs there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hermes_rl", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "HERMES_HOME": str(cwd)}
    printed = bytearray()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=environment):
        os.close(theirs)
        while True:
            try:
                printed += os.read(ours, 65536)
            except OSError:
                break
    os.close(ours)
    return printed.decode()


def assert_only_shown(printed: str) -> None:
    assert [text for text in INTERPRETED if text in printed] == [], printed
    assert "Traceback" not in printed, printed
    assert "\\u001b]" in printed, f"what was there is shown: {printed}"


async def test_commands_show_hostile_text_and_do_not_send_it_to_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "hostile_env.py").write_text(ENVIRONMENT)
    file = tmp_path / f"{FILE}.jsonl"
    flags = ("--env.total_steps", "2", "--env.group_size", "2", "--env.data_path_to_save_groups", str(file))
    async with ScriptedModel(answer, serves=(HOSTILE,)) as model:
        endpoint = ("--openai.base_url", model.base_url, "--openai.model_name", HOSTILE, "--openai.max_retries", "0")

        async def printed_by(*arguments: str) -> str:
            return await asyncio.to_thread(on_terminal, *arguments, cwd=tmp_path)

        assert_only_shown(await printed_by("process", "hostile_env.py", *flags, *endpoint))
        assert file.exists(), "its name is not markup"
        assert_only_shown(await printed_by("evaluate", "hostile_env.py", *endpoint))
        assert_only_shown(await printed_by("replay", str(file), "--env", "hostile_env.py"))
        assert_only_shown(await printed_by("rescore", str(file), "--env", "hostile_env.py"))
        assert_only_shown(await printed_by("env", "show", "hostile_env.py"))
        assert_only_shown(await printed_by("replay", f"no{FILE}"))
