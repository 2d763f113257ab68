"""The other ready-made agents, really installed, in a bubblewrap sandbox on terminal_test: each in its own dialect."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hermes_rl.agent.harnesses.registry import get_agent
from hermes_rl.core.trajectory import Rollout, StopReason
from hermes_rl.extensions import AGENTS
from tests.support.ready_made import WORD, Script, assert_every_token_is_accounted_for, call, ready_made, rollout_of

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = f"echo {WORD} > out.txt"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in AGENTS.builtin if get_agent(name).pip])
def test_it_installs(name: str) -> None:
    """First, because fetching hundreds of megabytes would eat the time limits of the other tests."""
    with ready_made(name) as folder:
        assert folder.is_dir()


async def does_the_task(name: str, speak: Callable[[str, int], str], folder: Path) -> Rollout:
    script = Script(speak)
    with ready_made(name):
        rollout = await rollout_of(script, folder, agent_command=f"agent:{name}")
    assert (rollout.score, rollout.stop_reason) == (1.0, StopReason.NATURAL), rollout.metadata["program"]
    assert_every_token_is_accounted_for(rollout, script)
    return rollout


async def test_codex_does_the_task_in_the_dialect_of_responses(tmp_path: Path) -> None:
    rollout = await does_the_task("codex", lambda _, turn: [call("exec_command", cmd=COMMAND), "Done."][turn], tmp_path)
    assert len(rollout.sequences) == 1
    assert rollout.messages[0]["content"].startswith("You are a coding agent running in the Codex CLI")


async def test_claude_code_does_the_task_in_the_dialect_of_anthropic(tmp_path: Path) -> None:
    answers = [call("Bash", command=COMMAND, description="Write the word"), "Done."]
    rollout = await does_the_task("claude-code", lambda _, turn: answers[turn], tmp_path)
    assert rollout.metadata["program"]["output"].endswith("Done.\n")


async def test_claude_code_compacts_for_the_models_context(tmp_path: Path) -> None:
    def speak(read: str, _: int) -> str:
        if "<summary> block" in read[-1000:]:
            return "<summary>It counted.</summary>"
        if "It counted." not in read:
            return call("Bash", command="seq 1500", description="Count")
        return "Done." if COMMAND in read else call("Bash", command=COMMAND, description="Write the word")

    rollout = await does_the_task("claude-code", speak, tmp_path)
    assert len(rollout.sequences) > 1


async def test_opencode_does_the_task(tmp_path: Path) -> None:
    def speak(read: str, turn: int) -> str:
        if "title generator" in read:
            return "A word in a file"
        return [call("bash", command=COMMAND, description="Write the word"), "Done."][turn]

    await does_the_task("opencode", speak, tmp_path)


async def test_qwen_code_does_the_task(tmp_path: Path) -> None:
    answers = [call("run_shell_command", command=COMMAND, is_background=False), "Done."]
    await does_the_task("qwen-code", lambda _, turn: answers[turn], tmp_path)


async def test_gemini_cli_does_the_task_in_the_dialect_of_google(tmp_path: Path) -> None:
    answers = [call("run_shell_command", command=COMMAND), "Done."]
    await does_the_task("gemini-cli", lambda _, turn: answers[turn], tmp_path)


async def test_mini_swe_agent_does_the_task(tmp_path: Path) -> None:
    submit = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    answers = [call("bash", command=COMMAND), submit]
    await does_the_task("mini-swe-agent", lambda _, turn: answers[turn], tmp_path)


async def test_openhands_does_the_task(tmp_path: Path) -> None:
    finish = call("finish", message="Done.")
    answers = [call("terminal", command=COMMAND, security_risk="LOW", summary="Write the word"), finish]
    await does_the_task("openhands", lambda _, turn: answers[turn], tmp_path)


async def test_aider_does_the_task_with_edits_in_text(tmp_path: Path) -> None:
    await does_the_task("aider", lambda *_: f"out.txt\n```\n{WORD}\n```\n", tmp_path)


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
