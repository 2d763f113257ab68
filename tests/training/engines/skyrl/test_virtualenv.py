import fcntl
import hashlib
import re
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.skyrl import virtualenv
from hermes_rl.training.engines.skyrl.virtualenv import (
    PINS,
    EngineVenv,
    VenvInstallError,
    existing_environment,
    managed_environment,
)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What would have been run, without a network or minutes."""
    ran: list[list[str]] = []

    def run(command: list[str]) -> None:
        ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir()

    monkeypatch.setattr(virtualenv, "_run", run)
    monkeypatch.setattr(virtualenv, "_check", lambda *_: None)
    return ran


def quiet(_done: int, _line: str) -> None:
    pass


def test_the_pins_name_versions_and_hashes_and_no_address() -> None:
    text = PINS.read_text().replace(" \\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(
        re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.!]+(    --hash=sha256:[0-9a-f]{64})+", line) for line in lines
    )
    assert "skyrl==0.3.0" in [line.split()[0] for line in lines]


def wheel(folder: Path) -> Path:
    """The smallest package, as an index would have it."""
    path = folder / "skyrl-0.3.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        about = "skyrl-0.3.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: skyrl\nVersion: 0.3.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


@pytest.mark.parametrize("right", [True, False])
def test_only_a_file_with_the_recorded_hash_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: bool
) -> None:
    digest = hashlib.sha256(wheel(tmp_path).read_bytes()).hexdigest()
    pins = tmp_path / "pins.txt"
    pins.write_text(f"skyrl==0.3.0 --hash=sha256:{digest if right else '0' * 64}\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(virtualenv, "PINS", pins)
    monkeypatch.setattr(virtualenv, "CHECK_IMPORTS", "from importlib.metadata import version; print(version('skyrl'))")
    if right:
        assert (managed_environment(quiet).home / "complete").exists()
        return
    message = rf"skyrl==0\.3\.0 \(sha256 {digest}\) is not the file that this version of hermes-rl was tested with"
    with pytest.raises(VenvInstallError, match=message):
        managed_environment(quiet)
    assert virtualenv.needs_install()


def test_it_is_known_that_none_is_made_until_one_is(commands: list[list[str]]) -> None:
    assert virtualenv.needs_install()
    managed_environment(quiet)
    assert not virtualenv.needs_install()


def test_it_is_made_once(commands: list[list[str]]) -> None:
    first = managed_environment(quiet)
    made = len(commands)
    assert managed_environment(quiet) == first
    assert (made, len(commands)) == (2, 2)


def test_one_that_was_not_finished_is_begun_anew(commands: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(virtualenv, "_check", lambda *_: "no jax")
        with pytest.raises(VenvInstallError, match="no jax"):
            managed_environment(quiet)
    assert (managed_environment(quiet).home / "complete").exists()
    assert len(commands) == 4


def test_other_pins_make_another_environment(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = managed_environment(quiet)
    (tmp_path / "pins.txt").write_text("skyrl==0.4.0\n")
    monkeypatch.setattr(virtualenv, "PINS", tmp_path / "pins.txt")
    assert managed_environment(quiet).home != first.home


def test_every_step_is_told(commands: list[list[str]]) -> None:
    told: list[int] = []
    managed_environment(lambda done, _line: told.append(done))
    assert told == list(range(virtualenv.STEPS + 1))


def test_a_second_maker_waits_for_the_first(commands: list[list[str]]) -> None:
    home = managed_environment(quiet).home
    waited: list[str] = []
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=managed_environment, args=(lambda _done, line: waited.append(line),))
        second.start()
        time.sleep(0.2)
        assert second.is_alive()
    second.join(10)
    assert waited[0] == "another process is installing it"


def test_a_full_disk_is_told_before_anything_is_made(
    commands: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(virtualenv, "DISK_NEEDED", 10**18)
    with pytest.raises(VenvInstallError, match=r"or set HERMES_HOME to another disk"):
        managed_environment(quiet)
    assert commands == []


def test_what_the_installer_said_is_in_the_error() -> None:
    with pytest.raises(VenvInstallError, match="no such wheel"):
        virtualenv._run([sys.executable, "-c", "import sys; sys.exit('no such wheel')"])


def test_a_command_that_hangs_is_given_up() -> None:
    with pytest.raises(VenvInstallError, match="did not finish within"):
        virtualenv._run_process([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no bin/python"):
        existing_environment(tmp_path)


def test_an_environment_without_skyrl_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"cannot run SkyRL 0\.3\.0: .*\n.*or omit --environment"):
        existing_environment(Path(sys.prefix))


def test_an_environment_with_another_skyrl_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtualenv, "CHECK_INSTALLED", "print('0.4.0')")
    with pytest.raises(ConfigError, match=r"it has SkyRL 0\.4\.0"):
        existing_environment(Path(sys.prefix))


def test_what_was_compiled_for_one_environment_is_kept_apart() -> None:
    assert EngineVenv(Path("/a")).key != EngineVenv(Path("/b")).key


def test_a_machine_without_a_fitting_python_is_told_which_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtualenv, "MIN_PYTHON", (3, 90))
    monkeypatch.setattr(virtualenv, "MAX_PYTHON", (3, 91))
    with pytest.raises(ConfigError, match=r"SkyRL needs Python 3\.90 to 3\.91"):
        virtualenv.find_python()


def test_variables_that_would_lead_its_python_astray_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("KEPT", "1")
    assert virtualenv.clean_environ().get("PYTHONPATH") is None
    assert virtualenv.clean_environ()["KEPT"] == "1"
