"""No page names a command or a flag that does not exist."""

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from hermes_rl.cli.main import ALIASES
from hermes_rl.core.config_schema import describe_model
from hermes_rl.environment.loading.loader import bundled_environments, load_environment
from hermes_rl.interop.openenv.environment import OpenEnvConfig
from hermes_rl.interop.verifiers.environment import VerifiersConfig
from hermes_rl.orchestration.presets.preset import SECTIONS
from scripts.links import ROOT, pages
from scripts.reference import commands

KNOWN: dict[str, click.Command] = dict(commands())
FENCE = re.compile(r"(?ms)^( *)```(\w*)[^\n]*\n(.*?)^\1```$")
SHELLS = {"", "bash", "console", "sh", "text"}
# Pages that tell what once was, or is to come.
LEFT_OUT = ("CHANGELOG.md", "docs/reports/", "docs/decisions/")


def lines() -> Iterator[tuple[str, str]]:
    """Each command line of ours that stands in a block or between backticks."""
    for page in pages(ROOT):
        name = page.relative_to(ROOT).as_posix()
        if name.startswith(LEFT_OUT):
            continue
        text = page.read_text().replace("\\\n", " ")
        blocks = [inner for _, language, inner in FENCE.findall(text) if language in SHELLS]
        spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
        for line in [*(line for block in blocks for line in block.splitlines()), *spans]:
            if match := re.match(r"(?:\$ )?(hermes-rl [a-z].*)", line.strip()):
                yield name, match[1]


def fault(line: str) -> str | None:
    try:
        words = shlex.split(re.split(r" [|&#]|  |;", line)[0], comments=True)
    except ValueError:
        words = line.split()
    name, rest = words[0], words[1:]
    while rest and (longer := f"{name} {ALIASES.get(rest[0], rest[0])}") in KNOWN:
        name, rest = longer, rest[1:]
    command = KNOWN[name]
    if (
        isinstance(command, click.Group)
        and rest
        and re.fullmatch(r"[a-z][a-z-]*", rest[0])
        and name != "hermes-rl export"
    ):
        return f"{name} has no command {rest[0]}"
    if name == "hermes-rl" and rest and not rest[0].startswith("-") and rest[0].islower():
        return f"no command {rest[0]}"
    options = {
        flag for one in command.params if isinstance(one, click.Option) for flag in (*one.opts, *one.secondary_opts)
    }
    if name == "hermes-rl export":
        options |= {flag for one in KNOWN["hermes-rl export weights"].params for flag in one.opts}
    unknown = [word for word in rest if re.match(r"--[a-z]", word) and not known(word.partition("=")[0], options)]
    return f"{name} has no {', '.join(unknown)}" if unknown else None


def known(flag: str, options: set[str]) -> bool:
    if flag in options or flag in {"--help", "--version", "--env"}:
        return True
    section, _, field = flag.removeprefix("--").partition(".")
    return section in SECTIONS and (not field or field in fields(section))


def fields(section: str) -> set[str]:
    own = set(describe_model(SECTIONS[section]))
    if section == "env":
        for name in bundled_environments():
            own |= set(load_environment(name).env_config_cls.model_fields)
        for config in (OpenEnvConfig, VerifiersConfig):
            own |= set(config.model_fields)
    return own | {"FIELD"}


def test_every_command_and_flag_that_a_page_names_exists() -> None:
    found = list(lines())
    assert len(found) > 100
    assert [(page, line, why) for page, line in found if (why := fault(line))] == []


@pytest.mark.parametrize(
    "line", ["hermes-rl nonsense", "hermes-rl run nonsense", "hermes-rl process e --env.nonsense 1"]
)
def test_one_that_does_not_is_found(line: str) -> None:
    assert fault(line)
