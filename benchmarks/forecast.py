"""How often the 80% intervals of `hermes-rl forecast` hold what 20 later groups of the same setting have.

Each setting is an environment, a policy behind a real HTTP endpoint, and a group size. Of each, a small sample is
forecast, and then 20 groups are made with another seed. Two kinds of policies:

- scripted: solves an item with a probability of the item's own, drawn from a distribution that the setting states,
  and plays the environment's oracle when it does. Its success rates are by construction.
- smollm2: SmolLM2-135M-Instruct on llama.cpp, sampled.

Every rollout runs in the environment's own sandbox and is scored by its own reward. Each of the two parts of a setting
is kept in --state when it is complete, and is not made again.

    python benchmarks/forecast.py --state FOLDER                # make what is missing, and report
    python benchmarks/forecast.py --state FOLDER --report       # report on what is there
    python benchmarks/forecast.py --state FOLDER --only smollm2 # settings with this text in their name
    python benchmarks/forecast.py --simulate 100                # the formulae alone, on simulated items, so many times
"""

import argparse
import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean, median
from time import monotonic
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from environments.append_log_env import AppendLogEnv  # noqa: E402
from environments.gsm8k_env import Gsm8kEnv  # noqa: E402
from environments.swe_env import SweEnv  # noqa: E402
from environments.terminal_test_env import TerminalTestEnv  # noqa: E402
from environments.terminal_words_env import TerminalWordsEnv  # noqa: E402
from environments.web_research_env import WebResearchEnv  # noqa: E402
from examples.plain_text_env import PlainTextEnv  # noqa: E402
from hermes_rl import APIServerConfig, HermesAgentBaseEnv, Step  # noqa: E402
from hermes_rl.core.trajectory import Group  # noqa: E402
from hermes_rl.environment.scripted_policy import ToolStep  # noqa: E402
from hermes_rl.evaluation.forecast import RunPlan, forecast, trained_tokens  # noqa: E402
from hermes_rl.evaluation.group_signal import item_models, pass_rate, signal_share  # noqa: E402
from hermes_rl.evaluation.prediction import Range  # noqa: E402
from hermes_rl.rollout.generate import generate_groups  # noqa: E402
from hermes_rl.store.records import read_groups  # noqa: E402
from tests.support.scripted_model import Calls, Delayed, Reply, ScriptedModel, Text  # noqa: E402

STEPS, SAMPLES = 20, 4
COVERED, IN_BETWEEN, MIN_RATE, MAX_RATE, REAL = 0.75, 6, 0.05, 0.95, 3
# Rollouts in flight, in both parts; the small model's server answers 8 at once.
IN_FLIGHT, FEW_IN_FLIGHT = 16, 8
Beta = tuple[float, float]
SMALL_MODEL = "smollm2"


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    environment: type[HermesAgentBaseEnv]
    rates: Beta | float | None
    """Success rates of the items: a Beta distribution, or one rate for all; None: SmolLM2."""
    size: int = 8
    budget: int = 80
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def policy(self) -> str:
        match self.rates:
            case None:
                return SMALL_MODEL
            case float():
                return f"scripted, {self.rates:g} for all items"
        return f"scripted, Beta({self.rates[0]:g}, {self.rates[1]:g})"


