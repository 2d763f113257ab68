"""An environment's command line: `process`, `evaluate`, `serve`, with an option for every field of its configuration.

Used by `python my_env.py process …` and `hermes-rl process my_env.py …`. Only --json writes to standard output;
everything else goes to standard error.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from hermes_rl.console.config_options import (
    ConfigSections,
    atropos_options,
    config_option,
    merge_fields,
    read_sections,
    refuse_atropos_endpoints,
    section_options,
    section_values,
    trace_option,
    warn_about_literal_secrets,
)
from hermes_rl.console.live_display import warn
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async, run_click, show_error
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.paths import rl_home
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.environment.ask_endpoint import choose_endpoint
from hermes_rl.environment.modes import MODES
from hermes_rl.environment.resolve_config import Settings, config_defaults, resolve_settings
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.watchdog import Hold, watch_loop
from hermes_rl.rollout.display import summary_table
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.generate import generate_groups, store_split
from hermes_rl.rollout.token_requirements import require_exact_tokens
from hermes_rl.serving.paths import serve_paths
from hermes_rl.serving.serve import initial_stats, serve
from hermes_rl.tracing.setup import Tracing, traced

# A few seconds of work; a page of a gigabyte takes most of a minute.
MAX_PAGE_SOURCE_BYTES = 16_000_000
# The share of an evaluation's rollouts that may have no score.
MAX_UNSCORED = 0.1


def run_command(environment: type[Environment], arguments: list[str] | None = None) -> int:
    """Run the command line of one environment; return the exit code."""
    try:
        commands = [mode_command(environment, mode) for mode in MODES]
    except HermesRLError as error:
        return show_error(error)
    group = click.Group(
        name=environment.display_name(),
        help=environment.__doc__ or f"The environment {environment.display_name()}.",
        commands=commands,
    )
    return run_click(group, arguments, prog_name=None)


def mode_command(environment: type[Environment], mode: str) -> click.Command:
    """The click command of one mode, with options from the configuration models."""
    env_default, endpoints = config_defaults(environment)
    endpoint = endpoints[0] if endpoints else APIServerConfig()
    options: list[click.Parameter] = [
        config_option("YAML file with env and openai."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as one JSON object."),
        trace_option(),
        *atropos_options(),
    ]
    if mode == "process":
        options.append(click.Option(["--overwrite"], is_flag=True, help="Replace the output file if it exists."))
    if mode == "evaluate":
        options.append(
            click.Option(
                ["--max-unscored"],
                type=click.FloatRange(0, 1),
                default=MAX_UNSCORED,
                show_default=True,
                help="Exit with 1 if a larger share of the rollouts has no score.",
            )
        )
    if mode != "serve":
        options.append(click.Option(["--resume"], is_flag=True, help="Continue where an interrupted run stopped."))
    options += section_options("env", env_default)
    options += section_options("openai", endpoint)

    def run(
        config_file: Path | None,
        as_json: bool,
        trace: str | None,
        resume: bool = False,
        overwrite: bool = False,
        max_unscored: float = MAX_UNSCORED,
        slurm: bool = False,
        testing: bool = False,
        config: ConfigSections | None = None,
        **flags: str | None,
    ) -> int:
        refuse_atropos_endpoints(slurm=slurm, testing=testing)
        config = config or read_sections(config_file)
        settings = resolve_settings(environment, config, section_values(flags, "env"), section_values(flags, "openai"))
        if not settings.has_endpoint:
            shared = next(iter(settings.endpoints), APIServerConfig())
            chosen = choose_endpoint().model_dump(exclude_unset=True)
            settings = Settings(settings.env, (merge_fields(shared, chosen, "openai"),))
        warn_about_literal_secrets(flags)
        about = {"environment": environment.display_name(), "model": settings.endpoints[0].model_name}
        with traced(Tracing.from_option(trace), mode, about, report=warn):
            if mode == "process":
                path = _output_file(environment, settings, overwrite=overwrite, resume=resume)
                result = run_async(_process(environment, settings, path, resume=resume))
            elif mode == "serve":
                result = run_async(_serve(environment, settings))
            else:
                result = run_async(_evaluate(environment, settings, resume=resume))
                result["max_unscored"] = max_unscored
        if as_json:
            echo(fast_json.dumps(result).decode())
        return 0 if mode == "serve" or (result.get("scored", 1) and not _lacks_scores(result)) else 1

    return click.Command(
        mode, callback=run, params=options, help=MODES[mode], context_settings={"max_content_width": 110}
    )


def _lacks_scores(result: Mapping[str, Any]) -> bool:
    """Whether more of an evaluation's rollouts have no score than it may have, with a warning."""
    share = result.get("unscored_share") or 0.0
    if share <= result.get("max_unscored", 1.0):
        return False
    warn(
        f"{share:.0%} of the rollouts have no score, more than --max-unscored {result['max_unscored']:g}, so the pass "
        "rate does not measure the model; fix the failures in the table and evaluate again"
    )
    return True


