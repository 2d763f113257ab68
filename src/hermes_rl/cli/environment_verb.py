"""A verb that takes an environment first: the options after its name are that environment's own."""

from collections.abc import Callable
from functools import partial
from typing import Any

import click

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.command import MODES, mode_command
from hermes_rl.environment.loader import bundled_environments, load_environment
from hermes_rl.runs.discovery.finding import find_environment, known_environment
from hermes_rl.runs.discovery.listing import discover


def named_environment(text: str) -> type[HermesAgentBaseEnv]:
    """The class behind a name or id of `hermes-rl env list`, FILE.py or FILE.py:CLASS."""
    if text not in bundled_environments() and ".py" not in text and "/" not in text:
        discovery = discover()
        # An id of another version is told as such; a name that is nowhere is the loader's to tell.
        found = find_environment(text, discovery) if "@" in text else known_environment(text, discovery)
        text = text if found is None else found.reference
    return load_environment(text)


class LateVerb(click.Command):
    """A verb whose options are known only once its first argument is; all it is given is kept for `invoke`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and not args[0].startswith("-"):
            ctx.args = args
            return args
        return super().parse_args(ctx, args)


class EnvironmentVerb(LateVerb):
    """`command` makes the click command once the environment is known; what it was named by is its context's `obj`."""

    def __init__(
        self, name: str, command: Callable[[type[HermesAgentBaseEnv]], click.Command], **settings: Any
    ) -> None:
        super().__init__(name, **settings)
        self._command = command

    def invoke(self, ctx: click.Context) -> int:
        if not ctx.args:
            raise click.UsageError("name an environment first, or a file; `hermes-rl env list` shows them", ctx)
        reference, *rest = ctx.args
        command = self._command(named_environment(reference))
        name = f"{ctx.command_path} {reference}"
        code: int = command.main(rest, prog_name=name, standalone_mode=False, obj=reference) or 0
        return code


def environment_mode(
    name: str, command: Callable[[type[HermesAgentBaseEnv]], click.Command] | None = None
) -> EnvironmentVerb:
    """The verb of one of an environment's modes; `command` where it has more options than the mode itself."""
    return EnvironmentVerb(
        name,
        command or partial(mode_command, mode=name),
        help=f"{MODES[name]}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py or FILE.py:CLASS. "
        f"All its options: hermes-rl {name} ENVIRONMENT --help",
        options_metavar="ENVIRONMENT [OPTIONS]",
    )
