"""Checks, before an engine is started, that the model can be shared as asked and fits the memory of its devices.

Always true: what is refused names the setting that would work; an architecture or a machine whose memory is not known
is started without an estimate.
"""

import math
import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.memory import free_memory
from hermes_rl.training.engines.skyrl.process import EngineSettings
from hermes_rl.training.sizing.memory import EngineLoad, MemoryEstimate, engine_memory, longest_that_fits
from hermes_rl.training.sizing.model_shape import ModelShape

# The base, one model in training, its newest version and the one before.
MIN_ADAPTERS, MAX_ADAPTERS = 4, 8
# Without --max-length the estimate is for this length, and nothing is refused for its sequences.
ASSUMED_LENGTH = 4096
LONGEST = 1 << 20
GB = 1e9
# What XLA takes of a GPU's memory, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.
XLA_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Fit:
    """An estimate for one device of `memory` bytes, which is None where it is not known, and sequences of `length`."""

    settings: EngineSettings
    estimate: MemoryEstimate
    length: int
    memory: float | None
    longest: int | None

    def __str__(self) -> str:
        parts = {
            "weights": self.estimate.weights,
            "adapters": self.estimate.adapters,
            "gradients and optimizer": self.estimate.gradients + self.estimate.optimizer,
            f"a pass of {self.settings.micro_batch} × {self.length:,} tokens": self.estimate.training,
            "sampling": self.estimate.sampling,
        }
        listed = ", ".join(f"{name} {_gb(part)}" for name, part in parts.items())
        where = "per device" if self.settings.layout.devices > 1 else "in all"
        of = "" if self.memory is None else f" of {_gb(self.memory)}"
        room = "" if self.longest is None else f"; sequences of up to {self.longest:,} tokens fit"
        if self.longest is not None and not self.settings.max_length:
            room += ", --max-length refuses longer ones"
        return f"estimated memory: {_gb(self.estimate.total)}{of} {where}: {listed}{room}"


def fit_engine(settings: EngineSettings, shape: ModelShape, memory: float | None, adapters: int | None) -> Fit:
    """Check the layout, and choose the number of adapter slots if `adapters` is None. `memory` is that of one device.

    Raises ConfigError if it cannot be shared so, or cannot fit.
    """
    if problem := next(layout_problems(settings, shape), None):
        raise ConfigError(problem)
    settings = replace(settings, adapters=adapters or MAX_ADAPTERS)
    if memory is not None and adapters is None:
        # Every slot takes gradients and moments too, so only as many as there is room for.
        while settings.adapters > MIN_ADAPTERS and not _fits(settings, shape, memory):
            settings = replace(settings, adapters=settings.adapters - 1)
    load = _load(settings)
    if memory is None:
        return Fit(settings, engine_memory(shape, settings.layout, load), load.length, None, None)
    if not _fits(settings, shape, memory):
        estimate = engine_memory(shape, settings.layout, load)
        needed = estimate.total if settings.max_length else estimate.stored
        raise ConfigError(
            f"the engine would need {_gb(needed)}, and a device has {_gb(memory)}; {_remedy(settings, shape, memory)}"
        )
    longest = longest_that_fits(shape, settings.layout, load, memory, LONGEST)
    load = replace(load, length=settings.max_length or min(load.length, longest))
    return Fit(settings, engine_memory(shape, settings.layout, load), load.length, memory, longest)


