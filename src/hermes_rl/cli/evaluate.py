"""`hermes-rl evaluate` (Run): run the agent on the held-out items and write metrics.json and samples.jsonl."""

from typing import TYPE_CHECKING

import click

from hermes_rl.cli.environment_command import EnvironmentCommand, environment_mode
from hermes_rl.cli.recorded_command import take_option

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv

OPTION = "--run"
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
        if given := [word for word in ctx.args if word.startswith(("--openai.base_url", "--openai.model_name"))]:
            raise click.UsageError(f"{OPTION} starts an endpoint of its own; remove {given[0].split('=')[0]}", ctx)
        from hermes_rl.cli.local_server import RunServerSettings, run_server

        with run_server(RunServerSettings(run)) as server:
            ctx.args = [*ctx.args, "--openai.base_url", server.base_url, "--openai.model_name", server.name]
            return super().invoke(ctx)


def _command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.environment.command import mode_command

    command = mode_command(environment, "evaluate")
    # For the help: EvaluateCommand has taken the option by then.
    command.params.insert(0, click.Option([OPTION], metavar="RUN", expose_value=False, help=HELP))
    return command


evaluate = environment_mode("evaluate", _command, kind=EvaluateCommand)
