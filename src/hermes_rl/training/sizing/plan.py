"""A run on GPUs, on paper: how a node is divided between training and sampling, and how long a step takes.

Always true: each rate is a published peak times an assumed share of it, or an overhead that was measured here; the
formulae are in docs/reports/scale-model.md. Nothing of this has run on a GPU.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.sizing.memory import EngineLoad, MemoryEstimate, engine_memory
from hermes_rl.training.sizing.model_shape import Layout, ModelShape

# An engine is one process on one machine.
MAX_TRAINING_GPUS = 8
# Of a GPU's memory, what may be planned with.
USABLE = 0.9
# vLLM's default limit of sequences in one step.
MAX_SEQUENCES = 256
ADAPTERS = 4
# Measured here: 40 ms to load an adapter of 20 MB, 9.1 bytes of a token in the API, 9.5 MB read in 68 ms, and the
# CPU time of a turn with exact tokens (docs/engine.md, docs/reports/scale-model.md). Padding is the limit of buckets.
ADAPTER_BYTES_PER_S, API_BYTES_PER_TOKEN, API_BYTES_PER_S = 20e6 / 0.04, 9.1, 9.5e6 / 0.068
TURN_CPU_S, PADDING = 1.53e-3, 1.25


@dataclass(frozen=True, slots=True)
class Gpu:
    """Published figures of one GPU: bytes, dense bfloat16 FLOP/s, bytes/s."""

    memory: float
    flops: float
    bandwidth: float


# From the data sheets of NVIDIA and AMD, without sparsity.
GPUS: Mapping[str, Gpu] = {
    "A100-40GB": Gpu(40e9, 312e12, 1.555e12),
    "A100-80GB": Gpu(80e9, 312e12, 2.039e12),
    "B200": Gpu(180e9, 2250e12, 8.0e12),
    "H100": Gpu(80e9, 989e12, 3.35e12),
    "H200": Gpu(141e9, 989e12, 4.8e12),
    "L40S": Gpu(48e9, 362e12, 0.864e12),
}


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """What is asked for. `tokens` is the mean length of a rollout, `sampled` the share of it that the model writes.

    `mfu` and `bandwidth_use` are the shares of a GPU's peak that training and sampling reach.
    """

    shape: ModelShape
    gpu: Gpu
    gpus: int
    context: int
    rollouts: int
    tokens: int
    sampled: float = 0.25
    turns: int = 20
    rank: int = 32
    mfu: float = 0.4
    bandwidth_use: float = 0.6


@dataclass(frozen=True, slots=True)
class TrainingPart:
    """How the engine is laid out. `seconds` is the time of a step, with the read batch and the sent adapter."""

    layout: Layout
    gradient_checkpointing: bool
    memory: MemoryEstimate
    seconds: float

    @property
    def options(self) -> str:
        words = {"--tensor-parallel": self.layout.tensor_parallel, "--fsdp": self.layout.fsdp}
        words |= {"--micro-batch": self.layout.fsdp, "--adapters": ADAPTERS}
        checkpointing = " --gradient-checkpointing" if self.gradient_checkpointing else ""
        return " ".join(f"{name} {number}" for name, number in words.items()) + checkpointing


@dataclass(frozen=True, slots=True)
class SamplingPart:
    """`servers` of `gpus` GPUs each, with `sequences` at work in each."""

    servers: int
    gpus: int
    sequences: int
    cache: float
    decode_rate: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    run: PlannedRun
    training: TrainingPart
    sampling: SamplingPart
    shared: bool
    """One GPU does both, in turns and with half of its memory each."""

    @property
    def step_seconds(self) -> float:
        """Training and sampling overlap, since rollouts may be a few versions old."""
        both = (self.training.seconds, self.sampling.seconds)
        return sum(both) if self.shared else max(both)

    @property
    def steps_per_hour(self) -> float:
        return 3600 / self.step_seconds

    @property
    def environment_cores(self) -> float:
        return self.run.rollouts * self.run.turns * TURN_CPU_S / self.step_seconds

    def as_json(self) -> dict[str, Any]:
        run, training, sampling = self.run, self.training, self.sampling
        tokens = run.rollouts * run.tokens
        return {
            "parameters": run.shape.parameters,
            "adapter_parameters": run.shape.trained_parameters(run.rank),
            "training": {
                "gpus": training.layout.devices,
                "options": f"{training.options} --rank {run.rank} --max-length {run.context}",
                "memory_per_gpu": training.memory.stored + training.memory.training,
                "tokens_per_second": tokens / training.seconds,
                "seconds": training.seconds,
            },
            "sampling": {
                "gpus": sampling.servers * sampling.gpus,
                "servers": sampling.servers,
                "tensor_parallel_size": sampling.gpus,
                "sequences_per_server": sampling.sequences,
                "cache_per_server": sampling.cache,
                "tokens_per_second": tokens * run.sampled / sampling.seconds,
                "seconds": sampling.seconds,
            },
            "environment_cores": self.environment_cores,
            "step_seconds": self.step_seconds,
            "steps_per_hour": self.steps_per_hour,
        }


def plan_run(run: PlannedRun) -> Plan:
    """The division with the shortest step; of equal ones that with fewer GPUs in training. Raises ConfigError."""
    if run.gpus == 1:
        plans = [
            Plan(run, training, sampling, shared=True)
            for training in _trainings(run, 1, 0.5)
            for sampling in _samplings(run, 1, 0.5)
        ]
    else:
        plans = [
            Plan(run, training, sampling, shared=False)
            for count in (1, 2, 4, 8)
            if count <= min(run.gpus - 1, MAX_TRAINING_GPUS)
            for training in _trainings(run, count, 1.0)
            for sampling in _samplings(run, run.gpus - count, 1.0)
        ]
    if not plans:
        raise ConfigError(
            f"{run.shape.parameters / 1e9:.1f}B parameters and {run.context:,} tokens do not fit {run.gpus} × "
            f"{run.gpu.memory / 1e9:.0f} GB, divided between training and sampling; use more or larger GPUs, a shorter "
            "--context or a smaller --model"
        )
    return min(plans, key=lambda plan: plan.step_seconds)


def _trainings(run: PlannedRun, gpus: int, share: float) -> Iterator[TrainingPart]:
    """Ways to train on so many GPUs that fit: sharded first, and split only as far as needed."""
    shape, room = run.shape, run.gpu.memory * USABLE * share
    for split in (1, 2, 4, 8):
        if gpus % split or shape.kv_heads % split or shape.hidden % (gpus // split):
            continue
        layout = Layout(split, gpus // split)
        for checkpointing in (False, True):
            load = EngineLoad(
                rank=run.rank,
                adapters=ADAPTERS,
                rows=layout.fsdp,
                length=run.context,
                gradient_checkpointing=checkpointing,
                fused_attention=True,
            )
            memory = engine_memory(shape, layout, load)
            # vLLM samples, so the engine does not.
            if memory.stored + memory.training <= room:
                yield TrainingPart(layout, checkpointing, memory, training_seconds(run, gpus, checkpointing))
                return


def training_seconds(run: PlannedRun, gpus: int, checkpointing: bool) -> float:
    """The time of a step in the engine.

    Forward is 2 FLOP a parameter, backward the same, since frozen weights need no gradient, and recomputing once more.
    """
    passes = 3 if checkpointing else 2
    # Attention's backward is twice its forward.
    attention = (passes + 1) * attention_flops(run.shape, run.tokens)
    tokens = run.rollouts * run.tokens
    flops = PADDING * tokens * (2 * passes * run.shape.active_parameters + attention)
    read = tokens * API_BYTES_PER_TOKEN / API_BYTES_PER_S
    send = 4 * run.shape.trained_parameters(run.rank) / ADAPTER_BYTES_PER_S
    return flops / (gpus * run.gpu.flops * run.mfu) + read + send


def attention_flops(shape: ModelShape, length: int) -> float:
    """Of one token's forward pass: scores and values, 2 FLOP each, over half of the sequence on average."""
    return 4 * shape.layers * shape.query * length / 2


