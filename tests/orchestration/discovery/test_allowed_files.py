"""Which files a caller of the MCP server may have loaded, whatever links and spellings lead to them."""

from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.discovery.lookup import find_environment

SOURCE = "from hermes_rl import HermesAgentBaseEnv\n\n\nclass {}(HermesAgentBaseEnv):\n{}"
METHODS = "    def format_prompt(self, item): ...\n    async def compute_reward(self, item, result, ctx): ...\n"


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "rl" / "environments"
    folder.mkdir(parents=True)
    (folder / "mine_env.py").write_text(SOURCE.format("Mine", METHODS))
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    file = tmp_path / "outside" / "other_env.py"
    file.parent.mkdir()
    file.write_text(SOURCE.format("Other", METHODS))
    return file


def test_a_file_in_a_known_folder_is_found_through_any_link(known: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(known)
    found = find_environment(str(tmp_path / "link" / "mine_env.py"), allowed=AllowedFiles())
    assert found.file == known / "mine_env.py"


def test_neither_dots_nor_links_lead_out_of_a_known_folder(known: Path, outside: Path) -> None:
    (known / "link.py").symlink_to(outside)
    (known / "folder").symlink_to(outside.parent)
    spellings = [
        outside,
        known / "link.py",
        known / "folder" / "other_env.py",
        known / ".." / ".." / ".." / "outside" / "other_env.py",
        known.with_name("environments-of-another") / "x_env.py",
    ]
    for spelling in spellings:
        with pytest.raises(ConfigError, match="--allow-path"):
            find_environment(str(spelling), allowed=AllowedFiles())


def test_a_link_that_the_owner_put_into_a_known_folder_is_found_by_name(known: Path, outside: Path) -> None:
    (known / "link_env.py").symlink_to(outside)
    assert find_environment("other", allowed=AllowedFiles()).file == outside


def test_an_allowed_path_is_a_file_or_a_folder(known: Path, outside: Path) -> None:
    for path in (outside, outside.parent):
        assert find_environment(str(outside), allowed=AllowedFiles((path,))).class_name == "Other"


@pytest.mark.parametrize("value", ["{}:Parser", ["terminal", "{}:TOOLS"], {"a": {"b": ["{}:X"]}}, "agent:{}:AGENT"])
def test_a_component_in_another_file_is_refused_wherever_a_value_names_it(
    known: Path, outside: Path, value: object
) -> None:
    def fill(part: object) -> object:
        if isinstance(part, dict):
            return {key: fill(inner) for key, inner in part.items()}
        return [fill(inner) for inner in part] if isinstance(part, list) else str(part).format(outside)

    with pytest.raises(ConfigError, match="--allow-path"):
        AllowedFiles().require_references(fill(value))
    AllowedFiles((outside.parent,)).require_references(fill(value))


def test_a_component_is_named_by_its_real_path_since_a_link_can_change_later(known: Path, tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to(known / "mine_env.py")
    AllowedFiles().require_references(f"{known / 'mine_env.py'}:Mine")
    with pytest.raises(ConfigError, match="name the file itself"):
        AllowedFiles().require_references(f"{tmp_path / 'link.py'}:Mine")


def test_a_module_is_allowed_if_it_is_installed_and_not_if_it_is_in_the_working_directory(
    known: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(outside.parent)
    AllowedFiles().require_references(["json:loads", "click:Command", "mcp:notes", "env:KEY", "https://host:1/x"])
    with pytest.raises(ConfigError, match="--allow-path"):
        AllowedFiles().require_references("other_env:Parser")
