"""Toolsets by name, and the choice of them: unknown names are refused with the known ones."""

from collections.abc import Mapping, Sequence
from random import Random

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import TOOLSETS
from hermes_rl.tools.registry import all_tools, get_toolset, open_toolsets
from hermes_rl.tools.selection import ToolsetSelection


def test_the_configurations_choice_goes_over_the_default() -> None:
    assert ToolsetSelection(enabled=["terminal"], default=["file"]).candidates() == ["terminal"]


def test_the_default_is_taken_when_nothing_is_chosen() -> None:
    assert ToolsetSelection(default=["file"]).candidates() == ["file"]


def test_no_choice_at_all_means_no_tools() -> None:
    assert ToolsetSelection().candidates() == []


def test_an_empty_list_means_no_tools() -> None:
    assert ToolsetSelection(enabled=[], default=["file"]).candidates() == []


def test_disabled_toolsets_are_taken_away_from_either() -> None:
    assert ToolsetSelection(enabled=["terminal", "file"], disabled=["file"]).candidates() == ["terminal"]
    assert ToolsetSelection(default=["file"], disabled=["file"]).candidates() == []


@pytest.mark.parametrize(("enabled", "disabled"), [(["shell"], []), (["file"], ["shell"])])
def test_an_unknown_name_is_refused_with_the_known_ones(enabled: list[str], disabled: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"no toolset is named 'shell'; known: .*file, .*terminal"):
        ToolsetSelection(enabled=enabled, disabled=disabled)


def test_a_distribution_draws_each_toolset_by_its_own_chance() -> None:
    choice = ToolsetSelection(distribution={"terminal": 0.8, "file": 0.5})
    drawn = [choice.sample(Random(seed))[0] for seed in range(2000)]
    assert 0.75 < sum("terminal" in one for one in drawn) / 2000 < 0.91
    assert 0.45 < sum("file" in one for one in drawn) / 2000 < 0.55
    assert all(drawn)


def test_a_distribution_repeats_with_its_seed_and_never_draws_nothing() -> None:
    choice = ToolsetSelection(distribution={"terminal": 0.01, "file": 0.001})
    assert [choice.sample(Random(7)) for _ in range(3)] == [(["terminal"], [])] * 3


@pytest.mark.parametrize(
    ("disabled", "distribution", "sampled"),
    [
        ((), None, ["look", "go"]),
        (["go"], None, ["look"]),
        (["own_tools"], None, []),
        ((), {"look": 1.0, "file": 1e-9}, ["look", "go"]),
        ((), {"look": 1e-9, "file": 1.0}, ["go"]),
        ((), {"own_tools": 1.0, "file": 1e-9}, ["look", "go"]),
        ((), {"own_tools": 1e-9, "file": 1.0}, []),
        ((), {"own_tools": 1e-9, "go": 1.0}, ["go"]),
        (["go"], {"own_tools": 1.0}, ["look"]),
        (["own_tools"], {"go": 1.0, "file": 1.0}, []),
    ],
)
def test_own_tools_can_be_disabled_and_be_in_a_distribution(
    disabled: Sequence[str], distribution: Mapping[str, float] | None, sampled: list[str]
) -> None:
    choice = ToolsetSelection(disabled=disabled, distribution=distribution, own=["look", "go"])
    assert choice.sample(Random(1))[1] == sampled
    assert set(choice.candidates()) <= {"file"}


def test_own_tools_are_not_toolsets_to_enable() -> None:
    with pytest.raises(ConfigError, match="no toolset is named 'look'"):
        ToolsetSelection(enabled=["look"], own=["look"])


def test_no_two_toolsets_share_a_tool_name() -> None:
    open_ones = [toolset for toolset in map(get_toolset, TOOLSETS.builtin) if toolset.open is None]
    assert len(all_tools()) == sum(len(toolset.tools) for toolset in open_ones)


async def test_wrong_settings_of_a_toolset_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="tool_settings of terminal: colour"):
        async with open_toolsets(["terminal"], {"terminal": {"colour": "red"}}):
            pass
