"""A command that takes an environment first, and has options that depend on it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.environment.modes import MODES

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv

MakeCommand = Callable[["type[HermesAgentBaseEnv]"], click.Command]


def resolve_environment(text: str) -> "type[HermesAgentBaseEnv]":
    """Load an environment class from a name or id of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS."""
    from hermes_rl.environment.loading.loader import bundled_environments, load_environment
    from hermes_rl.orchestration.discovery.discover import discover
    from hermes_rl.orchestration.discovery.lookup import find_environment, known_environment

    if text.partition(":")[0] not in bundled_environments() and not any(mark in text for mark in (".py", "/", ":")):
        discovery = discover()
        # find_environment reports an id with another version; the loader reports an unknown name.
        found = find_environment(text, discovery) if "@" in text else known_environment(text, discovery)
        text = text if found is None else found.reference
    return load_environment(text)


class DeferredCommand(click.Command):
    """A command with options that depend on its first argument; arguments are parsed in `invoke`."""

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

    def invoke(self, ctx: click.Context) -> int:
        if not ctx.args:
            raise click.UsageError(
                "the first argument must be an environment; list them with `hermes-rl env list`", ctx
            )
        reference, *rest = ctx.args
        command = self._command(resolve_environment(reference))
        name = f"{ctx.command_path} {reference}"
        code: int = command.main(rest, prog_name=name, standalone_mode=False, obj=reference) or 0
        return code


def environment_mode(name: str, command: MakeCommand | None = None) -> EnvironmentCommand:
    """The command of an environment mode; `command` builds one with additional options."""

    def plain_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
        from hermes_rl.environment.command import mode_command

        return mode_command(environment, name)

    return EnvironmentCommand(
        name,
        command or plain_command,
        help=f"{MODES[name]}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or "
        "MODULE:CLASS. "
        f"List all options with: hermes-rl {name} ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )
