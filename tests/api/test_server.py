import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from hermes_rl.api.config import ApiSettings
from hermes_rl.api.server import restrict_hosts
from hermes_rl.cli.api import redact_address
from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click
from hermes_rl.core.errors import ConfigError
from hermes_rl.http.server import is_loopback
from tests.support.api_process import ApiProcess


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
        body: bytes = answer.read()
    return body


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "store.db")


def test_it_says_where_it_listens_once_it_does(database: str) -> None:
    with ApiProcess(database) as api:
        assert json.loads(get(f"{api.url}/ready")) == {"status": "ready"}


def test_it_ends_cleanly_when_it_is_told_to(database: str) -> None:
    with ApiProcess(database) as api:
        assert api.stop() == 0


def test_what_was_registered_is_there_after_a_kill(database: str) -> None:
    body = json.dumps({"name": "e"}).encode()
    with ApiProcess(database) as api:
        request = urllib.request.Request(
            f"{api.url}/v1/environments", data=body, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            answer.read()
        assert api.kill() == -signal.SIGKILL
    with ApiProcess(database) as api:
        assert [one["name"] for one in json.loads(get(f"{api.url}/v1/environments"))] == ["e"]


def test_others_may_call_it_with_a_token_only(database: str) -> None:
    with ApiProcess(database, "--host", "0.0.0.0", "--token", "env:API_TOKEN", environment={"API_TOKEN": "s"}) as api:
        url = f"http://127.0.0.1:{api.port}/v1/environments"
        assert json.loads(get(url, Authorization="Bearer s")) == []


def failed_start(*options: str) -> str:
    command = [sys.executable, "-m", "hermes_rl", "api", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert done.returncode == 2
    return done.stderr


def test_it_is_not_open_to_others_without_a_token(database: str) -> None:
    assert "--token env:NAME" in failed_start("--database", database, "--host", "0.0.0.0")


def test_a_port_that_is_taken_is_an_error_with_a_next_step(database: str) -> None:
    with ApiProcess(database) as api:
        assert "--port" in failed_start("--database", database, "--port", str(api.port))


def test_a_host_that_is_not_ours_is_an_error(database: str) -> None:
    message = failed_start("--database", database, "--host", "192.0.2.1", "--token", "x", "--port", "0")
    assert "192.0.2.1" in message


@pytest.mark.parametrize(
    ("host", "own"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False)]
)
def test_which_addresses_only_this_machine_can_reach(host: str, own: bool) -> None:
    assert is_loopback(host) is own


def test_a_token_opens_any_host() -> None:
    assert restrict_hosts(ApiSettings(token="s"), "0.0.0.0").hosts is None


def test_a_machine_of_its_own_goes_by_its_names() -> None:
    assert restrict_hosts(ApiSettings(), "::1").hosts == frozenset({"localhost", "127.0.0.1", "[::1]"})


def test_an_open_host_without_a_token_is_refused() -> None:
    with pytest.raises(ConfigError, match="--token"):
        restrict_hosts(ApiSettings(), "0.0.0.0")


def test_a_password_in_the_database_flag_is_warned_of_and_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    address = "postgresql://me:hunter2@127.0.0.1:1/groups"
    assert run_click(hermes_rl, ["api", "--port", "0", "--database", address], "hermes-rl") != 0
    said = capsys.readouterr().err
    assert said.count("warning: --database holds a password") == 1
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://me:secret@host/name", "postgresql://me@host/name"),
        ("postgresql://host/name", "postgresql://host/name"),
        ("store.db", "store.db"),
    ],
)
def test_no_password_is_shown(address: str, said: str) -> None:
    assert redact_address(address) == said
