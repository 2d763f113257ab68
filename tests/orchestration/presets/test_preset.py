from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.presets.preset import (
    DEFAULT_PRESET,
    list_presets,
    load_preset,
    preset_names,
    user_presets_dir,
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))


def own(name: str, text: str) -> None:
    user_presets_dir().mkdir(parents=True, exist_ok=True)
    (user_presets_dir() / f"{name}.yaml").write_text(text)


def test_three_presets_are_shipped_and_the_seeds_is_the_default() -> None:
    assert (preset_names(), DEFAULT_PRESET) == (["laptop", "self-hosted", "tinker"], "tinker")


def test_only_hosted_tinker_needs_a_key() -> None:
    assert {name: load_preset(name).needs.keys for name in preset_names()} == {
        "laptop": (),
        "self-hosted": (),
        "tinker": ("TINKER_API_KEY",),
    }


def test_a_preset_of_the_users_own_is_there_at_once() -> None:
    own("mine", "description: Mine.\nlocked: {tinker: {total_steps: 7}}\n")
    assert load_preset("mine").locked.by_path() == {"tinker.total_steps": 7}


def test_a_file_of_the_users_own_stands_for_ours() -> None:
    own("tinker", "description: The house's own.\nlocked:\n")
    assert load_preset("tinker").description == "The house's own."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("description: x\nlocked: {tinker: {lora_rank: 0}}", r"locked\.tinker\.lora_rank: .*greater than.*got 0"),
        ("description: x\nlocked: {tinker: {lora_rnk: 1}}", r"unknown field 'lora_rnk'; did you mean 'lora_rank'"),
        ("description: x\ndefaults: {env: {group_size: many}}", r"defaults\.env\.group_size: .*got 'many'"),
        ("description: x\nlocked: {tinker: {api_key: abcdef}}", r"locked\.tinker\.api_key contains a secret"),
        ("locked: {}", r"description: Field required"),
        ("description: x\nlokced: {}", r"lokced: Extra inputs"),
        ("- x", r"must be a mapping with description"),
        ("{", r"is not valid YAML"),
    ],
)
def test_a_broken_preset_names_its_file_and_the_fault(text: str, said: str) -> None:
    own("mine", text)
    with pytest.raises(ConfigError, match=rf"mine\.yaml(.|\n)*{said}") as refused:
        load_preset("mine")
    assert "abcdef" not in str(refused.value)


def test_a_broken_preset_leaves_the_others_usable() -> None:
    own("mine", "{")
    assert [preset["name"] for preset in list_presets() if "problem" in preset] == ["mine"]


def test_fields_that_only_some_environments_have_may_stand_in_a_preset() -> None:
    own("mine", "description: x\ndefaults: {env: {families: [echo, cat]}}")
    assert load_preset("mine").defaults.env == {"families": ["echo", "cat"]}
