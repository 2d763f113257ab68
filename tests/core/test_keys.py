"""Where a key is looked for, in which order, and what a command loads."""

import os
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.key_file import change_keys
from hermes_rl.core.keys import find_key, key_file, load_keys, lookup_key, stored_secrets
from hermes_rl.core.secrets import resolve_key

NAME = "SOME_API_KEY"


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    # load_keys sets variables behind the back of monkeypatch, which restores only those it knows.
    for name in (NAME, "OTHER_TOKEN", "DEBUG"):
        monkeypatch.setenv(name, "")


def in_home(text: str) -> Path:
    file = key_file().parents[1] / ".env"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_the_environment_goes_before_the_project_before_the_key_file_before_the_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = in_home(f"{NAME}=of-home\n")
    found = lookup_key(NAME)
    assert found is not None and (found.value, found.source) == ("of-home", str(file))
    change_keys(key_file(), NAME, "of-key-file")
    assert find_key(NAME) == "of-key-file"
    Path(".env").write_text(f"{NAME}=of-project\n")
    assert find_key(NAME) == "of-project"
    monkeypatch.setenv(NAME, "of-shell")
    assert find_key(NAME) == "of-shell"


@pytest.mark.parametrize(
    "line", ["{}=k-1", "export {}=k-1", "{} = 'k-1'", '{}="k-1"  # mine', "\n# c\n{}=k-1 # mine\n"]
)
def test_the_usual_forms_of_a_line_are_read(line: str) -> None:
    Path(".env").write_text(line.format(NAME))
    assert find_key(NAME) == "k-1"


def test_a_reference_finds_a_key_of_the_project() -> None:
    Path(".env").write_text(f"{NAME}=of-project\n")
    assert resolve_key(f"env:{NAME}", "--openai.api_key") == "of-project"


def test_a_key_that_is_nowhere_is_named_with_every_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_key(f"env:{NAME}", "--openai.api_key")
    home = tmp_path / "home"
    assert str(caught.value) == (
        f"--openai.api_key names the variable {NAME}, which is not set, nor in .env, {home}/rl/keys.env or "
        f"{home}/.env; export it, or run: hermes-rl config set {NAME}"
    )


def test_a_command_loads_what_is_stored_and_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_TOKEN", "of-shell")
    Path(".env").write_text(f"{NAME}=of-project\nOTHER_TOKEN=of-project\n")
    change_keys(key_file(), NAME, "of-key-file")
    problems: list[str] = []
    load_keys(problems.append)
    assert (os.environ[NAME], os.environ["OTHER_TOKEN"], problems) == ("of-project", "of-shell", [])


def test_a_key_file_that_others_can_read_is_reported_and_the_others_are_loaded() -> None:
    change_keys(key_file(), "OTHER_TOKEN", "of-key-file")
    key_file().chmod(0o644)
    in_home(f"{NAME}=of-home\n")
    problems: list[str] = []
    load_keys(problems.append)
    assert (os.environ[NAME], os.environ["OTHER_TOKEN"]) == ("of-home", "")
    assert len(problems) == 1 and "chmod 600" in problems[0]


def test_a_folder_named_like_the_file_holds_no_keys() -> None:
    Path(".env").mkdir()
    assert find_key(NAME) is None


def test_a_home_that_the_project_names_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", "")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".env").write_text(f"{NAME}=of-other\n")
    Path(".env").write_text(f"HERMES_HOME={tmp_path}/other\n")
    load_keys(print)
    assert os.environ[NAME] == "of-other"


def test_the_values_to_keep_out_of_logs_are_those_of_keys() -> None:
    Path(".env").write_text(f"{NAME}=of-project\nDEBUG=very-verbose\n")
    change_keys(key_file(), "PLAIN", "of-key-file")
    assert stored_secrets() == {"of-project", "of-key-file"}
    assert stored_secrets(Path("/nowhere")) == {"of-key-file"}