FAMILIES = ["echo", "mkdir", "touch", "rm", "cp", "mv"]
SETTINGS: Sequence[Setting] = (
    Setting("smollm2-plain", PlainTextEnv, None, 4, 40, {"agent_temperature": 1.0, "max_token_length": 24}),
    Setting("smollm2-test-t1", TerminalTestEnv, None, 4, 40, {"agent_temperature": 1.0}),
    Setting("smollm2-words-t1", TerminalWordsEnv, None, 4, 40, {"agent_temperature": 1.0}),
    Setting("smollm2-words-t0.6", TerminalWordsEnv, None, 4, 40, {"agent_temperature": 0.6}),
    Setting("smollm2-log-t1", AppendLogEnv, None, 4, 40, {"agent_temperature": 1.0}),
    Setting("smollm2-test-t1.3", TerminalTestEnv, None, 4, 40, {"agent_temperature": 1.3}),
    Setting("scripted-words-even", TerminalWordsEnv, (1.0, 1.0)),
    Setting("scripted-words-split", TerminalWordsEnv, (0.3, 0.3), 4),
    Setting("scripted-words-hard", TerminalWordsEnv, (0.3, 3.0), 16),
    Setting("scripted-families", TerminalWordsEnv, (0.5, 1.0), 8, config={"families": FAMILIES}),
    Setting("scripted-words-alike", TerminalWordsEnv, 0.2, 4),
    Setting("scripted-test-easy", TerminalTestEnv, (6.0, 1.0), 8),
    Setting("scripted-test-never", TerminalTestEnv, 0.0, 8),
    Setting("scripted-log-hard", AppendLogEnv, (0.5, 4.0), 8),
    Setting("scripted-log-easy", AppendLogEnv, (4.0, 0.5), 8),
    Setting("scripted-gsm8k", Gsm8kEnv, (1.0, 2.0), 8),
    Setting("scripted-gsm8k-split", Gsm8kEnv, (0.2, 0.2), 4),
    Setting("scripted-swe", SweEnv, (0.5, 1.5), 4, 60),
    Setting("scripted-web", WebResearchEnv, (1.0, 1.0), 4),
)


class StochasticPolicy:
    """Decides in the first turn of a conversation whether it will solve the item, and then plays the oracle."""

    def __init__(self, rates: Beta | float, part: str) -> None:
        self._rates, self._rng = rates, Random(part)
        self._oracles: dict[str, Sequence[Step] | None] = {}

    def learn(self, env: HermesAgentBaseEnv) -> None:
        self._oracles = {str(env.format_prompt(item)): env.oracle(item) for item in env.train_items() or ()}

    def rate(self, prompt: str) -> float:
        if isinstance(self._rates, float):
            return self._rates
        return Random(hashlib.sha256(prompt.encode()).hexdigest()).betavariate(*self._rates)

    def __call__(self, request: dict[str, Any]) -> Reply:
        # A tenth of a second for an answer on average, with a long tail.
        return Delayed(0.1 * self._rng.lognormvariate(-0.125, 0.5), self._reply(request["messages"]))

    def _reply(self, messages: Sequence[Mapping[str, Any]]) -> Reply:
        asked = max(at for at, message in enumerate(messages) if message["content"] in self._oracles)
        prompt = messages[asked]["content"]
        turn = sum(message["role"] == "assistant" for message in messages[asked:])
        if turn == 0 and self._rng.random() >= self.rate(prompt):
            return Text(" ".join(["I could not find out how."] * self._rng.randrange(1, 6)))
        steps = self._oracles[prompt]
        step = steps[turn] if steps is not None and turn < len(steps) else "Done."
        if isinstance(step, str):
            return Text(step)
        # The oracles here have no steps of several calls.
        name, arguments = cast("ToolStep", step)
        return Calls([(name, json.dumps(arguments))])


@asynccontextmanager
async def opened(setting: Setting, part: str, config: Mapping[str, Any]) -> AsyncIterator[HermesAgentBaseEnv]:
    """The environment with its endpoint."""
    default, _ = setting.environment.config_init()
    changed = default.model_copy(update={**setting.config, **config})
    async with AsyncExitStack() as stack:
        if setting.rates is None:
            from hermes_rl.cli.local_server import RunServerSettings, run_server

            server = stack.enter_context(run_server(RunServerSettings(SMALL_MODEL)))
            endpoint = APIServerConfig(base_url=server.base_url, model_name=server.name, timeout=7200)
            env = setting.environment(changed, [endpoint])
            await stack.enter_async_context(env.opened())
        else:
            policy = StochasticPolicy(setting.rates, f"{setting.name} {part}")
            model = await stack.enter_async_context(ScriptedModel(policy, keep_bodies=0))
            env = setting.environment(changed, [APIServerConfig(base_url=model.base_url, model_name=model.model_name)])
            await stack.enter_async_context(env.opened())
            policy.learn(env)
        yield env


