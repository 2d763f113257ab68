"""`hermes-rl sandbox …` as a person and as a program meet it."""

import json
import os
import pty
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_command import hermes_rl

ROOT = Path(__file__).parents[2]
BROKEN = """
    from dataclasses import replace
    from hermes_rl.sandbox.backends.local import LocalBackend

    class Broken(LocalBackend):
        def __init__(self, word: str, number: int = 0) -> None:
            super().__init__()
            self.word, self.number = word, number

        async def start(self, spec=None):
            sandbox = await super().start(spec)
            run = sandbox.run

            async def lose_the_exit_code(command):
                return replace(await run(command), exit_code=self.number)

            sandbox.run = lose_the_exit_code
            return sandbox
"""
ENVIRONMENT = """
    from hermes_rl import HermesAgentBaseEnv
    from hermes_rl.sandbox.spec import SandboxSpec

    class Env(HermesAgentBaseEnv):
        default_toolsets = ("terminal",)

        async def setup(self):
            self._eval_items = [1, 2, 3, 1]

        async def get_next_item(self):
            return 1

        def format_prompt(self, item):
            return str(item)

        async def compute_reward(self, item, result, ctx):
            return 0.0

        def sandbox_spec(self, item):
            return SandboxSpec(files={"number": str(item)}, setup="grep -v 7 number || { echo no sevens; exit 1; }")
"""
OWNER = """
    import asyncio, os
    from hermes_rl.sandbox.backends.local import LocalBackend

    async def main():
        await LocalBackend().start()
        os.kill(os.getpid(), 9)

    asyncio.run(main())
"""


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """The variables of a person who has no account anywhere and no daemon."""
    nowhere = f"unix://{tmp_path}/none.sock"
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    own = {"HOME": str(tmp_path), "HERMES_HOME": str(tmp_path / "hermes")}
    return kept | own | {"DOCKER_HOST": nowhere, "CONTAINER_HOST": nowhere}


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def test_help_names_the_four_verbs() -> None:
    shown = hermes_rl("sandbox", "--help").stdout
    assert all(verb in shown for verb in ("check", "list", "prepare", "reap"))


def test_a_check_that_passes_is_shown_by_groups(home: dict[str, str]) -> None:
    done = hermes_rl("sandbox", "check", "local", "--only", "exit code", env=home)
    assert done.returncode == 0, done.stderr
    assert "sandbox check · local" in done.stderr
    assert "exec" in done.stderr
    assert done.stdout == ""


def test_a_check_that_fails_tells_what_was_seen_and_ends_with_1(home: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, "broken.py", BROKEN)
    flags = ["--only", "exit_codes", "--setting", "word=x", "--setting", "number=3", "--json"]
    done = hermes_rl("sandbox", "check", "broken.py:Broken", *flags, env=home, cwd=tmp_path)
    assert done.returncode == 1
    assert "failed exit_codes_are_returned" in done.stderr
    assert "the exit code of `exit 0` was 3, expected 0" in done.stderr
    report = json.loads(done.stdout)
    assert (report["passed"], report["counts"]["failed"]) == (False, 1)


