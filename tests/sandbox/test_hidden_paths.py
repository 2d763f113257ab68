"""No sandbox shows our package, an environment's files or its data, wherever on this machine they are."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.core.paths import bundled_environments_dir
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.hidden_paths import Cover, covers, hidden_paths
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.spec import SandboxSpec
from tests.sandbox.ordinary import SOURCE

# Installs into /usr, which a bubblewrap sandbox shows.
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can write below /usr")

ANSWERS = "swe.jsonl"
# Prints what the sandbox finds, with a line of `data` to compare, and whether a command still works.
PROGRAM = """\
import asyncio, json, sys
from hermes_rl.core.paths import bundled_environments_dir
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend

async def main():
    backend = BubblewrapBackend()
    async with await backend.start() as sandbox:
        found = await sandbox.exec(f"find -L {sys.argv[1]} -name 'swe*' -exec head -c 100 {{}} +", timeout=60)
        listed = await sandbox.exec(f"find -L {sys.argv[1]} -name '*.py'", timeout=60)
        works = await sandbox.exec("/usr/bin/python3 -c 'print(6 * 7)'; echo x > answer; cat answer", timeout=60)
    await backend.close()
    print(json.dumps({
        "data": str(bundled_environments_dir()),
        "found": found.stdout.decode(),
        "listed": listed.stdout.decode(),
        "works": works.stdout.decode(),
    }))

asyncio.run(main())
"""


@pytest.fixture
def below_usr() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hermes-rl-test-", dir="/usr/local/share") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def install(packages: Path) -> Path:
    """Copy the package with its bundled environments, as a wheel installs it."""
    package = packages / "hermes_rl"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("bundled", "static", "__pycache__"))
    shutil.copytree(bundled_environments_dir(), package / "bundled", ignore=shutil.ignore_patterns("harbor"))
    return package


def attempt(import_from: Path, searched: Path) -> dict[str, str]:
    """What a policy finds below `searched` when our process imports the package from `import_from`."""
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(searched)],
        env={"PYTHONPATH": str(import_from), "PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    seen: dict[str, str] = json.loads(ran.stdout)
    assert seen["data"].startswith(str(searched)), "the copy was imported"
    assert seen["works"] == "42\nx\n"
    return seen


def test_a_package_installed_below_usr_is_hidden(below_usr: Path) -> None:
    install(below_usr / "site-packages")
    seen = attempt(below_usr / "site-packages", below_usr)
    assert (seen["found"], seen["listed"]) == ("", "")


def test_a_package_behind_a_link_is_hidden(below_usr: Path) -> None:
    real = install(below_usr / "store")
    (below_usr / "site-packages").mkdir()
    (below_usr / "site-packages" / "hermes_rl").symlink_to(real)
    seen = attempt(below_usr / "site-packages", below_usr)
    assert (seen["found"], seen["listed"]) == ("", "")


def test_a_package_whose_data_files_are_links_is_hidden(below_usr: Path) -> None:
    package = install(below_usr / "site-packages")
    store = below_usr / "store"
    store.mkdir()
    answers = package / "bundled" / "data" / ANSWERS
    answers.rename(store / ANSWERS)
    answers.symlink_to(store / ANSWERS)
    seen = attempt(below_usr / "site-packages", below_usr)
    assert (seen["found"], seen["listed"]) == ("", "")


def test_an_editable_checkout_is_hidden_with_its_environments(below_usr: Path) -> None:
    checkout = below_usr / "checkout"
    package = install(checkout / "src")
    (checkout / "pyproject.toml").touch()
    (package / "bundled").rename(checkout / "environments")
    seen = attempt(checkout / "src", below_usr)
    assert (seen["found"], seen["listed"]) == ("", "")


def test_a_mount_of_a_hidden_folder_itself_stays(tmp_path: Path) -> None:
    (tmp_path / "envs" / "repository").mkdir(parents=True)
    (tmp_path / "envs" / "answers.jsonl").touch()
    hidden = hidden_paths([tmp_path / "envs", tmp_path / "envs" / "answers.jsonl", tmp_path / "absent"])
    assert covers(tmp_path, "/", hidden) == [Cover("/envs", folder=True)]
    assert covers(tmp_path / "envs", "/agent", hidden) == [Cover("/agent/answers.jsonl", folder=False)]
    assert covers(tmp_path / "envs" / "repository", "/agent", hidden) == []


def test_a_closed_folder_needs_no_cover_from_a_sandbox_of_another_user(tmp_path: Path) -> None:
    (tmp_path / "closed" / "envs").mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    tmp_path.chmod(0o755)
    assert covers(tmp_path, "/", [f"{tmp_path}/closed/envs"], enterable=True) == []
    assert covers(tmp_path, "/", [f"{tmp_path}/closed"], enterable=True) == [Cover("/closed", folder=True)]


async def test_what_a_spec_and_its_pool_hide_cannot_be_read(below_usr: Path, bubblewrap: BubblewrapBackend) -> None:
    for name in ("envs", "tasks", "closed/envs"):
        (below_usr / name).mkdir(parents=True)
        (below_usr / name / "answers").write_text("the answer")
    (below_usr / "closed").chmod(0o700)
    (below_usr / "prices").write_text("the answer")
    (below_usr / "given").write_text("given")
    pool = SandboxPool(bubblewrap, hidden=[below_usr / "envs", below_usr / "closed" / "envs"])
    spec = SandboxSpec(hidden=[below_usr / "tasks", below_usr / "prices"], folders={"/agent": below_usr})
    async with pool.sandbox(spec) as sandbox:
        seen = await sandbox.exec(f"grep -rh . {below_usr} /agent; touch {below_usr}/envs/x", timeout=30)
    assert seen.stdout == b"given\n" * 2
    assert b"Read-only file system" in seen.stderr
