"""A command that takes an environment first, and has options that depend on it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_rl.environment.modes import MODES

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv

# Environments whose name may be followed by what they play: NAME:SOURCE.
SOURCE_OPTIONS = {"harbor": "--env.dataset_name"}
MakeCommand = Callable[["type[HermesAgentBaseEnv]"], click.Command]

# Prefixes of environments of other projects, with the function that takes what follows the prefix.
FORMATS = {
    "openenv": "hermes_rl.interop.openenv.environment:environment_class",
    "verifiers": "hermes_rl.interop.verifiers.environment:environment_class",
}


def resolve_environment(text: str) -> "type[HermesAgentBaseEnv]":
    """Load an environment: a name or id of `hermes-rl env list`, FILE.py, FILE.py:CLASS, MODULE:CLASS, FORMAT:NAME."""
    from hermes_rl.environment.loading.loader import bundled_environments, load_environment
    from hermes_rl.orchestration.discovery.discover import discover
    from hermes_rl.orchestration.discovery.lookup import find_environment

    prefix, colon, rest = text.partition(":")
    if colon and prefix in FORMATS:
        module, _, function = FORMATS[prefix].partition(":")
        found_class: type[HermesAgentBaseEnv] = getattr(import_module(module), function)(rest)
        return found_class
    if prefix not in bundled_environments() and not any(mark in text for mark in (".py", "/", ":")):
        text = find_environment(text, discover()).reference
    return load_environment(text)


def split_source(reference: str, command: str) -> tuple[str, list[str]]:
    """`harbor:SOURCE` as the environment and its options; any other reference unchanged.

    All items of a source are for evaluation where that is the command.
    """
    name, _, source = reference.partition(":")
    if name not in SOURCE_OPTIONS or not source or (source.isidentifier() and not Path(source).exists()):
        return reference, []
    split = ["--env.dataset_split", "test"] if command == "evaluate" else []
    return name, [SOURCE_OPTIONS[name], source, *split]


class DeferredCommand(click.Command):
    """A command with options that depend on its first argument; arguments are parsed in `invoke`.

    Its own help shows the options that it has with any environment.
    """

    def usual_command(self) -> click.Command:
        """The command of an environment without settings of its own."""
        raise NotImplementedError

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        from hermes_rl.console.config_options import help_all_option

        return [*super().get_params(ctx), help_all_option()]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.usual_command().format_options(ctx, formatter)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            ctx.args = args
            return args
        return super().parse_args(ctx, args)


class EnvironmentCommand(DeferredCommand):
    """`command` builds the click command of an environment; the context's `obj` is the reference as typed."""

    def __init__(self, name: str, command: MakeCommand, **settings: Any) -> None:
        super().__init__(name, **settings)
        self._command = command

    def usual_command(self) -> click.Command:
        from hermes_rl.environment.base import HermesAgentBaseEnv

        # Only its configuration is read.
        return self._command(cast("Any", HermesAgentBaseEnv))

    def invoke(self, ctx: click.Context) -> int:
        if not ctx.args:
            raise click.UsageError(
                "the first argument must be an environment; list them with `hermes-rl env list`", ctx
            )
        typed, *rest = ctx.args
        reference, options = split_source(typed, self.name or "")
        rest = [*options, *rest]
        command = self._command(resolve_environment(reference))
        name = f"{ctx.command_path} {typed}"
        code: int = command.main(rest, prog_name=name, standalone_mode=False, obj=reference) or 0
        return code


def environment_mode(
    name: str, command: MakeCommand | None = None, kind: type[EnvironmentCommand] = EnvironmentCommand
) -> EnvironmentCommand:
    """The command of an environment mode; `command` builds one with additional options."""

    def plain_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
        from hermes_rl.environment.command import mode_command

        return mode_command(environment, name)

    return kind(
        name,
        command or plain_command,
        help=f"{MODES[name]}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS, "
        "MODULE:CLASS or harbor:FOLDER. Its own settings are shown by: "
        f"hermes-rl {name} ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )
