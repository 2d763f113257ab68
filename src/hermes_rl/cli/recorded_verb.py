"""A verb on recorded groups: `VERB FILE --env ENVIRONMENT`, and after it the options of that environment.

Without --env the environment is the one of `hermes-rl env list` that the records name.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hermes_rl.cli.environment_verb import LateVerb, named_environment
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.errors import ConfigError
from hermes_rl.runs.discovery.finding import known_environment
from hermes_rl.runs.discovery.listing import discover
from hermes_rl.store.records import read_groups

MakeCommand = Callable[[type[HermesAgentBaseEnv], Path], click.Command]


class RecordedVerb(LateVerb):
    """`command` makes the click command once the file and its environment are known."""

    def __init__(self, name: str, command: MakeCommand, **settings: Any) -> None:
        super().__init__(name, options_metavar="FILE --env ENVIRONMENT [OPTIONS]", **settings)
        self._command = command

    def invoke(self, ctx: click.Context) -> int:
        if not ctx.args:
            raise click.UsageError("name a file of groups first, as `hermes-rl process` writes them", ctx)
        file, *rest = ctx.args
        path = Path(file)
        if not path.is_file():
            raise ConfigError(f"there is no file {file}; name one that `hermes-rl process` wrote")
        reference, rest = _taken(rest, "--env")
        environment = named_environment(reference or _recorded_environment(path))
        code: int = self._command(environment, path).main(rest, prog_name=ctx.command_path, standalone_mode=False) or 0
        return code


def _taken(arguments: list[str], option: str) -> tuple[str | None, list[str]]:
    """The value of one option, and the arguments without it."""
    for place, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}="), arguments[:place] + arguments[place + 1 :]
        if argument == option:
            if place + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value: a name of `hermes-rl env list`, FILE.py or FILE.py:CLASS")
            return arguments[place + 1], arguments[:place] + arguments[place + 2 :]
    return None, arguments


def _recorded_environment(path: Path) -> str:
    first = next(read_groups(path), None)
    if first is None:
        raise ConfigError(f"{path} holds no group")
    name = first.provenance.environment
    found = known_environment(name, discover())
    if found is None:
        raise ConfigError(
            f"{path} was made by {name!r}, which `hermes-rl env list` does not know; name its file with --env FILE.py"
        )
    return found.name
