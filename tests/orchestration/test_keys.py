"""Keys: where they are found, how the file is kept, and that they stand nowhere else."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.core import key_file as key_file_module
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.key_file import lock_path, read_keys
from hermes_rl.core.keys import find_key, key_file, lookup_key
from hermes_rl.orchestration.keys import key_names, key_variables, mask_value, referenced_keys, set_key, unset_key

SECRET = "canary-0123456789-abcdefgh"
SET_ONE = "import sys; from hermes_rl.orchestration.keys import set_key; set_key(sys.argv[1], sys.argv[2])"


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    for name in key_names():
        monkeypatch.delenv(name, raising=False)


def test_a_key_that_was_set_is_found() -> None:
    set_key("TINKER_API_KEY", SECRET)
    assert find_key("TINKER_API_KEY") == SECRET


def test_a_key_that_was_never_set_is_not_found() -> None:
    assert find_key("TINKER_API_KEY") is None


def test_a_variable_goes_before_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("TINKER_API_KEY", SECRET)
    monkeypatch.setenv("TINKER_API_KEY", "of the shell")
    found = lookup_key("TINKER_API_KEY")
    assert found is not None
    assert (found.value, found.source) == ("of the shell", "variable")


def test_an_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("TINKER_API_KEY", SECRET)
    monkeypatch.setenv("TINKER_API_KEY", " ")
    assert find_key("TINKER_API_KEY") == SECRET


def test_a_found_key_does_not_show_its_value() -> None:
    set_key("TINKER_API_KEY", SECRET)
    assert SECRET not in repr(lookup_key("TINKER_API_KEY"))


def test_a_key_that_was_unset_is_gone() -> None:
    set_key("TINKER_API_KEY", SECRET)
    assert unset_key("TINKER_API_KEY")
    assert SECRET not in key_file().read_text()


def test_unsetting_what_is_not_there_changes_nothing() -> None:
    assert not unset_key("TINKER_API_KEY")


def test_setting_a_key_keeps_the_others() -> None:
    set_key("WANDB_API_KEY", "first")
    set_key("TINKER_API_KEY", "second")
    assert read_keys(key_file()) == {"TINKER_API_KEY": "second", "WANDB_API_KEY": "first"}


def test_the_space_around_a_value_is_not_part_of_it() -> None:
    set_key("HF_TOKEN", f" {SECRET}\n")
    assert find_key("HF_TOKEN") == SECRET


@given(value=st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_printable_value_comes_back_as_it_was(value: str) -> None:
    set_key("OWN_KEY", value)
    assert find_key("OWN_KEY") == value


def test_a_shell_reads_the_file_too() -> None:
    set_key("OWN_KEY", 'it\'s $HOME `and` "more" #1')
    shell = f'. "{key_file()}"; printf %s "$OWN_KEY"'
    assert subprocess.check_output(["sh", "-c", shell], text=True) == 'it\'s $HOME `and` "more" #1'


def test_a_file_written_by_hand_is_read() -> None:
    key_file().parent.mkdir(parents=True)
    key_file().touch(0o600)
    key_file().write_text("# mine\n\nexport HF_TOKEN='quoted'\nOWN_KEY=plain\n")
    assert read_keys(key_file()) == {"HF_TOKEN": "quoted", "OWN_KEY": "plain"}


def test_a_line_that_is_no_key_is_named_and_not_repeated() -> None:
    key_file().parent.mkdir(parents=True)
    key_file().touch(0o600)
    key_file().write_text(f"HF_TOKEN=a\n{SECRET}\n")
    with pytest.raises(ConfigError, match="line 2 is not NAME=value") as raised:
        find_key("OWN_KEY")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("value", ["", "  ", f"{SECRET}\nsecond", f"{SECRET}\0", f"{SECRET}\x1b[0m"])
def test_what_can_be_no_key_is_refused_without_repeating_it(value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        set_key("HF_TOKEN", value)
    assert SECRET not in str(raised.value)
    assert not key_file().exists()


@pytest.mark.parametrize("name", ["lower", "1ST", "WITH-DASH", "A=B", "", "A B", SECRET])
def test_what_can_name_no_key_is_refused_without_repeating_it(name: str) -> None:
    with pytest.raises(ConfigError, match="TINKER_API_KEY") as raised:
        set_key(name, "value")
    assert SECRET not in str(raised.value)


def test_only_the_owner_can_read_the_file_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        set_key("HF_TOKEN", SECRET)
    finally:
        os.umask(before)
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600


def test_no_file_is_readable_by_others_while_a_key_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    sync = os.fsync

    def look(opened: int) -> None:
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in key_file().parent.iterdir())
        sync(opened)

    monkeypatch.setattr(os, "fsync", look)
    before = os.umask(0)
    try:
        set_key("HF_TOKEN", SECRET)
    finally:
        os.umask(before)
    assert set(modes) == {0o600}


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622, 0o644])
def test_a_file_that_others_can_use_is_refused_with_the_line_that_mends_it(mode: int) -> None:
    set_key("HF_TOKEN", SECRET)
    key_file().chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {key_file()}"):
        find_key("HF_TOKEN")


def test_a_file_that_others_can_read_is_not_written_to_either() -> None:
    set_key("HF_TOKEN", SECRET)
    key_file().chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        set_key("HF_TOKEN", "another")
    assert SECRET in key_file().read_text()


def test_a_variable_is_found_although_the_file_is_open_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("HF_TOKEN", "of the file")
    key_file().chmod(0o644)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert find_key("HF_TOKEN") == SECRET


def test_a_file_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("HF_TOKEN", SECRET)
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ConfigError, match="belongs to another user; fix it with: sudo chown 4321"):
        find_key("HF_TOKEN")


def test_of_many_processes_writing_at_once_none_loses_anothers_key() -> None:
    names = [f"KEY_{number}" for number in range(8)]

    def one(name: str) -> None:
        subprocess.run([sys.executable, "-c", SET_ONE, name, f"value of {name}"], check=True, timeout=100)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, names))
    assert read_keys(key_file()) == {name: f"value of {name}" for name in names}


def test_many_threads_of_one_process_lose_none_either() -> None:
    names = [f"KEY_{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(set_key, names, names))
    assert read_keys(key_file()) == {name: name for name in names}


def test_a_writer_waits_no_longer_than_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file_module, "LOCK_DEADLINE_S", 0.05)
    set_key("HF_TOKEN", SECRET)
    with exclusive_lock(lock_path(key_file()), "?"), pytest.raises(ConfigError, match="another process has held"):
        set_key("HF_TOKEN", "another")


def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_key("HF_TOKEN", "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        set_key("HF_TOKEN", SECRET)
    assert find_key("HF_TOKEN") == "old"
    assert not any(SECRET in file.read_text() for file in key_file().parent.iterdir())


def test_what_a_killed_writer_left_is_cleared_by_the_next() -> None:
    key_file().parent.mkdir(parents=True)
    left = key_file().with_name("keys.env.part")
    left.write_text(f"HF_TOKEN={SECRET}\n")
    set_key("OWN_KEY", "new")
    assert not left.exists()


def test_a_long_value_shows_its_last_four_characters_and_a_short_one_nothing() -> None:
    assert mask_value(SECRET) == "…efgh"
    assert mask_value("short") == "…"


def test_a_process_is_given_the_keys_it_names_and_no_others() -> None:
    set_key("HF_TOKEN", "one")
    set_key("WANDB_API_KEY", "two")
    assert key_variables(["HF_TOKEN", "TINKER_API_KEY"]) == {"HF_TOKEN": "one"}


def test_the_keys_that_a_configuration_refers_to_are_found_at_any_depth() -> None:
    configuration = {"openai": [{"api_key": "env:B_KEY"}], "env": {"tool_settings": {"web": {"api_key": "env:A_KEY"}}}}
    assert referenced_keys([configuration, "env:B_KEY", "file:/x", 3, None]) == ("B_KEY", "A_KEY")
