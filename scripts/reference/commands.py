"""Every command with every flag, as click knows them."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from hermes_rl.cli.environment_command import DeferredCommand
from hermes_rl.cli.main import ALIASES
from hermes_rl.cli.main import hermes_rl as program
from hermes_rl.orchestration.presets.preset import SECTIONS

from .markdown import prose, table
from .settings import anchor


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, groups before their members."""
    yield from _below("hermes-rl", program)


def _below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, _settled(command)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            if inner := command.get_command(context, word):
                yield from _below(f"{name} {word}", inner)


def _settled(command: click.Command) -> click.Command:
    """With the options that a command has once its environment is known."""
    return command.usual_command() if isinstance(command, DeferredCommand) else command


def commands_page() -> str:
    shorter = {verb: alias for alias, verb in ALIASES.items()}
    parts = ["# Commands\n\nEvery command with every flag, as `--help` says it; made from the code with these pages."]
    for name, command in commands():
        level = "##" if name.count(" ") < 2 else "###"
        parts.append(f"{level} `{name}`")
        if alias := shorter.get(name.removeprefix("hermes-rl ")):
            parts.append(f"Also `hermes-rl {alias}`.")
        parts += [f"```text\n{_usage(name, command)}\n```", _help(command.help or "")]
        options = [one for one in command.params if isinstance(one, click.Option)]
        own = [one for one in options if _section(one) is None]
        if own:
            rows = [
                (", ".join(f"`{flag}`" for flag in _flags(one)), _help(one.help or ""), _default(one)) for one in own
            ]
            parts.append(table(("flag", "what it does", "default"), rows))
        if sections := list(dict.fromkeys(filter(None, map(_section, options)))):
            said = " and ".join(f"[`--{section}.FIELD`](settings.md#{anchor(section)})" for section in sections)
            parts.append(f"Besides: every {said}.{_short_flags(options)}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _short_flags(options: list[click.Option]) -> str:
    """The fields of sections that have another flag."""
    named = [f"`{flag}` is `{option.opts[-1]}`" for option in options if _section(option) for flag in option.opts[:-1]]
    return f" {', '.join(named)}." if named else ""


def _usage(name: str, command: click.Command) -> str:
    late = {"process": "ENVIRONMENT", "evaluate": "ENVIRONMENT", "serve": "ENVIRONMENT", "validate": "ENVIRONMENT"}
    late |= {"prepare": "ENVIRONMENT", "rescore": "FILE --env ENVIRONMENT", "replay": "FILE --env ENVIRONMENT"}
    late |= {"audit": "ENVIRONMENT|FOLDER"}
    context = click.Context(command, info_name=name)
    pieces = " ".join(command.collect_usage_pieces(context))
    first = late.get(name.rpartition(" ")[2])
    return f"{name} {first + ' ' if first else ''}{pieces}".strip()


def _flags(option: click.Option) -> list[str]:
    metavar = "" if option.is_flag or option.count else " " + _metavar(option)
    return [flag + metavar for flag in (*option.opts, *option.secondary_opts)]


def _metavar(option: click.Option) -> str:
    if isinstance(option.type, click.Choice):
        return "|".join(map(str, option.type.choices))
    return option.metavar or option.type.name.upper().replace("PATH", "FILE")


def _default(option: click.Option) -> str:
    shown = option.default
    if option.required:
        return "must be given"
    if option.is_flag or callable(shown) or not isinstance(shown, str | int | float | Path):
        return ""
    return f"`{shown}`"


def _section(option: click.Option) -> str | None:
    section = (option.name or "").partition("__")[0]
    return section if "__" in (option.name or "") and section in SECTIONS else None


def _help(text: str) -> str:
    """Click's text as Markdown: a paragraph it leaves as it is stays so."""
    said = []
    for paragraph in inspect.cleandoc(text).replace("\r", "").split("\n\n"):
        kept = paragraph.startswith("\b")
        lines = paragraph.removeprefix("\b").strip("\n")
        said.append(f"```text\n{inspect.cleandoc(lines)}\n```" if kept else prose(" ".join(lines.split())))
    return "\n\n".join(said)
