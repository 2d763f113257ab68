"""`hermes-rl config …` as a person and as a program meet it; and that a secret stands in one file and nowhere else."""

import io
import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hermes_rl.cli.config import config as command
from hermes_rl.console.run_command import run_click
from hermes_rl.core.keys import key_file
from hermes_rl.orchestration.keys import key_names, set_key
from tests.cli.test_command import hermes_rl

CANARY = "canary-7f3a9c1e5b8d2046-zzzz"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for name in key_names():
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True, slots=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Config = Callable[..., Done]


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Config:
    """The command within this process, with `text` in its pipe."""

    def run(*arguments: str, text: str = "") -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        code = run_click(command, list(arguments), prog_name="hermes-rl config")
        return Done(code, *capsys.readouterr())

    return run


def test_a_piped_value_is_kept(config: Config) -> None:
    done = config("set", "TINKER_API_KEY", text=f"{CANARY}\n")
    assert done.returncode == 0
    assert f"TINKER_API_KEY …zzzz is stored in {key_file()}" in done.stdout
    assert f"TINKER_API_KEY={CANARY}\n" in key_file().read_text()


def test_a_dash_reads_standard_input_too(config: Config) -> None:
    assert config("set", "TINKER_API_KEY", "-", text=CANARY).returncode == 0
    assert CANARY in key_file().read_text()


def test_a_value_as_an_argument_is_kept_with_a_warning(config: Config) -> None:
    done = config("set", "TINKER_API_KEY", CANARY)
    assert done.returncode == 0
    assert "process list" in done.stderr
    assert CANARY in key_file().read_text()


def test_at_a_terminal_the_value_is_asked_for_and_not_shown() -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "hermes_rl", "config", "set", "TINKER_API_KEY"]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        screen = b""
        while b"Value of TINKER_API_KEY" not in screen:
            screen += os.read(ours, 4096)
        os.write(ours, f"{CANARY}\n".encode())
        screen += rest_of(ours)
        assert process.wait(60) == 0
    os.close(ours)
    assert CANARY.encode() not in screen
    assert CANARY in key_file().read_text()


def rest_of(terminal: int) -> bytes:
    screen, give_up_at = b"", time.monotonic() + 60
    while time.monotonic() < give_up_at:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # what Linux says when the other side is closed
            break
        if not more:
            break
        screen += more
    return screen


@pytest.mark.parametrize(
    "arguments",
    [
        ("TINKER_API_KEY", "two", CANARY),
        ("TINKER_API_KEY", f"{CANARY}\nmore"),
        (CANARY, "TINKER_API_KEY"),
        (f"TINKER_API_KEY={CANARY}",),
    ],
)
def test_a_mistake_is_refused_without_repeating_the_secret(config: Config, arguments: tuple[str, ...]) -> None:
    done = config("set", *arguments)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert not key_file().exists()


def test_a_value_that_begins_with_a_dash_is_a_value(config: Config) -> None:
    assert config("set", "OWN_KEY", f"-{CANARY}").returncode == 0
    assert f"OWN_KEY=-{CANARY}" in key_file().read_text()


def test_nothing_in_the_pipe_is_an_error_with_the_next_step(config: Config) -> None:
    done = config("set", "TINKER_API_KEY", text="")
    assert done.returncode == 2
    assert "the value of TINKER_API_KEY is empty" in done.stderr


def test_a_name_that_is_nearly_known_is_kept_with_the_one_that_may_be_meant(config: Config) -> None:
    done = config("set", "TINKER_APIKEY", text=CANARY)
    assert done.returncode == 0
    assert "if you meant TINKER_API_KEY" in done.stderr


def test_a_variable_with_another_value_is_warned_of() -> None:
    done = hermes_rl(
        "config", "set", "HF_TOKEN", stdin=None, input=CANARY, env={**os.environ, "HF_TOKEN": "other-" + CANARY}
    )
    assert "takes precedence" in done.stderr
    assert CANARY not in done.stdout + done.stderr


def test_show_lists_what_is_set_masked_and_what_each_is_for(config: Config) -> None:
    set_key("TINKER_API_KEY", CANARY)
    done = config("show")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("TINKER_API_KEY"))
    assert line.split()[1:3] == ["…zzzz", "file"]
    assert "hosted Tinker" in line


def test_show_as_json_names_the_source_of_each(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("OWN_KEY", CANARY)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    done = config("show", "--json")
    told = json.loads(done.stdout)
    keys = {row["name"]: row for row in told["keys"]}
    assert told["file"] == str(key_file())
    assert (keys["HF_TOKEN"]["source"], keys["OWN_KEY"]["source"]) == ("variable", "file")
    assert keys["TINKER_API_KEY"]["set"] is False
    assert CANARY not in done.stdout


def test_a_file_that_others_can_read_is_an_error_with_the_line_that_mends_it(config: Config) -> None:
    set_key("TINKER_API_KEY", CANARY)
    key_file().chmod(0o644)
    done = config("show")
    assert done.returncode == 2
    assert f"chmod 600 {key_file()}" in done.stderr


def test_unset_removes_the_key_and_does_so_twice_without_complaint(config: Config) -> None:
    set_key("TINKER_API_KEY", CANARY)
    assert "is no longer in" in config("unset", "TINKER_API_KEY").stdout
    assert CANARY not in key_file().read_text()
    again = config("unset", "TINKER_API_KEY")
    assert (again.returncode, "was not in" in again.stdout) == (0, True)


def test_path_prints_where_the_file_is(config: Config) -> None:
    assert config("path").stdout == f"{key_file()}\n"


def test_a_secret_is_in_the_key_file_and_nowhere_else(tmp_path: Path) -> None:
    said = [
        hermes_rl("config", "set", "TINKER_API_KEY", stdin=None, input=CANARY),
        hermes_rl("config", "set", "OWN_KEY", CANARY),
        hermes_rl("config", "show", "--json"),
        hermes_rl("config", "unset", "OWN_KEY"),
        hermes_rl("doctor", "--json"),
    ]
    assert not any(CANARY in done.stdout + done.stderr for done in said)
    holding = [file for file in tmp_path.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
    assert holding == [key_file()]
