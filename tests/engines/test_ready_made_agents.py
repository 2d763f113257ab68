"""The other ready-made agents, really installed, in a bubblewrap sandbox on terminal_test: each in its own dialect."""

from pathlib import Path

import pytest

from hermes_rl.core.trajectory import StopReason
from tests.support.ready_made import WORD, Script, assert_every_token_is_accounted_for, call, ready_made, rollout_of

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = f"echo {WORD} > out.txt"


async def test_codex_does_the_task_in_the_dialect_of_responses(tmp_path: Path) -> None:
    script = Script(lambda _, turn: [call("exec_command", cmd=COMMAND), "Done."][turn])
    with ready_made("codex"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:codex")
    assert (rollout.score, rollout.stop_reason, len(rollout.sequences)) == (1.0, StopReason.NATURAL, 1)
    assert rollout.messages[0]["content"].startswith("You are a coding agent running in the Codex CLI")
    assert_every_token_is_accounted_for(rollout, script)


@pytest.mark.parametrize("example", ["agent_openai.py", "agent_anthropic.py"])
async def test_an_agent_of_30_lines_does_the_task(example: str, tmp_path: Path) -> None:
    script = Script(lambda read, _: "Done." if "[exit status 0]" in read else call("terminal", command=COMMAND))
    files = {"agent.py": str(EXAMPLES / example)}
    with ready_made("sdk"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:sdk", agent_files=files)
    assert (rollout.score, rollout.stop_reason, len(rollout.sequences)) == (1.0, StopReason.NATURAL, 1)
    assert rollout.metadata["program"]["output"] == "Done.\n"
    assert_every_token_is_accounted_for(rollout, script)
