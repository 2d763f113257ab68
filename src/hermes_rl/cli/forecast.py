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
from hermes_rl.core.private_files import private_folder

if TYPE_CHECKING:
    from hermes_rl.environment.base import HermesAgentBaseEnv
    from hermes_rl.environment.resolve_config import Settings
    from hermes_rl.evaluation.forecast import Forecast, RunPlan
    from hermes_rl.evaluation.prediction import Range
    from hermes_rl.orchestration.status.forecast import CheckedForecast

HELP = """Predict a training run's learning signal, tokens, time and cost from a small sample, with 80% intervals.

Rolls out a few training items with the model you want to train, and answers: how many groups will have different
scores at each group size, what a rollout and a step take, what to change, and whether to start. The forecast is saved;
--check RUN compares it with the first steps of a run."""
SAMPLES, STEPS, BUDGET, BATCH = 4, 20, 200, 128
COLOURS = {"go": "green", "no-go": "red", "uncertain": "yellow"}


def forecast_command(environment: "type[HermesAgentBaseEnv]") -> click.Command:
    from hermes_rl.cli.settings_command import ENDPOINT_FIRST, settings_command
    from hermes_rl.orchestration.status.forecast import forecast_file

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
            ["--optimizer-seconds"], type=click.FloatRange(min=0), default=0.0,
            help="Add these seconds to the time of each step, for the optimizer.",
        ),
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
        optimizer_seconds: float,
        source: Path | None,
        check: str | None,
        as_json: bool,
    ) -> int:
        saved = forecast_file(name)
        if check is not None:
            return _check(saved, resolve_run_id(check), as_json=as_json)
        plan = run_plan(settings, steps, optimizer_seconds)
        memory = None
        if source is None:
            source = saved.with_suffix(".jsonl")
            private_folder(source.parent)
            source.unlink(missing_ok=True)
            seconds = run_async(_sample(environment, settings, source, max(budget // samples, 1), samples))
            memory = _peak_memory_mb()
        else:
            seconds = 0.0
        found = _forecast(source, plan, settings, seconds, memory)
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


def run_plan(settings: "Settings", steps: int, optimizer_seconds: float = 0.0) -> "RunPlan":
    from hermes_rl.evaluation.forecast import RunPlan

    config, endpoint = settings.env, settings.endpoints[0]
    return RunPlan(
        config.group_size,
        config.batch_size if config.batch_size > 0 else BATCH,
        steps,
        drops_equal=config.ensure_scores_are_not_same and config.group_size > 1,
        prompt_price=endpoint.prompt_price or 0.0,
        completion_price=endpoint.completion_price or 0.0,
        optimizer_seconds=optimizer_seconds,
    )


async def _sample(
    environment: "type[HermesAgentBaseEnv]", settings: "Settings", path: Path, items: int, samples: int
) -> float:
    """Write groups of `samples` rollouts; return the seconds that the rollouts took."""
    from hermes_rl.rollout.generate import generate_groups

    config = settings.env
    # As many rollouts in flight as in the run, whose groups are of another size.
    changes: dict[str, Any] = {
        name: max(round(getattr(config, name) * config.group_size / samples), 1)
        for name in ("max_num_workers", "max_num_workers_per_node")
        if getattr(config, name) > 0
    }
    changes |= {"group_size": samples, "total_steps": items, "data_path_to_save_groups": str(path)}
    env = environment(config.model_copy(update=changes), settings.endpoints)
    async with env.opened():
        began = monotonic()
        await generate_groups(env, path)
        return monotonic() - began


def _peak_memory_mb() -> float:
    import resource
    import sys

    # Linux counts in kilobytes, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _forecast(path: Path, plan: "RunPlan", settings: "Settings", seconds: float, memory_mb: float | None) -> "Forecast":
    from hermes_rl.evaluation.forecast import forecast
    from hermes_rl.store.records import read_groups

    groups = list(read_groups(path))
    if not any(rollout.scored for group in groups for rollout in group.rollouts):
        raise ConfigError(f"no rollout in {path} has a score; `hermes-rl view {path}` shows why")
    return forecast(groups, plan, seconds=seconds, pass_score=settings.env.pass_score, memory_mb=memory_mb)


def _as_dict(found: "Forecast") -> dict[str, Any]:
    document: dict[str, Any] = _with_lists({**asdict(found), "zero_signal": found.zero_signal})
    return document


def _with_lists(value: Any) -> Any:
    """Named tuples as lists: JSON has no other form for them."""
    if isinstance(value, dict):
        return {key: _with_lists(each) for key, each in value.items()}
    return [_with_lists(each) for each in value] if isinstance(value, list | tuple) else value


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
    table.add_row("pass rate", _share(found.pass_rate))
    if found.reward_spread is not None:
        table.add_row("spread of an item's rewards (std)", _number(found.reward_spread))
    table.add_row("items never / always solved", f"{found.never_solved:.0%} / {found.always_solved:.0%}")
    for size, share in found.signal.items():
        mark = " (your setting)" if size == plan.group_size else ""
        table.add_row(f"groups of {size} with signal{mark}", _share(share))
    table.add_row("tokens per rollout", f"{_number(found.rollout_tokens)}, longest {found.longest_tokens:,}")
    table.add_row("seconds per rollout", _number(found.rollout_seconds))
    table.add_row(f"tokens per step of {plan.batch_size} rollouts", _number(found.step_tokens))
    if found.step_seconds.estimate:
        what = "seconds" if plan.optimizer_seconds else "sampling seconds"
        table.add_row(f"{what} per step", _number(found.step_seconds))
    table.add_row(f"steps to {SIGNAL_GROUPS} groups with signal", _number(found.steps_to_signal))
    if found.cost.estimate:
        table.add_row(f"cost of {plan.steps} steps", _number(found.cost))
    if found.memory_mb is not None:
        table.add_row("memory of the environment", f"{found.memory_mb:.0f} MB, and the sandboxes")
    screen = console()
    screen.print(table)
    screen.print(
        styled((found.verdict, f"bold {COLOURS[found.verdict]}"), f": {'; '.join(found.reasons)}"), soft_wrap=True
    )
    _lines(f"  → {line}" for line in found.advice)
    brackets = f"In brackets: where the figure of the first {plan.steps} steps lies in four of five runs."
    optimizer = "" if plan.optimizer_seconds else " Optimizer time is not included."
    _lines((brackets + optimizer, f"saved, with every item: {saved}"))
    _lines((f"after the first steps: hermes-rl forecast {name} --check last",))


def _lines(lines: Iterable[str]) -> None:
    for line in lines:
        console().print(line, soft_wrap=True, markup=False)


def _check(saved: Path, run_id: str, *, as_json: bool) -> int:
    from hermes_rl.orchestration.run_paths import RunPaths
    from hermes_rl.orchestration.status.forecast import check_forecast

    if not saved.is_file():
        raise ConfigError(f"no forecast at {saved}; make one first: hermes-rl forecast {saved.stem}")
    found = check_forecast(fast_json.loads(saved.read_bytes()), RunPaths(run_id))
    if as_json:
        echo(fast_json.dumps([one.as_dict() for one in found.figures]).decode())
    else:
        _show_check(saved.stem, run_id, found)
    return 0 if all(one.inside for one in found.figures) else 1


def _show_check(name: str, run_id: str, found: "CheckedForecast") -> None:
    from rich.table import Table

    from hermes_rl.evaluation.forecast_check import CHECKED
    from hermes_rl.evaluation.prediction import figure

    steps = f"first {found.steps} steps of {run_id}"
    table = Table("figure", "forecast", "run", "off by", title=f"forecast · {name} · {steps}", title_justify="left")
    for one in found.figures:
        style = None if one.inside else "yellow"
        table.add_row(CHECKED[one.name], _number(one.predicted), figure(one.observed), f"{one.error:+.0%}", style=style)
    console().print(table)
    if found.steps < found.planned:
        _lines((f"The forecast is about {found.planned} steps: check again after them.",))


def _share(share: "Range") -> str:
    return f"{share.estimate:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _number(value: "Range") -> str:
    from hermes_rl.evaluation.prediction import figure

    return f"{figure(value.estimate)} [{figure(value.low)}, {figure(value.high)}]"
