"""`hermes-rl view` as a person starts it: a program with an address, a token and an end."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.cli.run_access import viewed_runs
from hermes_rl.cli.view import view
from hermes_rl.console.run_command import run_click
from tests.support.recorded_runs import make_run, write_steps
from tests.viewer.recording import group, write_lines


@contextmanager
def started(*arguments: str | Path) -> "Iterator[tuple[str, subprocess.Popen[str]]]":
    command = [sys.executable, "-m", "hermes_rl", "view", *map(str, arguments), "--json", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield json.loads(process.stdout.readline())["url"], process
        finally:
            process.terminate()
            process.communicate(timeout=60)


def asked(url: str, path: str) -> Any:
    base, _, token = url.partition("/?token=")
    request = urllib.request.Request(f"{base}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


def test_a_file_is_shown_at_the_printed_address_until_ctrl_c(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "out.jsonl", group())
    with started(path) as (url, process):
        assert url.startswith("http://127.0.0.1:")
        [source] = asked(url, "/api/home")["sources"]
        assert asked(url, f"/api/s/{source['id']}/groups")["rows"][0]["record_id"] == "group-0"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(url.replace("token=", "token=x"), "/api/home")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_a_name_of_nothing_is_told_before_it_listens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_click(view, [str(tmp_path / "missing"), "--no-open"], prog_name="view") != 0
    assert "there is no file, folder or run" in capsys.readouterr().err


def test_listening_for_others_is_warned_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "missing"), "--host", "0.0.0.0", "--no-open"]
    assert run_click(view, arguments, prog_name="view") != 0
    assert "can reach 0.0.0.0" in capsys.readouterr().err


def test_runs_are_told_with_their_state_and_without_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-this-is-a-secret")
    places = make_run("r1")
    write_steps(places, 3)
    places.file.write_text(places.file.read_text().replace("preset: laptop", "preset: sk-this-is-a-secret"))
    runs = viewed_runs()
    [row] = runs.listed()
    assert (row["run_id"], row["status"]) == ("r1", "running")
    assert runs.folder("r1") == places.folder
    assert runs.status("r1")["metrics"]["step"] == 3
    assert "sk-this-is-a-secret" not in json.dumps(runs.config("r1"))


def test_a_look_at_a_run_reads_only_what_its_files_have_got_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    places = make_run("r1")
    write_steps(places, 3)
    runs, metrics = viewed_runs(), places.folder / "metrics.jsonl"
    runs.status("r1")
    with metrics.open("r+b") as file:
        file.write(b"X")  # Whoever reads it again stumbles.
        file.seek(0, 2)
        file.write(b'{"time": 9.0, "step": 4}\n')
    assert "metrics_problem" not in (told := runs.status("r1"))
    assert (told["metrics"]["step"], len(runs.steps(metrics).rows)) == (4, 4)


def test_other_commands_do_not_load_what_it_needs() -> None:
    code = "import sys, hermes_rl.cli.main; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert (
        loaded & {"fastapi", "hermes_rl.viewer", "opentelemetry", "rich", "starlette", "uvicorn", "webbrowser"} == set()
    )


def test_a_command_does_not_load_what_others_need() -> None:
    call = "from hermes_rl.cli.main import hermes_rl; hermes_rl.get_command(None, 'view')"
    code = f"{call}; import sys; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", code], text=True).split())
    assert "hermes_rl.cli.view" in loaded
    assert loaded & {"aiohttp", "hermes_rl.environment.base", "hermes_rl.orchestration", "pydantic", "uvloop"} == set()
