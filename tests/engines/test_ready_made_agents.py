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


async def test_claude_code_does_the_task_in_the_dialect_of_anthropic(tmp_path: Path) -> None:
    script = Script(lambda _, turn: [call("Bash", command=COMMAND, description="Write the word"), "Done."][turn])
    with ready_made("claude-code"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:claude-code")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert rollout.metadata["program"]["output"].endswith("Done.\n")
    assert_every_token_is_accounted_for(rollout, script)


async def test_claude_code_compacts_for_the_models_context(tmp_path: Path) -> None:
    def speak(read: str, _: int) -> str:
        if "<summary> block" in read[-1000:]:
            return "<summary>It counted.</summary>"
        if "It counted." not in read:
            return call("Bash", command="seq 1500", description="Count")
        return "Done." if COMMAND in read else call("Bash", command=COMMAND, description="Write the word")

    script = Script(speak)
    with ready_made("claude-code"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:claude-code")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL), rollout.metadata["program"]
    assert len(rollout.sequences) > 1
    assert_every_token_is_accounted_for(rollout, script)


async def test_opencode_does_the_task(tmp_path: Path) -> None:
    def speak(read: str, turn: int) -> str:
        if "title generator" in read:
            return "A word in a file"
        return [call("bash", command=COMMAND, description="Write the word"), "Done."][turn]

    script = Script(speak)
    with ready_made("opencode"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:opencode")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert_every_token_is_accounted_for(rollout, script)


async def test_qwen_code_does_the_task(tmp_path: Path) -> None:
    script = Script(lambda _, turn: [call("run_shell_command", command=COMMAND, is_background=False), "Done."][turn])
    with ready_made("qwen-code"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:qwen-code")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert_every_token_is_accounted_for(rollout, script)


async def test_mini_swe_agent_does_the_task(tmp_path: Path) -> None:
    submit = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    script = Script(lambda _, turn: [call("bash", command=COMMAND), submit][turn])
    with ready_made("mini-swe-agent"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:mini-swe-agent")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert_every_token_is_accounted_for(rollout, script)


async def test_aider_does_the_task_with_edits_in_text(tmp_path: Path) -> None:
    script = Script(lambda *_: f"out.txt\n```\n{WORD}\n```\n")
    with ready_made("aider"):
        rollout = await rollout_of(script, tmp_path, agent_command="agent:aider")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL)
    assert_every_token_is_accounted_for(rollout, script)


async def test_an_agent_of_the_agent_client_protocol_does_the_task(tmp_path: Path) -> None:
    script = Script(lambda read, _: "Done." if "[exit status 0]" in read else call("terminal", command=COMMAND))
    with ready_made("acp"):
        rollout = await rollout_of(
            script,
            tmp_path,
            agent_command="agent:acp python3 agent.py",
            agent_packages=["agent-client-protocol==0.12.1", "openai"],
            agent_files={"agent.py": str(Path(__file__).with_name("acp_agent.py"))},
            agent_env={"MODEL": "{model}"},
        )
    assert (rollout.score, rollout.stop_reason, len(rollout.sequences)) == (1.0, StopReason.NATURAL, 1)
    assert rollout.metadata["program"]["output"] == "Done.\nthe turn ended: end_turn\n"
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
