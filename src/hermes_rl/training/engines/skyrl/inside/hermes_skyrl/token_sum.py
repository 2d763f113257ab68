"""Losses that are summed over tokens, as hosted Tinker sums them.

SkyRL divides the loss of each sequence by the sum of its weights, and the gradient by the number of sequences. Without
`weights` in the request, prompts and tool output would dilute a sequence's gradient by its whole length.
"""

from typing import Any

import jax
import jax.numpy as jnp
from skyrl.tinker import loss_fns
from skyrl.tx.utils.models import get_adapter_idx


def sum_over_tokens() -> None:
    """Call before a backend is made: it takes the list of losses when it compiles."""
    loss_fns.LOSS_FUNCTIONS[:] = map(_undo_division, loss_fns.LOSS_FUNCTIONS)


def _undo_division(loss: Any) -> Any:
    def summed(logprobs: Any, weights: Any, *others: Any) -> Any:
        losses = loss(logprobs, weights, *others)
        total = jnp.maximum(weights.sum(axis=-1, keepdims=True), 1e-9)
        # Only the gradient is multiplied: the values are reported to the client as they are. `(total - 1) * …` would
        # lose the digits of a total far below 1, which the weights of cross entropy may have.
        reported = jax.lax.stop_gradient(losses)
        return reported + total * (losses - reported)

    return summed


def slot_gradient(gradients: Any, slot: Any) -> Any:
    """The accumulated gradient of one slot, not divided by the number of sequences; 0 for all other slots."""

    def only_slot(path: Any, total: Any) -> Any:
        index = get_adapter_idx(path, slot)
        return jnp.zeros_like(total).at[index].set(total[index])

    return jax.tree.map_with_path(only_slot, gradients.grad_sum)
