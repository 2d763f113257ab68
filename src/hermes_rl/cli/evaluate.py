"""`hermes-rl evaluate` (Run): run the agent on the held-out items and write metrics.json and samples.jsonl."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from hermes_rl.cli.environment_command import EnvironmentCommand, environment_mode
from hermes_rl.cli.recorded_command import take_option
from hermes_rl.console.config_options import PART

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv

OPTION = "--run"
# It starts an endpoint, so none may be named.
ENDPOINT = ("base_url", "model_name")
HELP = (
    "Evaluate the weights of this training run, or `last`: served with llama.cpp meanwhile, so no endpoint is needed."
)


class EvaluateCommand(EnvironmentCommand):
    """`evaluate ENVIRONMENT`; with `--run RUN`, before or after it, against the weights of that training run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[OPTION], args = take_option(args, OPTION, "the name of a training run, or `last`")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> int:
        run = ctx.meta[OPTION]
        if run is None:
            return super().invoke(ctx)
        if not ctx.args:
            raise click.UsageError(f"name an environment too: hermes-rl evaluate ENVIRONMENT {OPTION} {run}", ctx)
        from hermes_rl.inference.config import APIServerConfig

        further = APIServerConfig.help_layout.flags
        endpoint = {flag for name in ENDPOINT for flag in (f"--openai.{name}", *further[name])}
        if given := [word for word in ctx.args if word.split("=")[0] in endpoint]:
            raise click.UsageError(f"{OPTION} starts an endpoint of its own; remove {given[0].split('=')[0]}", ctx)
        from hermes_rl.cli.local_server import RunServerSettings, run_server

        with run_server(RunServerSettings(run)) as server:
            ctx.args = [*ctx.args, "--openai.base_url", server.base_url, "--openai.model_name", server.name]
            return super().invoke(ctx)


def _command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.environment.command import mode_command
    from hermes_rl.orchestration.run_file import read_part

    command = mode_command(environment, "evaluate")
    evaluate_alone = cast("Callable[..., int]", command.callback)

    def run(config_file: Path | None, part: str | None, **values: Any) -> int:
        return evaluate_alone(config_file=config_file, config=read_part(config_file, part), **values)

    command.callback = run
    # For the help: EvaluateCommand has taken --run by then.
    command.params.insert(0, click.Option([OPTION], metavar="RUN", expose_value=False, help=HELP))
    command.params.append(click.Option(["--part"], help=PART))
    return command


evaluate = environment_mode("evaluate", _command, kind=EvaluateCommand)