def layout_problems(settings: EngineSettings, shape: ModelShape) -> Iterator[str]:
    """Why SkyRL cannot share the model so; it would stop with an assertion after loading it."""
    layout = settings.layout
    tp, fsdp, ep = layout.tensor_parallel, layout.fsdp, layout.expert_parallel
    heads = {} if layout.replicate_attention else {"key-value heads": shape.kv_heads, "attention heads": shape.heads}
    shared = heads | {"vocabulary": shape.vocabulary, "intermediate size": shape.intermediate}
    for name, number in shared.items():
        if number % tp:
            instead = "" if name not in heads else ", or add --replicate-attention"
            yield (
                f"--tensor-parallel {tp}: {number:,} ({name}) cannot be split evenly; use "
                f"{_divisor(shared.values(), tp)}{instead}"
            )
    if shape.hidden % fsdp:
        divisor = _divisor([shape.hidden], fsdp)
        yield f"--fsdp {fsdp}: {shape.hidden:,} (hidden size) cannot be split evenly; use {divisor}"
    if ep > 1 and not shape.experts:
        yield f"--expert-parallel {ep} needs a model with experts, and this one has none; omit it"
    elif shape.experts % ep:
        yield (
            f"--expert-parallel {ep}: {shape.experts} experts cannot be split evenly; use "
            f"{_divisor([shape.experts], ep)}"
        )
    for option, rows in (("--micro-batch", settings.micro_batch), ("--samples", settings.samples)):
        if rows % fsdp or (fsdp > 1 and not rows):
            yield f"{option} {rows} must be a multiple of --fsdp {fsdp}; use {max(-(-rows // fsdp), 1) * fsdp}"


def device_memory(settings: EngineSettings) -> float | None:
    """Bytes that the engine may take on one device; None if unknown. Raises ConfigError without enough GPUs."""
    if not settings.cuda:
        free = free_memory()
        return None if free is None else free / settings.layout.devices
    totals = gpu_memory()
    if len(totals) < settings.layout.devices:
        raise ConfigError(
            f"--cuda: the layout needs {settings.layout.devices} GPUs, and nvidia-smi lists {len(totals)}; check the "
            "driver, or lower --tensor-parallel and --fsdp"
        )
    return min(totals) * float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", XLA_SHARE))


def gpu_memory() -> list[float]:
    """Bytes of each GPU that nvidia-smi lists."""
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
        return [float(line) * 2**20 for line in listed.split()]
    return []


def _remedy(settings: EngineSettings, shape: ModelShape, memory: float) -> str:
    """The first of several changes with which it fits, as the options to pass."""
    smallest = settings.layout.fsdp
    steps: dict[str, dict[str, Any]] = {
        "--gradient-checkpointing": {"gradient_checkpointing": True},
        f"--micro-batch {smallest}": {"micro_batch": smallest},
        f"--samples {smallest}": {"samples": smallest},
        f"--adapters {MIN_ADAPTERS}": {"adapters": MIN_ADAPTERS},
    }
    changed, options = settings, list[str]()
    for option, change in steps.items():
        candidate = replace(changed, **change)
        if candidate != changed:
            changed, options = candidate, [*options, option]
            if _fits(changed, shape, memory):
                return f"it fits with {' '.join(options)}"
    longest = longest_that_fits(shape, changed.layout, _load(changed), memory, LONGEST)
    if longest >= 256:
        return f"with {' '.join([*options, f'--max-length {longest // 256 * 256}'])} it fits"
    for fsdp in (2, 4, 8, 16, 32, 64):
        more = replace(changed, fsdp=fsdp, micro_batch=fsdp, samples=fsdp)
        if fsdp > smallest and not any(layout_problems(more, shape)) and _fits(more, shape, memory):
            return f"it needs more devices of this size: --fsdp {fsdp}"
    return "use a smaller model or larger devices"


def _fits(settings: EngineSettings, shape: ModelShape, memory: float) -> bool:
    estimate = engine_memory(shape, settings.layout, _load(settings))
    return (estimate.total if settings.max_length else estimate.stored) <= memory


def _load(settings: EngineSettings) -> EngineLoad:
    return EngineLoad(
        rank=settings.rank,
        adapters=settings.adapters,
        rows=settings.micro_batch or MAX_ADAPTERS,
        samples=settings.samples or MAX_ADAPTERS,
        length=settings.max_length or ASSUMED_LENGTH,
        gradient_checkpointing=settings.gradient_checkpointing,
        loss_chunk=settings.loss_chunk,
        fused_attention=settings.cuda,
    )


def _divisor(numbers: Iterable[int], at_most: int) -> int:
    """The largest that divides all of them."""
    common = math.gcd(*numbers)
    return next(each for each in range(at_most, 0, -1) if common % each == 0)


def _gb(size: float) -> str:
    return f"{size / GB:.2f} GB" if size < 10 * GB else f"{size / GB:.0f} GB"
