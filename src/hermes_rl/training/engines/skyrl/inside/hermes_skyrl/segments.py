"""Rows of several sequences in SkyRL's models: an attention mask may say to which sequence a token belongs.

Always true: a mask of 0 and 1 means what it did before. A token of sequence 2 or more sees the tokens before it that
have 1 or its own number, and its position is the one that it has in its own sequence.
"""

from typing import Any

import jax
import jax.numpy as jnp
from skyrl.tx.models import llama3, qwen3

MODULES = (llama3, qwen3)
MODELS = (llama3.Llama3ForCausalLM, qwen3.Qwen3ForCausalLM)


def can_share(model: Any) -> bool:
    # cuDNN's kernel on a GPU takes the lengths of rows, not a mask.
    return isinstance(model, MODELS) and jax.default_backend() != "gpu"


def attend_within_segments() -> None:
    """Call before a backend is made."""
    plain = llama3.dot_product_attention

    def attention(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, head_dim: int) -> Any:
        if not is_causal or jax.default_backend() == "gpu":
            return plain(q, k, v, mask, is_causal, head_dim)
        own, seen = mask[:, :, None], mask[:, None, :]
        visible = (seen == 1) | ((seen == own) & (seen > 0))
        return jax.nn.dot_product_attention(
            q, k, v, scale=1.0 / head_dim**0.5, mask=visible[:, None], is_causal=is_causal
        )

    for module in MODULES:
        module.dot_product_attention = attention
    for model in MODELS:
        model.__call__ = _with_positions(model.__call__)


def _with_positions(call: Any) -> Any:
    def called(self: Any, input_ids: Any, *, attention_mask: Any, positions: Any = None, **others: Any) -> Any:
        if positions is None:
            positions = positions_of(attention_mask)
        return call(self, input_ids, attention_mask=attention_mask, positions=positions, **others)

    return called


def positions_of(mask: Any) -> Any:
    """Each token's position in its own sequence."""
    place = jnp.broadcast_to(jnp.arange(mask.shape[1]), mask.shape)
    begins = mask != jnp.pad(mask[:, :-1], ((0, 0), (1, 0)))
    begin = jax.lax.cummax(jnp.where(begins, place, 0), axis=1)
    shared = (mask == 1).sum(axis=1, keepdims=True)
    return jnp.where(mask > 1, place - begin + shared, place)
