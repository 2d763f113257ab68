"""A command on recorded groups: `COMMAND FILE --env ENVIRONMENT`, followed by the environment's options.

Without --env the environment named in the records is used.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_rl.cli.environment_command import DeferredCommand, resolve_environment
from hermes_rl.core.errors import ConfigError

if TYPE_CHECKING:
    from hermes_rl.core.trajectory import Group
    from hermes_rl.environment.base import HermesAgentBaseEnv

MakeCommand = Callable[["type[HermesAgentBaseEnv]", Path], click.Command]
AN_ENVIRONMENT = "a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS"


class RecordedCommand(DeferredCommand):
    """`command` builds the click command of a file and its environment."""

    def __init__(self, name: str, command: MakeCommand, **settings: Any) -> None:
        super().__init__(name, options_metavar="FILE --env ENVIRONMENT [OPTIONS]", **settings)
        self._command = command

    def usual_command(self) -> click.Command:
        from hermes_rl.environment.base import HermesAgentBaseEnv

        # Only its configuration is read.
        return self._command(cast("Any", HermesAgentBaseEnv), Path("FILE"))

    def invoke(self, ctx: click.Context) -> int:
        from hermes_rl.environment.last_output import named_path

        if not ctx.args:
            raise click.UsageError("the first argument must be a file of groups, written by `hermes-rl process`", ctx)
        file, *rest = ctx.args
        path = named_path(file, "groups")
        if not path.is_file():
            raise ConfigError(f"no file {file}; pass one written by `hermes-rl process`, or `last`")
        reference, rest = take_option(rest, "--env")
        environment = resolve_environment(reference or _recorded_environment(path))
        code: int = self._command(environment, path).main(rest, prog_name=ctx.command_path, standalone_mode=False) or 0
        return code


def take_option(arguments: list[str], option: str, value: str = AN_ENVIRONMENT) -> tuple[str | None, list[str]]:
    """The value of an option, and the other arguments."""
    for index, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return argument.removeprefix(f"{option}="), arguments[:index] + arguments[index + 1 :]
        if argument == option:
            if index + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value: {value}")
            return arguments[index + 1], arguments[:index] + arguments[index + 2 :]
    return None, arguments


def recorded_group(path: Path, wanted: str) -> "Group":
    """A group of the file, by its number from 1 or its id."""
    from hermes_rl.store.records import read_groups

    for number, group in enumerate(read_groups(path), 1):
        if wanted in (group.id, str(number)):
            return group
    raise ConfigError(f"{path} has no group {wanted}; pass --group with a number from 1, or an id")


def _recorded_environment(path: Path) -> str:
    from hermes_rl.orchestration.discovery.discover import discover
    from hermes_rl.orchestration.discovery.lookup import known_environment
    from hermes_rl.store.records import read_groups

    first = next(read_groups(path), None)
    if first is None:
        raise ConfigError(f"{path} has no groups")
    name = first.provenance.environment
    found = known_environment(name, discover())
    if found is None:
        raise ConfigError(f"{path} was recorded by {name!r}, which is not in `hermes-rl env list`; pass --env FILE.py")
    return found.name
