"""LoRA by row: each sequence is multiplied with the weights of its own slot.

SkyRL sorts tokens by slot for `ragged_dot`. Without a kernel for it, as on a CPU, it multiplies every token with every
slot: a training pass of a small model takes twice as long with 8 slots, three times with 16.
"""

from typing import Any

import jax.numpy as jnp
from skyrl.tx.layers.lora import LoRAEmbed, LoRAMixin


def apply_lora_by_row() -> None:
    LoRAMixin.apply_lora = _apply_by_row
    # This engine never trains embeddings: their adapters have rank 0.
    LoRAEmbed.apply_lora = lambda _self, _x, base_output, _slots: base_output


def _apply_by_row(self: Any, x: Any, base_output: Any, slots: Any) -> Any:
    if self.max_lora_adapters == 0 or slots is None:
        return base_output
    inner = jnp.einsum("b...i,bir->b...r", x, self.lora_A[...][slots])
    outer = jnp.einsum("b...r,bro->b...o", inner, self.lora_B[...][slots])
    scale = self.lora_scaling[...][slots]
    return base_output + outer * scale.reshape(-1, *[1] * (base_output.ndim - 1))
