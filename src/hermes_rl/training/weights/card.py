"""The card that goes with weights: a README.md that says what they are, where they came from and how to use them."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.run_facts import RunFacts
from hermes_rl.training.weights.source import Source
from hermes_rl.version import __version__

# Of a run's settings, those that made the weights what they are.
SETTINGS = (
    "loss",
    "advantage",
    "learning_rate",
    "lr_schedule",
    "batch_size",
    "total_steps",
    "max_staleness",
    "kl_coef",
    "seed",
)
CURVE_POINTS = 8


def card(form: str, source: Source, adapter: Adapter, base: ModelFolder | None, base_model: str, usage: str) -> str:
    """`form` is peft, merged or gguf; `usage` is how to run the weights, in Markdown."""
    licence = _licence(base)
    front: dict[str, Any] = {
        # A path on the machine that trained says nothing to others.
        "base_model": base_model if "/" in base_model and not Path(base_model).is_absolute() else None,
        "library_name": {"peft": "peft", "merged": "transformers", "gguf": "gguf"}[form],
        "license": licence,
        "tags": ["hermes-rl", "reinforcement-learning", "lora"],
    }
    parts = [
        f"---\n{yaml.safe_dump({key: value for key, value in front.items() if value}, sort_keys=False)}---",
        f"# {source.name}",
        f"{_what(form)} trained with hermes-rl.",
        _table(_origin(source, adapter, base_model)),
    ]
    if source.run is not None:
        parts += _run_parts(source.run)
    terms = f"The base model's licence, {licence}, applies" if licence else "The base model's licence applies"
    parts += ["## Use", usage, "## Licence", f"{terms} to these weights too; read it before you pass them on."]
    return "\n\n".join(parts) + "\n"


def _what(form: str) -> str:
    return {
        "peft": "A LoRA adapter in PEFT's form,",
        "merged": "A language model with its LoRA adapter merged in,",
        "gguf": "A language model for llama.cpp, its LoRA adapter merged in,",
    }[form]


def _origin(source: Source, adapter: Adapter, base_model: str) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "base model": f"`{base_model}`",
        "adapter": f"LoRA, rank {adapter.rank}, alpha {adapter.alpha:g}, {len(adapter.modules)} layers",
    }
    if source.run is not None and source.saved is not None:
        saved, run = source.saved, source.run
        rows |= {
            "run": run.name,
            "step": f"{saved.step}, policy version {saved.version}{', the last of the run' if saved.final else ''}",
            "saved": saved.at,
            "environments": ", ".join(run.environments),
            "trained by": f"hermes-rl {run.hermes_rl}" if run.hermes_rl else "",
            "checkpoint": f"`{saved.sampler}`",
        }
    rows["exported"] = f"{datetime.now(UTC):%Y-%m-%d}, hermes-rl {__version__}"
    return {name: value for name, value in rows.items() if value}


def _run_parts(run: RunFacts) -> list[str]:
    parts = []
    if run.rewards:
        parts += ["## Reward", _curve(run.rewards)]
    settings = {name: run.settings[name] for name in SETTINGS if run.settings.get(name) is not None}
    if settings:
        parts += ["## Settings", _table({f"`{name}`": value for name, value in settings.items()})]
    return parts


def _curve(rewards: Mapping[int, float]) -> str:
    """Means over so many stretches of the run as fit a small table."""
    steps = list(rewards)
    length = -(-len(steps) // CURVE_POINTS)
    stretches = [steps[start : start + length] for start in range(0, len(steps), length)]
    rows = [
        f"| {stretch[0]}{f' to {stretch[-1]}' if len(stretch) > 1 else ''} | "
        f"{fmean(rewards[step] for step in stretch):.3f} |"
        for stretch in stretches
    ]
    return "\n".join(["Mean reward of the rollouts trained on.", "", "| step | reward |", "|---|---|", *rows])


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _licence(base: ModelFolder | None) -> str | None:
    """As the front matter of the base model's own card names it."""
    if base is None:
        return None
    try:
        text = (base.path / "README.md").read_text(errors="replace")
        told = yaml.safe_load(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, IndexError, yaml.YAMLError):
        return None
    licence = told.get("license") if isinstance(told, Mapping) else None
    return str(licence) if licence else None
