"""The memory that SkyRL's JAX backend takes on one device: weights, adapters, optimizer, and a pass at its longest.

Always true: what is stored follows from the shapes. What a pass takes in between is an estimate, whose factors are
fitted to XLA's own buffer sizes (docs/reports/training-scale.md).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hermes_rl.training.sizing.model_shape import Layout, ModelShape

FLOAT = 4
# Values that the backward pass of a layer needs, in units of the width of each activation.
HIDDEN_KEPT, HEADS_KEPT, WIDE_KEPT = 8.0, 5.0, 5.0
# Copies of a chunk's logits; without checkpointing those of every token are kept.
LOGITS_COPIES = 3.0
# Scores of attention, where no kernel avoids them: kept for each layer, and of the layer at work.
SCORES_KEPT, SCORES_AT_WORK = 1.6, 4.2


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine is started for. `rows` sequences are trained in one pass and `samples` are sampled at once.

    `fused_attention` is whether a kernel computes attention without storing its scores, as cuDNN's does.
    """

    rank: int = 32
    adapters: int = 8
    rows: int = 8
    samples: int = 8
    length: int = 4096
    gradient_checkpointing: bool = False
    loss_chunk: int = 1024
    fused_attention: bool = False


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes on one device. Training and sampling take turns, so only the larger of the two counts."""

    weights: float
    adapters: float
    gradients: float
    optimizer: float
    training: float
    sampling: float

    @property
    def stored(self) -> float:
        return self.weights + self.adapters + self.gradients + self.optimizer

    @property
    def total(self) -> float:
        return self.stored + max(self.training, self.sampling)


def engine_memory(shape: ModelShape, layout: Layout, load: EngineLoad) -> MemoryEstimate:
    adapter = sum(tensor.on_device(layout) for tensor in shape.adapter(layout, load.rank))
    slots = FLOAT * adapter * load.adapters
    return MemoryEstimate(
        weights=shape.bytes * sum(tensor.on_device(layout) for tensor in shape.weights(layout)),
        adapters=slots,
        # Gradients and Adam's two moments cover all slots; one model trains.
        gradients=slots,
        optimizer=2 * slots,
        # A pass makes new gradients beside those it adds them to.
        training=training_bytes(shape, layout, load) + slots,
        sampling=sampling_bytes(shape, layout, load),
    )


def training_bytes(shape: ModelShape, layout: Layout, load: EngineLoad) -> float:
    """What the forward and backward pass keeps of `rows` sequences at the full length."""
    rows = -(-load.rows // layout.fsdp)
    tokens, tp = rows * load.length, layout.tensor_parallel
    heads = 1 if layout.replicate_attention else tp
    wide = shape.intermediate * max(shape.experts_per_token, 1) / tp
    attention = (2 * shape.query + shape.key_value) / heads
    layer = tokens * shape.bytes * (HIDDEN_KEPT * shape.hidden + HEADS_KEPT * attention + WIDE_KEPT * wide)
    # The inputs of the adapters, in their own precision.
    layer += tokens * FLOAT * (2 * shape.hidden + shape.query / heads + wide)
    scores = 0.0 if load.fused_attention else FLOAT * rows * shape.heads / heads * load.length**2
    logits = LOGITS_COPIES * FLOAT * shape.vocabulary / tp
    if load.gradient_checkpointing:
        chunk = min(load.loss_chunk or tokens, tokens)
        # The input of every layer, and one layer at work.
        kept = shape.layers * tokens * shape.bytes * shape.hidden
        return kept + layer + SCORES_AT_WORK * scores + logits * chunk
    return shape.layers * (layer + SCORES_KEPT * scores) + SCORES_AT_WORK * scores + logits * tokens


def sampling_bytes(shape: ModelShape, layout: Layout, load: EngineLoad) -> float:
    """A copy of all layers, which SkyRL takes apart for decoding, and the KV cache of `samples` sequences."""
    rows = -(-load.samples // layout.fsdp)
    _embeddings, *layers = shape.weights(layout)
    copied = shape.bytes * sum(tensor.on_device(layout) for tensor in layers)
    heads = 1 if layout.replicate_attention else layout.tensor_parallel
    cache = rows * load.length * shape.cache_bytes / heads
    return copied + cache + LOGITS_COPIES * FLOAT * rows * shape.vocabulary / layout.tensor_parallel


def longest_that_fits(shape: ModelShape, layout: Layout, load: EngineLoad, memory: float, limit: int) -> int:
    """The longest sequence, up to `limit` tokens, with which the engine takes at most `memory`; 0 for none."""

    def fits(length: int) -> bool:
        return engine_memory(shape, layout, replace(load, length=length)).total <= memory

    return _largest(fits, limit)


def _largest(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` for which a condition holds that fails for all above the first failure."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