def _samplings(run: PlannedRun, gpus: int, share: float) -> Iterator[SamplingPart]:
    """Fleets of vLLM servers on so many GPUs, each server on as few as hold the weights and one whole context."""
    shape = run.shape
    for split in (1, 2, 4, 8):
        servers = gpus // split
        # A head of keys and values is copied where there are more GPUs than heads.
        copies = max(split / shape.kv_heads, 1)
        cache = split * run.gpu.memory * USABLE * share - shape.bytes * shape.parameters
        if servers == 0 or cache < run.context * shape.cache_bytes * copies or shape.heads % split:
            continue
        # A rollout at work has half of its tokens on average.
        held = run.tokens / 2 * shape.cache_bytes * copies
        sequences = max(min(int(cache / held), MAX_SEQUENCES, -(-run.rollouts // servers)), 1)
        step = decode_seconds(run, split, sequences, held)
        sampled = run.rollouts * run.tokens * run.sampled
        prompt = run.rollouts * run.tokens - sampled
        # With a prefix cache each prompt token is computed once.
        prefill = prompt * (2 * shape.active_parameters + attention_flops(shape, run.tokens))
        seconds = sampled * step / (sequences * servers) + prefill / (servers * split * run.gpu.flops * run.mfu)
        yield SamplingPart(servers, split, sequences, cache, sequences * servers / step, seconds)


def decode_seconds(run: PlannedRun, gpus: int, sequences: int, held: float) -> float:
    """One token for each sequence: all weights and caches are read once, or the arithmetic takes longer."""
    read = run.shape.bytes * run.shape.parameters + sequences * held
    computed = 2 * run.shape.active_parameters * sequences
    return max(read / (run.gpu.bandwidth * run.bandwidth_use), computed / (run.gpu.flops * run.mfu)) / gpus
