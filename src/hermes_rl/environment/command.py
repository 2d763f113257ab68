"""An environment's command line: `process`, `evaluate`, `serve`, with an option for every field of its configuration.

Used by `python my_env.py process …` and `hermes-rl process my_env.py …`. Only --json writes to standard output;
everything else goes to standard error.
"""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from hermes_rl.console.config_options import (
    ConfigSections,
    SettingsCommand,
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
from hermes_rl.console.live_display import warn, write_line
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async, run_click, show_error
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.exit_codes import LIMIT_REACHED
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.paths import rl_home
from hermes_rl.core.shutdown import StopSignal
from hermes_rl.environment.ask_endpoint import choose_endpoint
from hermes_rl.environment.estimate import LARGE, confirm_if_large
from hermes_rl.environment.last_output import note_output
from hermes_rl.environment.modes import MODES
from hermes_rl.environment.resolve_config import Settings, config_defaults, resolve_settings
from hermes_rl.environment.simulated_user import require_user_endpoint
from hermes_rl.evaluation.audit_gap import gap_interval
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.rewards.watchdog import Hold, watch_loop
from hermes_rl.rollout.config import HermesAgentEnvConfig
from hermes_rl.rollout.display import summary_table
from hermes_rl.rollout.environment_protocol import Environment
from hermes_rl.rollout.generate import generate_groups, store_split
from hermes_rl.rollout.token_requirements import require_exact_tokens
from hermes_rl.serving.paths import serve_paths
from hermes_rl.serving.serve import initial_stats, serve
from hermes_rl.store.export import count_lines
from hermes_rl.tracing.setup import Tracing, traced

# A few seconds of work; a page of a gigabyte takes most of a minute.
MAX_PAGE_SOURCE_BYTES = 16_000_000
# The share of the rollouts that may have no score.
MAX_UNSCORED = 0.1
# What `process` makes unless told, and the default of total_steps, which is that of Atropos.
GROUPS = 10
TRAINING_STEPS = HermesAgentEnvConfig.model_fields["total_steps"].default


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
        options += [
            click.Option(["--overwrite"], is_flag=True, help="Replace the output file if it exists."),
            click.Option(
                ["-n", "--groups"],
                type=click.IntRange(1),
                help=f"Make this many groups in total.  [default: {GROUPS}]",
            ),
            click.Option(["--yes"], is_flag=True, help=f"Start without asking, also with {LARGE} rollouts or more."),
        ]
    if mode != "serve":
        options += [
            click.Option(
                ["--max-unscored"],
                type=click.FloatRange(0, 1),
                default=MAX_UNSCORED,
                show_default=True,
                help="Exit with 1 if a larger share of the rollouts has no score.",
            ),
            click.Option(
                ["--resume"],
                is_flag=True,
                help="Continue where an interrupted run stopped, and redo what an outage made fail.",
            ),
            *limit_options(),
        ]
    options += section_options("openai", endpoint)
    options += section_options("env", env_default, {"eval_size": ("-n",)} if mode == "evaluate" else None)

    def run(
        config_file: Path | None,
        as_json: bool,
        trace: str | None,
        resume: bool = False,
        overwrite: bool = False,
        yes: bool = False,
        max_unscored: float = MAX_UNSCORED,
        groups: int | None = None,
        max_tokens_total: int | None = None,
        max_cost: float | None = None,
        max_minutes: float | None = None,
        slurm: bool = False,
        testing: bool = False,
        config: ConfigSections | None = None,
        **flags: str | None,
    ) -> int:
        refuse_atropos_endpoints(slurm=slurm, testing=testing)
        config = config or read_sections(config_file)
        limits = limit_fields(max_tokens_total, max_cost, max_minutes)
        flags = _with_short_options(flags, {**limits, "total_steps": groups})
        settings = resolve_settings(environment, config, section_values(flags, "env"), section_values(flags, "openai"))
        if not settings.has_endpoint:
            shared = next(iter(settings.endpoints), APIServerConfig())
            chosen = choose_endpoint().model_dump(exclude_unset=True)
            settings = Settings(settings.env, (merge_fields(shared, chosen, "openai"),))
        require_user_endpoint(getattr(environment, "user", None), settings.env.user_endpoint)
        warn_about_literal_secrets(flags)
        about = {"environment": environment.display_name(), "model": settings.endpoints[0].model_name}
        with traced(Tracing.from_option(trace), mode, about, report=warn):
            if mode == "process":
                settings = _with_default_groups(settings)
                path = _output_file(environment, settings, overwrite=overwrite, resume=resume)
                done = count_lines(path) if resume and path.exists() else 0
                confirm_if_large(settings.env, settings.endpoints, done, confirmed=yes)
                result = run_async(_process(environment, settings, path, resume=resume))
            elif mode == "serve":
                result = run_async(_serve(environment, settings))
            else:
                result = run_async(_evaluate(environment, settings, resume=resume))
        if mode != "serve":
            result["max_unscored"] = max_unscored
        if as_json:
            echo(fast_json.dumps(result).decode())
        return exit_code(result, mode)

    return SettingsCommand(mode, callback=run, params=options, help=MODES[mode])


def limit_options() -> list[click.Parameter]:
    """The limits of `process`, `evaluate` and `train`."""
    return [
        click.Option(
            ["--max-tokens-total"],
            type=click.IntRange(1),
            metavar="TOKENS",
            help="Stop after this many tokens of prompts and answers, judges and simulated users included.",
        ),
        click.Option(
            ["--max-cost"],
            type=click.FloatRange(0, min_open=True),
            metavar="AMOUNT",
            help="Stop after spending this much, at the endpoints' prices (--openai.prompt_price, …).",
        ),
        click.Option(
            ["--max-minutes"], type=click.FloatRange(0, min_open=True), metavar="MINUTES", help="Stop after this time."
        ),
    ]


def limit_fields(max_tokens_total: int | None, max_cost: float | None, max_minutes: float | None) -> dict[str, Any]:
    """The fields of the configuration that these options set."""
    seconds = None if max_minutes is None else 60 * max_minutes
    return {"token_limit": max_tokens_total, "spend_limit": max_cost, "time_limit": seconds}


def _with_short_options(flags: Mapping[str, str | None], fields: Mapping[str, Any]) -> dict[str, str | None]:
    """The flags with fields of the section env that have an option of their own."""
    given = {f"env__{name}": value for name, value in fields.items() if value is not None}
    if twice := [name for name in given if flags.get(name) is not None]:
        raise ConfigError(f"--{twice[0].replace('__', '.')} is set twice; pass only the short option or only the field")
    return {**flags, **{name: f"{value}" for name, value in given.items()}}


def _with_default_groups(settings: Settings) -> Settings:
    """A few groups, unless someone said how many: the default of the field is for training."""
    fields = type(settings.env).model_fields
    if "total_steps" in settings.env.model_fields_set or fields["total_steps"].default != TRAINING_STEPS:
        return settings
    write_line(f"making {GROUPS} groups of {settings.env.group_size} rollouts; --groups N sets another number")
    return replace(settings, env=settings.env.model_copy(update={"total_steps": GROUPS}))


def exit_code(result: Mapping[str, Any], mode: str) -> int:
    """3 if a limit ended the run; else 1 if it has too few scores, which is no failure in `serve`."""
    if result.get("limit"):
        return LIMIT_REACHED
    if mode == "serve":
        return 0
    return 1 if _lacks_scores(result) or not result.get("scored", 1) else 0


def _lacks_scores(result: Mapping[str, Any]) -> bool:
    """Whether more of the rollouts have no score than may have none, with a warning."""
    share = result.get("unscored_share") or 0.0
    if share <= result["max_unscored"]:
        return False
    warn(
        f"{share:.0%} of the rollouts have no score, more than --max-unscored {result['max_unscored']:g}, so the mean "
        "does not measure the model; fix the failures in the table and run again with --resume"
    )
    return True


async def _process(environment: type[Environment], settings: Settings, path: Path, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.metrics_path = path.with_suffix(".metrics.jsonl")
    env.artifacts_folder = path.with_suffix(".artifacts")
    note_output("groups", path)
    with watch_loop(asyncio.get_running_loop(), report=_warn_of_hold) as env.watchdog:
        async with env.opened():
            tally = await generate_groups(env, path, resume=resume)
    page = write_report(path)
    shown = page or f"none; `hermes-rl view {path}` shows the groups"
    notes = {"groups": str(path), "page": shown, "metrics": str(env.metrics_path)}
    summary_table(f"process · {environment.display_name()}", tally, notes)
    files = {"path": str(path), "page": page, "metrics_path": str(env.metrics_path)}
    unscored = 1 - len(tally.scores) / tally.rollouts if tally.rollouts else None
    return {**tally.summary(), **gap_interval(tally.audit_gaps), "unscored_share": unscored, **files}


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
            shutil.rmtree(path.with_suffix(".artifacts"), ignore_errors=True)
    return path


async def _evaluate(environment: type[Environment], settings: Settings, *, resume: bool) -> dict[str, Any]:
    env = environment(settings.env, settings.endpoints)
    env.resume_evaluation = resume
    env.metrics_path = rl_home() / "evals" / f"{environment.display_name()}.metrics.jsonl"
    with watch_loop(asyncio.get_running_loop(), report=_warn_of_hold) as env.watchdog:
        async with env.opened():
            await env.run_evaluate()
    report = env.last_evaluation or {}
    if report.get("folder"):
        note_output("evaluation", Path(report["folder"]))
    metrics = report.get("metrics", {})
    names = {"scored": "eval/scored", "unscored_share": "eval/unscored_share"}
    return {**report, **{name: metrics[metric] for name, metric in names.items() if metrics.get(metric) is not None}}


async def _serve(environment: type[Environment], settings: Settings) -> dict[str, Any]:
    require_exact_tokens(settings.env, settings.endpoints)
    if settings.env.agent_artifacts:
        warn("serve keeps no agent_artifacts; process and evaluate do")
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
