"""The model card: a README.md with the description, provenance and usage of exported weights."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml

from hermes_rl.core import yaml_text
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.model_folder import ModelFolder
from hermes_rl.training.weights.run_metadata import RunMetadata
from hermes_rl.training.weights.source import WeightSource
from hermes_rl.version import __version__

# Run settings that affect the weights.
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


def model_card(
    form: str, source: WeightSource, adapter: Adapter, base: ModelFolder | None, base_model: str, usage: str
) -> str:
    """`form` is peft, merged or gguf; `usage` is how to run the weights, in Markdown."""
    licence = _licence(base)
    front: dict[str, Any] = {
        # A local path means nothing to others.
        "base_model": base_model if "/" in base_model and not Path(base_model).is_absolute() else None,
        "library_name": {"peft": "peft", "merged": "transformers", "gguf": "gguf"}[form],
        "license": licence,
        "tags": ["hermes-rl", "reinforcement-learning", "lora"],
    }
    parts = [
        f"---\n{yaml.safe_dump({key: value for key, value in front.items() if value}, sort_keys=False)}---",
        f"# {source.name}",
        f"{_description(form)} trained with hermes-rl.",
        _table(_provenance(source, adapter, base_model)),
    ]
    if source.run is not None:
        parts += _run_sections(source.run)
    terms = f"The base model's licence, {licence}, applies" if licence else "The base model's licence applies"
    parts += ["## Use", usage, "## Licence", f"{terms} to these weights too; read it before you pass them on."]
    return "\n\n".join(parts) + "\n"


def _description(form: str) -> str:
    return {
        "peft": "A LoRA adapter in PEFT format,",
        "merged": "A language model with its LoRA adapter merged in,",
        "gguf": "A language model for llama.cpp with its LoRA adapter merged in,",
    }[form]


def _provenance(source: WeightSource, adapter: Adapter, base_model: str) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "base model": f"`{base_model}`",
        "adapter": f"LoRA, rank {adapter.rank}, alpha {adapter.alpha:g}, {len(adapter.modules)} layers",
    }
    if source.run is not None and source.saved is not None:
        saved, run = source.saved, source.run
        rows |= {
            "run": run.name,
            "started from": run.started_from,
            "step": f"{saved.step}, policy version {saved.version}{', the last of the run' if saved.final else ''}",
            "saved": saved.at,
            "environments": ", ".join(run.environments),
            "trained by": f"hermes-rl {run.hermes_rl}" if run.hermes_rl else "",
            "checkpoint": f"`{saved.sampler}`",
        }
    rows["exported"] = f"{datetime.now(UTC):%Y-%m-%d}, hermes-rl {__version__}"
    return {name: value for name, value in rows.items() if value}


def _run_sections(run: RunMetadata) -> list[str]:
    parts = []
    if run.rewards:
        parts += ["## Reward", _curve(run.rewards)]
    settings = {name: run.settings[name] for name in SETTINGS if run.settings.get(name) is not None}
    if settings:
        parts += ["## Settings", _table({f"`{name}`": value for name, value in settings.items()})]
    return parts


def _curve(rewards: Mapping[int, float]) -> str:
    """A table of at most CURVE_POINTS mean rewards, each over a range of steps."""
    steps = list(rewards)
    length = -(-len(steps) // CURVE_POINTS)
    ranges = [steps[start : start + length] for start in range(0, len(steps), length)]
    rows = [
        f"| {part[0]}{f' to {part[-1]}' if len(part) > 1 else ''} | {fmean(rewards[step] for step in part):.3f} |"
        for part in ranges
    ]
    return "\n".join(["Mean reward of the rollouts trained on.", "", "| step | reward |", "|---|---|", *rows])


def _table(rows: Mapping[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _licence(base: ModelFolder | None) -> str | None:
    """From the front matter of the base model's card."""
    if base is None:
        return None
    try:
        text = (base.path / "README.md").read_text(errors="replace")
        front = yaml_text.loads(text.split("---")[1]) if text.startswith("---") else None
    except (OSError, IndexError, yaml_text.BadYamlError):
        return None
    licence = front.get("license") if isinstance(front, Mapping) else None
    return str(licence) if licence else None