async def _process(environment: type[Environment], settings: Settings, path: Path, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.metrics_path = path.with_suffix(".metrics.jsonl")
    with watch_loop(asyncio.get_running_loop(), report=_warn_of_hold) as env.watchdog:
        async with env.opened():
            tally = await generate_groups(env, path, resume=resume)
    page = write_report(path)
    shown = page or f"none; `hermes-rl view {path}` shows the groups"
    notes = {"groups": str(path), "page": shown, "metrics": str(env.metrics_path)}
    summary_table(f"process · {environment.display_name()}", tally, notes)
    files = {"path": str(path), "page": page, "metrics_path": str(env.metrics_path)}
    return {**tally.summary(), **files}


def write_report(groups: Path) -> str | None:
    """Write the HTML report unless the file is large; a failure is only a warning, since the groups are written."""
    from hermes_rl.viewer.report.builder import write_report
    from hermes_rl.viewer.sources.source import no_runs

    page = groups.with_suffix(".html")
    try:
        if groups.stat().st_size > MAX_PAGE_SOURCE_BYTES:
            return None
        write_report([str(groups)], no_runs(), page, private=True)
    except (HermesRLError, OSError) as error:
        warn(f"could not write a page for {groups}: {error}; retry with `hermes-rl report {groups}`")
        return None
    return str(page)


def _output_file(environment: type[Environment], settings: Settings, *, overwrite: bool, resume: bool) -> Path:
    """The output path; a new run's groups are never appended to an existing file."""
    if overwrite and resume:
        raise ConfigError("--resume keeps the groups in the file and --overwrite removes them; pass only one of them")
    path = Path(settings.env.data_path_to_save_groups or Path("data") / f"{environment.display_name()}.jsonl")
    if path.exists() and path.stat().st_size and not resume:
        if not overwrite:
            raise ConfigError(
                f"{path} already holds groups; pass --resume to continue it, --overwrite to replace it, or another "
                "--env.data_path_to_save_groups"
            )
        with exclusive_lock(path, "--env.data_path_to_save_groups"):
            path.unlink()
    return path


async def _evaluate(environment: type[Environment], settings: Settings, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.resume_evaluation = resume
    env.metrics_path = rl_home() / "evals" / f"{environment.display_name()}.metrics.jsonl"
    with watch_loop(asyncio.get_running_loop(), report=_warn_of_hold) as env.watchdog:
        async with env.opened():
            await env.run_evaluate()
    report = env.last_evaluation or {}
    metrics = report.get("metrics", {})
    names = {"scored": "eval/scored", "unscored_share": "eval/unscored_share"}
    return {**report, **{name: metrics[metric] for name, metric in names.items() if metrics.get(metric) is not None}}


async def _serve(environment: type[Environment], settings: Settings) -> dict[str, Any]:
    require_exact_tokens(settings.env, settings.endpoints)
    env = environment(settings.env, settings.endpoints)
    serve_files = serve_paths(env)
    env.metrics_path = serve_files.metrics
    stop = StopSignal(settings.env.stop_timeout)
    try:
        with watch_loop(asyncio.get_running_loop(), report=_warn_of_hold) as env.watchdog, stop.on_signals():
            async with env.opened():
                store_split(env, serve_files.split)
                served = await serve(env, stop, initial_stats(env))
    except asyncio.CancelledError:
        if stop.signals > 1:
            raise click.Abort from None
        return {"ended": "a signal before it was open"}
    notes = {"ended": served.ended, "metrics": str(env.metrics_path)}
    if served.left:
        notes["left for the next run"] = f"{served.left} groups in {served.spool}"
    summary_table(f"serve · {environment.display_name()}", served.tally, notes)
    return {**served.summary(), "metrics_path": str(env.metrics_path)}


def _warn_of_hold(hold: Hold) -> None:
    warn(str(hold))
