"""The help of every command: no cut line, no name of a Python type, and each option says what it does."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from hermes_rl.cli.environment_command import DeferredCommand
from hermes_rl.cli.main import hermes_rl
from scripts.reference import commands

COMMANDS: dict[str, click.Command] = dict(commands())
# What the help of an option may begin with, after "With --x: " where another option has to be given.
VERBS = set(
    """accept add allow also answer append ask assume attack audit authenticate begin branch call check choose clip
    close compare compute continue copy count decode define delete deliver describe display distil divide do download
    draw drop end evaluate exclude exit export generate give group import include install keep let limit list listen
    load log make mark multiply name open parse pass pause plan play post predict print put raise read recompute refuse
    remove replace require reserve retry return run sample save search seed select send serve set shard show skip speak
    split start state stop store take tell test train truncate try turn use wait write""".split()
)
TYPE_NAMES = re.compile(r"\b(LITERAL|OPTIONAL|UNION|UNPROCESSED|NONETYPE|[A-Z]+HANDLING)\b")
NO_VERB = {"YAML file with env and openai."}


def help_of(path: str, *, everything: bool = False) -> str:
    words = [*path.split()[1:], "--help-all" if everything else "--help"]
    done = CliRunner().invoke(hermes_rl, words, prog_name="hermes-rl", terminal_width=100)
    assert done.exit_code == 0, (path, done.output)
    return done.output


def options_of(command: click.Command) -> Iterator[click.Option]:
    shown = command.usual_command() if isinstance(command, DeferredCommand) else command
    yield from (one for one in shown.params if isinstance(one, click.Option) and not one.hidden)


def has_settings(path: str) -> bool:
    return any("--help-all" in one.opts for one in options_of(COMMANDS[path]))


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_no_name_of_a_python_type(path: str) -> None:
    text = help_of(path, everything=has_settings(path))
    assert TYPE_NAMES.search(text) is None, TYPE_NAMES.search(text)


def test_no_line_of_a_list_of_commands_is_cut() -> None:
    cut = set()
    for path in COMMANDS:
        lists = re.split(r"\n(?=\w+:\n)", help_of(path))
        for line in "\n".join(lists[1:]).splitlines():
            if re.search(r"(\.\.\.|…)$", line) and (name := re.match(r"  ([a-z-]+) ", line)):
                cut.add(f"{path} {name[1]}")
    assert cut == set()


def test_every_option_says_what_it_does_beginning_with_a_verb() -> None:
    wrong = []
    for path, command in COMMANDS.items():
        for option in options_of(command):
            text = re.sub(r"^(With|For) [^:]+: ", "", option.help or "")
            if text not in NO_VERB and re.split(r"\W", text, maxsplit=1)[0].lower() not in VERBS:
                wrong.append((path, option.opts[-1], text))
    assert wrong == []


def test_every_command_says_what_it_does() -> None:
    assert [path for path, command in COMMANDS.items() if not re.match(r"[A-Z][a-z-]+[, ]", command.help or "")] == []
