"""`hermes-rl validate`: a table and findings for a person, one JSON object for a program, an exit code for CI."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

NO_TERMINAL: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 100}

ENVIRONMENT = '''
from hermes_rl import HermesAgentBaseEnv, HermesAgentEnvConfig


class Echo(HermesAgentBaseEnv):
    """Say a word."""

    name = "echo"

    @classmethod
    def config_init(cls):
        return HermesAgentEnvConfig(enabled_toolsets=[]), []

    def train_items(self):
        return ["zanzibar", "quixotic", "ephemeral"]

    def eval_items(self):
        return ["labyrinth", "serendipity"]

    def format_prompt(self, item):
        return f"Say {item[::-1]} backwards."

    async def compute_reward(self, item, result, ctx):
        return float(REWARD)

    def oracle(self, item):
        return [item]
'''
SOUND, FORGEABLE = "result.final_response == item", "'PASS' in result.final_response or result.final_response == item"


def validate(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hermes_rl", "validate", *arguments]
    return subprocess.run(command, check=False, cwd=cwd, **(NO_TERMINAL | options))


def written(folder: Path, reward: str) -> str:
    (folder / "echo_env.py").write_text(ENVIRONMENT.replace("REWARD", reward))
    return "echo_env.py"


def test_a_sound_environment_is_told_by_a_table_and_exit_code_0(tmp_path: Path) -> None:
    done = validate(written(tmp_path, SOUND), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "3 train and 2 eval items, pass score 1" in done.stderr
    assert "cheat: claims success" in done.stderr
    assert "echo: no problems found" in done.stderr


def test_a_forgeable_one_is_told_with_the_cheat_and_exit_code_1(tmp_path: Path) -> None:
    done = validate(written(tmp_path, FORGEABLE), "--json", cwd=tmp_path)
    assert done.returncode == 1
    assert 'error the cheat "claims success" passes: 1 on item' in done.stderr
    assert "→ check what the agent cannot have prepared: ctx.verify" in done.stderr
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert [finding["code"] for finding in report["findings"]] == ["cheat_passes"]


def test_how_many_items_and_every_setting_can_be_given(tmp_path: Path) -> None:
    done = validate(written(tmp_path, SOUND), "--items", "2", "--env.pass_score", "2", "--json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert (sum(report["items"].values()), report["pass_score"], done.returncode) == (2, 2.0, 1)
    assert [finding["code"] for finding in report["findings"]] == ["oracle_fails"]


def test_a_file_that_cannot_be_set_up_is_told_without_a_traceback(tmp_path: Path) -> None:
    source = ENVIRONMENT.replace("REWARD", "0") + "\n    async def setup(self):\n        open('missing.json')\n"
    (tmp_path / "broken_env.py").write_text(source)
    done = validate("broken_env.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "setup raised FileNotFoundError" in done.stderr
    assert f" at broken_env.py:{len(source.splitlines())}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_person_sees_a_bar(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "hermes_rl", "validate", written(tmp_path, SOUND)]
    screen = b""
    with subprocess.Popen(command, cwd=tmp_path, stdin=terminal, stdout=terminal, stderr=terminal) as running:
        os.close(terminal)
        try:
            while chunk := os.read(controller, 4096):
                screen += chunk
        except OSError:
            pass
        assert running.wait(60) == 0
    os.close(controller)
    assert b"/44" in screen
    assert b"no problems found" in screen
