"""`hermes-rl sandbox prepare ENVIRONMENT`: build sandbox images before a run needs them."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_rl.cli.progress import progress
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.prebuild import PrebuildResult

HELP = """Pull an environment's images and add its files and setup, before a run needs them.

Needs no model. Items with the same image, files and setup in their sandbox_spec are prepared once."""


def prepare_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.console.config_options import (
        SettingsCommand,
        config_option,
        read_sections,
        section_options,
        section_values,
    )
    from hermes_rl.environment.prebuild import NO_MODEL
    from hermes_rl.environment.resolve_config import config_defaults, resolve_settings

    options: list[click.Parameter] = [
        config_option("Read the section env from a YAML file."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        *section_options("env", config_defaults(environment)[0]),
    ]

    def run(config_file: Path | None, as_json: bool, **flags: str | None) -> int:
        settings = resolve_settings(environment, read_sections(config_file), section_values(flags, "env"), {})
        prepared = run_async(
            _prepare(environment(settings.env, settings.endpoints if settings.has_endpoint else [NO_MODEL]))
        )
        for what, reason in prepared.failed:
            echo(f"could not prepare {what}: {reason}", err=True)
        if as_json:
            failed = [{"what": what, "reason": reason} for what, reason in prepared.failed]
            echo(fast_json.dumps({"specs": prepared.specs, "backends": prepared.backends, "failed": failed}))
        return 1 if prepared.failed else 0

    return SettingsCommand("prepare", callback=run, params=options, help=HELP)


async def _prepare(env: "HermesAgentBaseEnv") -> "PrebuildResult":
    from hermes_rl.environment.prebuild import distinct_specs, open_for_prebuild, prebuild_specs, training_specs_unknown

    async with open_for_prebuild(env) as backends:
        specs = distinct_specs(env)
        names = ", ".join(backend.name for backend in backends)
        echo(f"{len(specs)} to prepare on {names}", err=True)
        if training_specs_unknown(env):
            echo(
                f"note: {type(env).__name__}.sandbox_spec depends on the item and there is no train_items(), so only "
                "evaluation items are prepared; the others are built when their rollouts start",
                err=True,
            )
        done, status = 0, ""
        with progress("prepare", len(specs) * len(backends)) as shown:

            def say(line: str) -> None:
                nonlocal status
                status = line
                shown.show(done, status)

            def advance() -> None:
                nonlocal done
                done += 1
                shown.show(done, status)

            prepared = await prebuild_specs(specs, backends, say, advance)
        echo(f"{done - len(prepared.failed)} ready, {len(prepared.failed)} failed", err=True)
        return prepared
