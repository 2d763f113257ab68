"""The agents of 30 lines, run as they are against a gateway: they do what the model says and the tokens are kept."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from tests.support.gateway import gateway, says

EXAMPLES = Path(__file__).parents[3] / "examples"
CALL = "<tool_call>\n{}\n</tool_call>".format(
    json.dumps({"name": "terminal", "arguments": {"command": "echo moon > out.txt"}})
)


async def run(example: str, folder: Path, root: str, key: str) -> str:
    """What an example says in the end; it works in the folder."""
    task = "Echo moon into out.txt"
    (folder / "prompt").write_text(task)
    (folder / "messages").write_text(json.dumps([{"role": "user", "content": task}]))
    env = {
        "PATH": os.environ["PATH"],
        "OPENAI_BASE_URL": f"{root}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": root,
        "ANTHROPIC_API_KEY": key,
        "MODEL": "policy",
        "PROMPT_FILE": str(folder / "prompt"),
        "MESSAGES_FILE": str(folder / "messages"),
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / example), cwd=folder, env=env, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        said, _ = await child.communicate()
    assert child.returncode == 0
    return said.decode()


@pytest.mark.parametrize("example", ["agent_openai.py", "agent_anthropic.py"])
async def test_an_example_does_the_task_and_every_token_is_kept(example: str, tmp_path: Path) -> None:
    async with gateway(says(CALL, "Done.")) as server, server.visit() as visit:
        assert await run(example, tmp_path, visit.url, visit.opened.key) == "Done.\n"
        assert (tmp_path / "out.txt").read_text() == "moon\n"
        (sequence,) = visit.checked().sequences
        assert not visit.checked().breaches
        assert server.engine.requests == 2
        assert sum(sequence.mask) == visit.rollout.used.tokens