async def sample(setting: Setting, part: str, path: Path, seed: int) -> None:
    """Write the groups of a part, and how long they took; whole or not at all."""
    size = SAMPLES if part == "forecast" else setting.size
    changes = {
        "group_size": size,
        "total_steps": setting.budget // SAMPLES if part == "forecast" else STEPS,
        "seed": seed if part == "forecast" else seed + 1,
        "max_num_workers": max((IN_FLIGHT if setting.rates is not None else FEW_IN_FLIGHT) // size, 1),
        "worker_timeout": 7200,
    }
    made = path.with_suffix(".part")
    made.unlink(missing_ok=True)
    async with opened(setting, f"{part} {seed}", {**changes, "data_path_to_save_groups": str(made)}) as env:
        began = monotonic()
        await generate_groups(env, made)
        seconds = monotonic() - began
    path.with_suffix(".json").write_text(json.dumps({"seconds": seconds}))
    made.rename(path)


def parts(setting: Setting, state: Path) -> dict[str, Path]:
    return {part: state / f"{setting.name}.{part}.jsonl" for part in ("forecast", "observed")}


def observed_figures(groups: Sequence[Group], seconds: float) -> dict[str, float]:
    scored = [[rollout.score for rollout in group.rollouts if rollout.score is not None] for group in groups]
    known = [scores for scores in scored if scores]
    differ = [len(scores) > 0 and max(scores) - min(scores) > 1e-9 for scores in scored]
    # A group without signal is not trained on.
    tokens = [
        sum(map(trained_tokens, group.rollouts)) if signal else 0.0
        for group, signal in zip(groups, differ, strict=True)
    ]
    return {
        "pass_rate": fmean(fmean(score >= 1 - 1e-9 for score in scores) for scores in known),
        "zero_signal": 1 - sum(differ) / len(known),
        "step_tokens": fmean(tokens),
        "step_seconds": seconds / len(groups),
    }


def compared(setting: Setting, state: Path) -> dict[str, Any]:
    """A setting's forecast and what was observed."""
    paths = parts(setting, state)
    groups = {part: list(read_groups(path)) for part, path in paths.items()}
    seconds = {part: json.loads(path.with_suffix(".json").read_text())["seconds"] for part, path in paths.items()}
    # A step of one group, in which every group is kept: 20 steps are the 20 groups.
    plan = RunPlan(setting.size, setting.size, STEPS, drops_equal=False)
    found = forecast(groups["forecast"], plan, seconds=seconds["forecast"])
    observed = observed_figures(groups["observed"], seconds["observed"])
    figures = {}
    for name, value in observed.items():
        predicted: Range = getattr(found, name)
        figures[name] = {
            "predicted": [round(each, 4) for each in predicted],
            "observed": round(value, 4),
            "inside": predicted.holds(value),
            # In points for shares, relative to the estimate for amounts.
            "width": round(
                (predicted.high - predicted.low) / (1 if name in SHARES else max(predicted.estimate, 1e-9)), 3
            ),
        }
    return {
        "setting": setting.name,
        "environment": setting.environment.name,
        "policy": setting.policy,
        "group_size": setting.size,
        "forecast_rollouts": found.rollouts,
        "forecast_seconds": round(seconds["forecast"], 1),
        "observed_seconds": round(seconds["observed"], 1),
        "verdict": found.verdict,
        "figures": figures,
    }


SHARES = ("pass_rate", "zero_signal")

# Simulated populations of items: how the success rate of one is drawn.
POPULATIONS: Mapping[str, Callable[[Random], float]] = {
    "U-shaped, Beta(0.2, 0.3)": lambda rng: rng.betavariate(0.2, 0.3),
    "hard, Beta(0.3, 3)": lambda rng: rng.betavariate(0.3, 3),
    "easy, Beta(3, 0.3)": lambda rng: rng.betavariate(3, 0.3),
    "all 0.1": lambda _rng: 0.1,
    "0 for four of five items, else 0.5": lambda rng: 0.5 * (rng.random() < 0.2),
}


def simulated_coverage(repetitions: int, items: int = 50, later: int = 160, sizes: Sequence[int] = (4, 16)) -> None:
    """Print how often the 80% intervals held what `later` new groups had, from `items` with 4 rollouts each."""
    rng = Random(1)

    def rollouts(draw: Callable[[Random], float], count: int, size: int) -> list[list[float]]:
        return [[float(rng.random() < rate) for _ in range(size)] for rate in (draw(rng) for _ in range(count))]

    for name, draw in POPULATIONS.items():
        held = {(figure, size): 0 for figure in SHARES for size in sizes}
        for _ in range(repetitions):
            sample = rollouts(draw, items, SAMPLES)
            models = item_models(sample, rng)
            for size in sizes:
                seen = rollouts(draw, later, size)
                signal = fmean(len(set(scores)) > 1 for scores in seen)
                held["zero_signal", size] += signal_share(models, size, later, rng).holds(signal)
                rate = pass_rate(models, sample, 1.0, size, later, rng)
                held["pass_rate", size] += rate.holds(fmean(map(fmean, seen)))
        shares = {f"{figure}/{size}": round(count / repetitions, 3) for (figure, size), count in held.items()}
        print(json.dumps({"population": name, "repetitions": repetitions, **shares}), flush=True)


def report(settings: Sequence[Setting], state: Path) -> int:
    rows = [
        compared(setting, state)
        for setting in settings
        if all(path.exists() for path in parts(setting, state).values())
    ]
    for row in rows:
        print(json.dumps(row))
    by_figure: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        for name, one in row["figures"].items():
            by_figure.setdefault(name, []).append(one)
    every = [one for ones in by_figure.values() for one in ones]
    if not every:
        print("nothing in the state folder is complete", file=sys.stderr)
        return 1
    between = sum(MIN_RATE <= row["figures"]["pass_rate"]["observed"] <= MAX_RATE for row in rows)
    real = sum(row["policy"] == SMALL_MODEL for row in rows)
    covered = fmean(one["inside"] for one in every)
    goals: dict[str, dict[str, Any]] = {
        "covered": {"goal": COVERED, "measured": round(covered, 3), "met": covered >= COVERED},
        "settings": {"goal": 12, "measured": len(rows), "met": len(rows) >= 12},
        "settings with a pass rate in between": {
            "goal": IN_BETWEEN, "measured": between, "met": between >= IN_BETWEEN,
        },
        "settings with a language model": {"goal": REAL, "measured": real, "met": real >= REAL},
    }  # fmt: skip
    figures = {
        name: {
            "inside": sum(one["inside"] for one in ones),
            "of": len(ones),
            "median_width": median(one["width"] for one in ones),
        }
        for name, ones in by_figure.items()
    }
    print(json.dumps({"benchmark": "forecast", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state", type=Path, default=Path("forecasts"), help="keep the groups in this folder")
    parser.add_argument("--simulate", type=int, metavar="N", help="only simulate the items, N times")
    parser.add_argument("--seed", type=int, default=1, help="seed of the forecasts; the groups after have the next")
    parser.add_argument("--report", action="store_true", help="make no rollouts")
    parser.add_argument("--only", default="", help="only settings with this text in their name")
    chosen = parser.parse_args()
    if chosen.simulate:
        simulated_coverage(chosen.simulate)
        return 0
    chosen.state.mkdir(parents=True, exist_ok=True)
    settings = [setting for setting in SETTINGS if chosen.only in setting.name]
    for setting in () if chosen.report else settings:
        for part, path in parts(setting, chosen.state).items():
            if not path.exists():
                began = monotonic()
                asyncio.run(sample(setting, part, path, chosen.seed))
                print(f"{setting.name} {part}: {monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return report(settings, chosen.state)


if __name__ == "__main__":
    sys.exit(main())
