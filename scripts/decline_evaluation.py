#!/usr/bin/env python3
"""Evaluates swe with an honest policy and with one that breaks its sandbox where it would lose.

scripts/decline_evaluation.py [--command "hermes-rl"]   about five minutes

Both fix two of the six held-out repositories. The honest one gives up on the others; the other stops every process that
reads a file for the host, and then reads one. A score that could be declined would raise its pass rate from 0.33 to 1.
`--command` may be that of an older version.
"""

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from tests.redteam.declining import DECLINES  # noqa: E402
from tests.support.scripted_model import Calls, Reply, ScriptedModel, Text  # noqa: E402

DATA = CHECKOUT / "environments" / "data" / "swe.jsonl"
SOLVED = 2
GIVE_UP = (Text("I give up."),)
DECLINE = next(one for one in DECLINES if one.name == "readers stopped")


def plays(*, declines: bool) -> dict[str, tuple[Reply, ...]]:
    """The replies of a policy to each held-out item, by the report that its prompt contains."""
    items = [item for line in DATA.read_text().splitlines() if (item := json.loads(line))["split"] == "eval"]
    others = DECLINE.replies if declines else GIVE_UP
    return {item["issue"]: fix(item) if place < SOLVED else tuple(others) for place, item in enumerate(items)}


def fix(item: dict[str, Any]) -> tuple[Reply, ...]:
    calls = [
        ("patch", json.dumps({"path": f"repo/{one['path']}", "old_string": one["old"], "new_string": one["new"]}))
        for one in item["fix"]
    ]
    return Calls(calls), Text("The bug is fixed.")


async def evaluate(command: list[str], *, declines: bool) -> None:
    by_issue = plays(declines=declines)

    def script(request: dict[str, Any]) -> Reply:
        messages = request["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        replies = next(replies for issue, replies in by_issue.items() if issue in prompt)
        turn: int = sum(message["role"] == "assistant" for message in messages)
        return replies[min(turn, len(replies) - 1)]

    with tempfile.TemporaryDirectory() as folder:
        async with ScriptedModel(script) as model:
            process = await asyncio.create_subprocess_exec(
                *command, "evaluate", "swe", "--env.eval_samples", "1", "--env.data_dir_to_save_evals", folder,
                "--openai.base_url", model.base_url, "--openai.model_name", model.model_name,
                stdin=asyncio.subprocess.DEVNULL, cwd=folder,
            )  # fmt: skip
            status = await process.wait()
    print(f"{'declining' if declines else 'honest'} policy: exit code {status}\n", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", default="hermes-rl", type=shlex.split, help="what runs hermes-rl")
    command = parser.parse_args().command
    for declines in (False, True):
        await evaluate(command, declines=declines)


if __name__ == "__main__":
    asyncio.run(main())