def test_the_example_of_the_docs_can_be_checked(home: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "extending.md").read_text().split("## The contract of a backend")[1]
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"```bash\nhermes-rl (.*?)\n```", page, re.DOTALL)
    (tmp_path / "my_module.py").write_text(example)
    done = hermes_rl(*command.split(), "--only", "start", "--json", env=home, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["backend"], report["passed"]) == ("mine", True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("check", "dokcer"), "choose one of auto, bubblewrap, daytona, docker"),
        (("check", "no_such_module:Backend"), "cannot be loaded: ModuleNotFoundError"),
        (("check", "no_such_file.py:Backend"), "there is no file"),
        (("check", "json:Backend"), "json has no 'Backend'"),
        (("check", "json:JSONDecoder", "--setting", "colour=red"), "unexpected keyword argument 'colour'"),
        (("check", "local", "--setting", "colour"), "such as --setting port=2222"),
        (("check", "local", "--only", "no such check"), "the groups are start, exec"),
        (("prepare",), "the first argument must be an environment"),
        (
            ("prepare", "nowhere"),
            "no environment is named 'nowhere'; known: append_log, gsm8k",
        ),
        (("prepare", "terminal_test", "--env.terminal_backend", "dokcer"), "choose one of auto"),
    ],
)
def test_a_wrong_call_is_told_without_a_traceback(arguments: tuple[str, ...], told: str, home: dict[str, str]) -> None:
    done = hermes_rl("sandbox", *arguments, env=home)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_person_at_the_terminal_sees_how_far_the_check_is(home: dict[str, str]) -> None:
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "hermes_rl", "sandbox", "check", "local", "--only", "kills"]
    variables = home | {"TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=variables) as run:
        os.close(terminal)
        screen = b""
        while not re.search(rb"check local.*[1-9]/\d", screen):
            screen += os.read(controller, 4096)
        run.terminate()
    os.close(controller)


def test_the_list_says_what_works_here_and_what_it_holds(home: dict[str, str]) -> None:
    done = hermes_rl("sandbox", "list", "--json", env=home)
    listed: dict[str, Any] = {row["name"]: row for row in json.loads(done.stdout)}
    assert list(listed) == ["bubblewrap", "docker", "podman", "ssh", "singularity", "modal", "daytona", "local"]
    assert listed["bubblewrap"]["works"]
    assert "disk_mb" in listed["bubblewrap"]["capabilities"]["limits"]
    assert not any(listed[name]["works"] for name in ("docker", "podman", "ssh"))
    assert all(row["reason"] for row in listed.values() if not row["works"])


def test_the_list_for_people_calls_local_no_sandbox(home: dict[str, str]) -> None:
    shown = hermes_rl("sandbox", "list", env=home).stdout
    assert re.search(r"bubblewrap +works here\n +isolates files and processes; network off or on", shown)
    assert re.search(r"local +works here\n +NO SANDBOX", shown)
    assert "docker       does not work here: " in shown


def test_reap_removes_what_a_killed_process_left(home: dict[str, str]) -> None:
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(OWNER)], env=home, check=False, timeout=60)
    assert killed.returncode == -9
    listed = hermes_rl("sandbox", "reap", "--dry-run", env=home)
    assert "would remove hermes-rl-" in listed.stdout
    removed = json.loads(hermes_rl("sandbox", "reap", "--json", env=home).stdout)
    assert [entry["backend"] for entry in removed["removed"]] == ["local"]
    assert "0 sandboxes of 0 dead processes removed" in hermes_rl("sandbox", "reap", env=home).stdout


def test_what_reap_cannot_remove_is_left_with_the_reason(home: dict[str, str], tmp_path: Path) -> None:
    ledger = tmp_path / "hermes" / "rl" / "sandboxes" / "1-dead.jsonl"
    ledger.parent.mkdir(parents=True)
    entry = {"name": "hermes-rl-lost", "backend": "no-such-backend", "settings": {}, "resources": {}}
    ledger.write_text(json.dumps(entry) + "\n")
    done = hermes_rl("sandbox", "reap", env=home)
    assert done.returncode == 1
    assert "could not remove hermes-rl-lost (no-such-backend): no sandbox backend is named" in done.stdout
    assert ledger.exists()


def test_prepare_makes_each_distinct_machine_once(home: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, "env.py", ENVIRONMENT)
    flags = ["--env.terminal_backend", "local", "--json"]
    done = hermes_rl("sandbox", "prepare", "env.py", *flags, env=home, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"specs": 3, "backends": 1, "failed": []}
    assert "3 to prepare on local" in done.stderr
    assert "there is no train_items()" in done.stderr


def test_a_machine_that_cannot_be_prepared_is_told_and_the_others_are_made(
    home: dict[str, str], tmp_path: Path
) -> None:
    write(tmp_path, "env.py", ENVIRONMENT.replace("[1, 2, 3, 1]", "[1, 7, 3]"))
    flags = ["--env.terminal_backend", "local"]
    done = hermes_rl("sandbox", "prepare", "env.py", *flags, env=home, cwd=tmp_path)
    assert done.returncode == 1
    assert "2 ready, 1 failed" in done.stderr
    assert "no sevens" in done.stderr
