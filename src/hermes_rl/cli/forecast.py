"""`hermes-rl forecast ENVIRONMENT` (Train): predict a run's signal, tokens, time and cost from a small sample."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import click

from hermes_rl.cli.environment_command import EnvironmentCommand
from hermes_rl.cli.last import resolve_run_id
from hermes_rl.console.live_display import console
from hermes_rl.console.output import echo
from hermes_rl.console.run_command import run_async
from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.evaluation.forecast import Forecast, Range, RunPlan
    from hermes_rl.evaluation.forecast_check import Checked

HELP = """Predict a training run's learning signal, tokens, time and cost from a small sample, with 80% intervals.

Rolls out a few training items with the model you want to train, and answers: how many groups will have different
scores at each group size, what a rollout and a step take, what to change, and whether to start. The forecast is saved;
--check RUN compares it with the first steps of a run."""
SAMPLES, STEPS, BUDGET, BATCH = 4, 20, 200, 128
COLOURS = {"go": "green", "no-go": "red", "uncertain": "yellow"}


def forecast_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.cli.settings_command import ENDPOINT_FIRST, settings_command

    name = environment.display_name()
    positive = click.IntRange(min=1)
    options: list[click.Parameter] = [
        click.Option(["--budget"], type=positive, default=BUDGET, help="Make this many rollouts."),
        click.Option(
            ["--samples"], type=click.IntRange(min=2), default=SAMPLES,
            help="Make this many rollouts per item.",
        ),
        click.Option(["--steps"], type=positive, default=STEPS, help="Predict this many training steps."),
        click.Option(
            ["--from", "source"], type=click.Path(path_type=Path, exists=True, dir_okay=False),
            help="Read these groups, written by `hermes-rl process`, instead of making rollouts.",
        ),
        click.Option(["--check"], metavar="RUN", help="Compare the saved forecast with this run, or `last`."),
    ]  # fmt: skip

    def run(
        settings: "Settings",
        *,
        budget: int,
        samples: int,
        steps: int,
        source: Path | None,
        check: str | None,
        as_json: bool,
    ) -> int:
        saved = rl_home() / "forecasts" / f"{name}.json"
        if check is not None:
            return _check(saved, resolve_run_id(check), as_json=as_json)
        plan = run_plan(settings, steps)
        if source is None:
            source = saved.with_suffix(".jsonl")
            private_folder(source.parent)
            source.unlink(missing_ok=True)
            seconds = run_async(_sample(environment, settings, source, max(budget // samples, 1), samples))
        else:
            seconds = 0.0
        found = _forecast(source, plan, settings, seconds)
        _save(saved, name, settings, found)
        _show(name, found, saved)
        if as_json:
            echo(fast_json.dumps(_as_dict(found)).decode())
        return 1 if found.verdict == "no-go" else 0

    return settings_command(
        "forecast",
        environment,
        run,
        options,
        sections=ENDPOINT_FIRST,
        json_help="Print the forecast as one JSON object.",
        help=HELP,
    )


forecast = EnvironmentCommand(
    "forecast",
    forecast_command,
    help=f"{HELP}\n\nENVIRONMENT is a name of `hermes-rl env list`, FILE.py, FILE.py:CLASS or MODULE:CLASS. The exit "
    "code is 1 for a no-go.",
    short_help="Predict a run's signal, tokens, time and cost from a small sample.",
    options_metavar="ENVIRONMENT [OPTIONS]",
)


def run_plan(settings: "Settings", steps: int) -> "RunPlan":
    from hermes_rl.evaluation.forecast import RunPlan

    config, endpoint = settings.env, settings.endpoints[0]
    return RunPlan(
        config.group_size,
        config.batch_size if config.batch_size > 0 else BATCH,
        steps,
        drops_equal=config.ensure_scores_are_not_same and config.group_size > 1,
        prompt_price=endpoint.prompt_price or 0.0,
        completion_price=endpoint.completion_price or 0.0,
    )


async def _sample(
    environment: "type[HermesAgentBaseEnv]", settings: "Settings", path: Path, items: int, samples: int
) -> float:
    """Write groups of `samples` rollouts; return the seconds that the rollouts took."""
    from hermes_rl.rollout.generate import generate_groups

    changes = {"group_size": samples, "total_steps": items, "data_path_to_save_groups": str(path)}
    env = environment(settings.env.model_copy(update=changes), settings.endpoints)
    async with env.opened():
        began = monotonic()
        await generate_groups(env, path)
        return monotonic() - began


def _forecast(path: Path, plan: "RunPlan", settings: "Settings", seconds: float) -> "Forecast":
    from hermes_rl.evaluation.forecast import forecast
    from hermes_rl.store.records import read_groups

    groups = list(read_groups(path))
    if not any(rollout.scored for group in groups for rollout in group.rollouts):
        raise ConfigError(f"no rollout in {path} has a score; `hermes-rl view {path}` shows why")
    return forecast(groups, plan, seconds=seconds, pass_score=settings.env.pass_score)


def _as_dict(found: "Forecast") -> dict[str, Any]:
    return {**asdict(found), "zero_signal": found.zero_signal}


def _save(path: Path, name: str, settings: "Settings", found: "Forecast") -> None:
    from hermes_rl.store.records import write_document

    private_folder(path.parent)
    write_document(
        path,
        {
            "environment": name,
            "model": settings.endpoints[0].model_name,
            **fast_json.loads(fast_json.dumps(_as_dict(found))),
        },
    )


def _show(name: str, found: "Forecast", saved: Path) -> None:
    from rich.table import Table

    from hermes_rl.console.escaping_console import styled
    from hermes_rl.evaluation.forecast import SIGNAL_GROUPS

    plan = found.plan
    table = Table(
        title=f"forecast · {name} · {found.rollouts} rollouts of {found.items} items", title_justify="left",
        show_header=False, min_width=40,
    )  # fmt: skip
    if found.pass_rate is not None:
        table.add_row("pass rate", _share(found.pass_rate))
    table.add_row("items never / always solved", f"{found.never_solved:.0%} / {found.always_solved:.0%}")
    for size, share in found.signal.items():
        mark = " (your setting)" if size == plan.group_size else ""
        table.add_row(f"groups of {size} with signal{mark}", _share(share))
    table.add_row("tokens per rollout", _number(found.rollout_tokens))
    table.add_row("seconds per rollout", _number(found.rollout_seconds))
    table.add_row(f"tokens per step of {plan.batch_size} rollouts", _number(found.step_tokens))
    if found.step_seconds.estimate:
        table.add_row("sampling seconds per step", _number(found.step_seconds))
    table.add_row(f"steps to {SIGNAL_GROUPS} groups with signal", _number(found.steps_to_signal))
    if found.cost.estimate:
        table.add_row(f"cost of {plan.steps} steps", _number(found.cost))
    screen = console()
    screen.print(table)
    screen.print(
        styled((found.verdict, f"bold {COLOURS[found.verdict]}"), f": {'; '.join(found.reasons)}"), soft_wrap=True
    )
    _lines(f"  → {line}" for line in found.advice)
    brackets = "In brackets: 80% intervals for the first steps of a run."
    _lines((f"{brackets} Optimizer time is not included.", f"saved: {saved}"))
    _lines((f"after the first steps: hermes-rl forecast {name} --check last",))


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        console().print(line, soft_wrap=True, markup=False)


def _check(saved: Path, run_id: str, *, as_json: bool) -> int:
    from hermes_rl.evaluation.forecast_check import check, first_steps
    from hermes_rl.orchestration.run_paths import RunPaths
    from hermes_rl.orchestration.status.inspect import find_run_file
    from hermes_rl.orchestration.status.metrics import read_run_metrics

    if not saved.is_file():
        raise ConfigError(f"no forecast at {saved}; make one first: hermes-rl forecast {saved.stem}")
    document = fast_json.loads(saved.read_bytes())
    paths = RunPaths(run_id)
    metrics = read_run_metrics(paths, find_run_file(paths))
    rows = [row for environment in metrics.environments.values() for row in environment]
    compared = check(document, first_steps(metrics.steps, rows, document["plan"]["steps"]))
    if as_json:
        echo(fast_json.dumps([one.as_dict() for one in compared]).decode())
    else:
        _show_check(saved.stem, run_id, compared, document)
    return 0 if all(one.inside for one in compared) else 1


def _show_check(name: str, run_id: str, compared: "list[Checked]", document: dict[str, Any]) -> None:
    from rich.table import Table

    from hermes_rl.evaluation.forecast_check import CHECKED

    steps = document["plan"]["steps"]
    table = Table(
        "figure", "forecast", "run", title=f"forecast · {name} · first {steps} steps of {run_id}", title_justify="left"
    )
    for one in compared:
        style = None if one.inside else "yellow"
        table.add_row(CHECKED[one.name], _number(one.predicted), f"{one.observed:.3g}", style=style)
    console().print(table)


def _share(share: "Range") -> str:
    return f"{share.estimate:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _number(value: "Range") -> str:
    return f"{value.estimate:.3g} [{value.low:.3g}, {value.high:.3g}]"
