import pytest

from hermes_rl.errors import ConfigError
from hermes_rl.tools import TOOLSETS, all_tools, chosen_tools


def test_the_configurations_choice_comes_first() -> None:
    assert list(chosen_tools(["terminal"], None, ["file"])) == ["terminal", "process"]


def test_without_a_choice_the_environments_default_holds() -> None:
    assert list(chosen_tools(None, None, ["file"])) == ["read_file", "write_file", "patch", "search_files"]


def test_without_either_the_error_lists_the_toolsets() -> None:
    with pytest.raises(ConfigError, match="known: file, terminal"):
        chosen_tools(None, None, [])


def test_an_empty_list_is_an_agent_without_tools() -> None:
    assert chosen_tools([], None, ["file"]) == {}


def test_a_disabled_toolset_is_left_out() -> None:
    assert list(chosen_tools(["terminal", "file"], ["file"], [])) == ["terminal", "process"]


def test_a_default_toolset_can_be_disabled() -> None:
    assert chosen_tools(None, ["file"], ["file"]) == {}


@pytest.mark.parametrize(("enabled", "disabled"), [(["teminal"], None), (["terminal"], ["teminal"])])
def test_an_unknown_toolset_is_refused_with_the_known_ones(enabled: list[str], disabled: list[str] | None) -> None:
    with pytest.raises(ConfigError, match="'teminal'; known: file, terminal"):
        chosen_tools(enabled, disabled, [])


def test_no_two_tools_share_a_name() -> None:
    assert len(all_tools()) == sum(len(tools) for tools in TOOLSETS.values())
