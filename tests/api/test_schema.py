"""schemathesis makes requests from the API's own schema, right ones and wrong ones, against the real process."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api_process import ApiProcess

pytestmark = pytest.mark.timeout(600)
# 400 is what bytes that are no group are told, and no schema says which bytes are one.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "404", "409"]
"""
OURS = ("--include-path-regex=^/(v1|health|ready|metrics)", "--max-examples=30")
# Atropos reads numbers from texts and flags, and what is in a group is checked by no schema.
THEIRS = (
    "--exclude-path-regex=^/(v1|health|ready|metrics)",
    "--max-examples=20",
    "--phases=coverage,fuzzing",
    "--exclude-checks=positive_data_acceptance,negative_data_rejection",
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiProcess]:
    with ApiProcess(str(tmp_path / "store.db"), "--max-body", "1") as process:
        yield process


def schemathesis(api: ApiProcess, home: Path, *options: str) -> int:
    """The exit status of a run; what it found is printed."""
    config = home / "schemathesis.toml"
    config.write_text(CONFIG)
    program = str(Path(sys.executable).with_name("schemathesis"))
    command = [program, f"--config-file={config}", "run", f"{api.url}/openapi.json", "--seed=1", "--request-timeout=70"]
    done = subprocess.run(
        [*command, "--no-color", "--continue-on-failure", *options],
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout[-30_000:], done.stderr[-2_000:])
    return done.returncode


@pytest.mark.parametrize("options", [OURS, THEIRS], ids=["ours", "atropos"])
def test_no_request_makes_the_server_fail_or_break_its_own_schema(
    api: ApiProcess, tmp_path: Path, options: tuple[str, ...]
) -> None:
    assert schemathesis(api, tmp_path, *options) == 0
    assert api.process.poll() is None
