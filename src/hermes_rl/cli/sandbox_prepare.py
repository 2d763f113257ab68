"""`hermes-rl sandbox prepare ENVIRONMENT`: what its sandboxes start from is fetched and baked before a run needs it."""

from pathlib import Path

import click

from hermes_rl import jsontext
from hermes_rl.cli.progress import progress
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.preparation import (
    NO_MODEL,
    Prepared,
    leaves_training_out,
    opened_for_preparation,
    prepare_environment,
    specs_to_prepare,
)
from hermes_rl.environment.settings import defaults, resolve
from hermes_rl.terminal.running import on_a_loop
from hermes_rl.terminal.sections import section_options, section_values

HELP = """Fetch the images of an environment and bake its files and setup, before a run needs them.

No model is needed. Items whose sandbox_spec has the same image, files and setup are prepared once."""


def prepare_command(environment: type[HermesAgentBaseEnv]) -> click.Command:
    options: list[click.Parameter] = [
        click.Option(["--config", "config_file"], type=click.Path(path_type=Path), help="YAML file with env."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        *section_options("env", defaults(environment)[0]),
    ]

    def run(config_file: Path | None, as_json: bool, **flags: str | None) -> int:
        given = {name: text for name, text in flags.items() if text is not None}
        settings = resolve(environment, config_file, section_values(given, "env"), {})
        prepared = on_a_loop(
            _prepare(environment(settings.env, settings.endpoints if settings.has_endpoint else [NO_MODEL]))
        )
        for what, reason in prepared.failed:
            click.echo(f"not prepared: {what}: {reason}", err=True)
        if as_json:
            failed = [{"what": what, "reason": reason} for what, reason in prepared.failed]
            click.echo(jsontext.dumps({"specs": prepared.specs, "backends": prepared.backends, "failed": failed}))
        return 1 if prepared.failed else 0

    return click.Command(
        "prepare", callback=run, params=options, help=HELP, context_settings={"max_content_width": 110}
    )


async def _prepare(env: HermesAgentBaseEnv) -> Prepared:
    async with opened_for_preparation(env) as backends:
        specs = specs_to_prepare(env)
        names = ", ".join(backend.name for backend in backends)
        click.echo(f"{len(specs)} to prepare on {names}", err=True)
        if leaves_training_out(env):
            click.echo(
                f"note: {type(env).__name__}.sandbox_spec depends on the item and there is no train_items(), so only "
                "those of the evaluation are prepared; the others are made when their rollouts start",
                err=True,
            )
        done, said = 0, ""
        with progress("prepare", len(specs) * len(backends)) as shown:

            def say(line: str) -> None:
                nonlocal said
                said = line
                shown.show(done, said)

            def advance() -> None:
                nonlocal done
                done += 1
                shown.show(done, said)

            prepared = await prepare_environment(specs, backends, say, advance)
        click.echo(f"{done - len(prepared.failed)} ready, {len(prepared.failed)} failed", err=True)
        return prepared
