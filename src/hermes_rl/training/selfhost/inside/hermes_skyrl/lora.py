"""LoRA row by row: each sequence is multiplied with the weights of its own slot.

SkyRL sorts tokens by slot for `ragged_dot`, which multiplies every token with every slot where there is no kernel for
it, as on a CPU: with eight slots a training pass of a small model takes twice as long, with sixteen three times.
"""

from typing import Any

import jax.numpy as jnp
from skyrl.tx.layers.lora import LoRAEmbed, LoRAMixin


def multiply_by_rows() -> None:
    LoRAMixin.apply_lora = _by_rows
    # Embeddings are never trained by this engine: their adapters have rank 0.
    LoRAEmbed.apply_lora = lambda _self, _x, base_output, _slots: base_output


def _by_rows(self: Any, x: Any, base_output: Any, slots: Any) -> Any:
    if self.max_lora_adapters == 0 or slots is None:
        return base_output
    inner = jnp.einsum("b...i,bir->b...r", x, self.lora_A[...][slots])
    outer = jnp.einsum("b...r,bro->b...o", inner, self.lora_B[...][slots])
    scale = self.lora_scaling[...][slots]
    return base_output + outer * scale.reshape(-1, *[1] * (base_output.ndim - 1))
