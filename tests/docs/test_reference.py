"""The reference has everything: each command and flag, each setting, each public name with what it says of itself."""

import inspect

import click
import pytest
from pydantic import BaseModel

import hermes_rl
from hermes_rl.orchestration.presets.preset import SECTIONS, load_preset, preset_names
from scripts.reference import commands, docstring, members, pages, public_names

PAGES = pages()
NAMES = sorted(name for names in public_names().values() for name in names)


def test_every_public_name_is_on_the_page() -> None:
    assert sorted(set(hermes_rl.__all__) - {"__version__"}) == NAMES
    assert [name for name in NAMES if f"### `{name}`\n" not in PAGES["reference/python.md"]] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_says_what_it_is(name: str) -> None:
    said = docstring(name)
    assert said
    assert said.split()[0] in PAGES["reference/python.md"]


@pytest.mark.parametrize("name", NAMES)
def test_every_method_of_a_public_class_says_what_it_does(name: str) -> None:
    value = getattr(hermes_rl, name)
    if not inspect.isclass(value):
        return
    assert [member for member, said in members(value).items() if not said] == []


def test_every_command_is_on_the_page_with_its_help() -> None:
    page = PAGES["reference/commands.md"]
    for name, command in commands():
        assert f"# `{name}`\n" in page
        assert command.help, f"{name} has no help"


def test_every_flag_is_on_a_page_and_says_what_it_does() -> None:
    settings = PAGES["reference/settings.md"]
    for name, command in commands():
        part = PAGES["reference/commands.md"].split(f"# `{name}`\n")[1].split("\n## ")[0]
        for option in (one for one in command.params if isinstance(one, click.Option)):
            flag = option.opts[-1]
            section, _, field = flag.removeprefix("--").partition(".")
            shown = f"`{section}.{field}`" in settings if field else f"`{flag}" in part
            assert shown, f"{name} {flag} is not on the page"
            assert option.help, f"{name} {flag} has no help"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_on_the_page_and_says_what_it_is(section: str) -> None:
    model: type[BaseModel] = SECTIONS[section]
    for name, field in model.model_fields.items():
        assert f"| `{section}.{name}` |" in PAGES["reference/settings.md"]
        assert field.description, f"{section}.{name} has no description"


@pytest.mark.parametrize("name", ["laptop", "self-hosted", "tinker"])
def test_every_value_of_a_preset_is_on_the_page(name: str) -> None:
    assert name in preset_names()
    part = PAGES["reference/presets.md"].split(f"## `{name}`\n")[1].split("\n## ")[0]
    preset = load_preset(name)
    for layer in (preset.locked, preset.overrides, preset.defaults):
        assert [place for place in layer.by_path() if f"| `{place}` |" not in part] == []


def test_the_same_code_gives_the_same_pages() -> None:
    assert pages() == PAGES
