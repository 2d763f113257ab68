"""LoRA by row: each sequence is multiplied with the weights of its own slot, in the adapter's own precision.

SkyRL sorts tokens by slot for `ragged_dot`. Without a kernel for it, as on a CPU, it multiplies every token with every
slot: a training pass of a small model takes twice as long with 8 slots, three times with 16.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import skyrl.tx.layers.lora as layers
from skyrl.tx.layers.lora import LoRAEmbed, LoRAExpert, LoRAMixin
from skyrl.tx.models import deepseekv3, llama3, qwen3, qwen3_5


def apply_lora_by_row() -> None:
    by_slot = LoRAMixin.apply_lora

    def apply(self: Any, x: Any, base_output: Any, slots: Any) -> Any:
        if self.max_lora_adapters == 0 or slots is None:
            return base_output
        x = x.astype(self.lora_A[...].dtype)
        # Tokens without their rows, as shared experts get them: by row, each token would copy the weights of its slot.
        flat = base_output.ndim == 2
        output = by_slot(self, x, base_output, slots) if flat else _apply_by_row(self, x, base_output, slots)
        return output.astype(base_output.dtype)

    LoRAMixin.apply_lora = apply
    # This engine never trains embeddings or the head: their adapters have rank 0. By row, the head would copy its
    # adapter for every token of a chunk, 20 GB for a vocabulary of 152,000 at rank 32.
    LoRAEmbed.apply_lora = lambda _self, _x, base_output, _slots: base_output
    for model in _causal_models():
        model.get_lm_head = _without_adapter(model.get_lm_head)


def keep_adapters_in_float32() -> None:
    """Give adapters float32 whatever the model has; gradients and Adam's moments follow the parameter.

    In bfloat16 a step of the usual size is lost: 93% of the entries of lora_A do not move at a learning rate of 4e-5.
    """
    init, expert, ragged_dot = LoRAMixin.init_lora, LoRAExpert.__call__, layers.ragged_dot

    def widest(x: Any, weights: Any, *others: Any, **options: Any) -> Any:
        dtype = jnp.promote_types(x.dtype, weights.dtype)
        return ragged_dot(x.astype(dtype), weights.astype(dtype), *others, **options)

    LoRAMixin.init_lora = lambda self, **options: init(self, **options | {"dtype": jnp.float32})
    layers.ragged_dot = widest
    LoRAExpert.__call__ = lambda self, x, *others, **options: expert(self, x, *others, **options).astype(x.dtype)


def _causal_models() -> Iterator[Any]:
    for module in (deepseekv3, llama3, qwen3, qwen3_5):
        for found in vars(module).values():
            if isinstance(found, type) and "get_lm_head" in vars(found):
                yield found


def _without_adapter(get_head: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def get(self: Any) -> Any:
        head = get_head(self)
        return lambda hidden, _slots=None: head(hidden, None)

    return get


def _apply_by_row(self: Any, x: Any, base_output: Any, slots: Any) -> Any:
    inner = jnp.einsum("b...i,bir->b...r", x, self.lora_A[...][slots])
    outer = jnp.einsum("b...r,bro->b...o", inner, self.lora_B[...][slots])
    scale = self.lora_scaling[...][slots]
    return base_output + outer * scale.reshape(-1, *[1] * (base_output.ndim - 1))
