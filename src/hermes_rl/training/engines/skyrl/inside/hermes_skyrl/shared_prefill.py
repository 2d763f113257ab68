"""Samples of one prompt: the engine reads each different prompt of a batch once, then samples every row for itself.

Always true: a row gets the cache and the state that it would have computed, so its tokens and logprobs are the same.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from skyrl.tx.utils.generator import GeneratorMixin

from .segments import MODELS

# Each number of prompts is another program to compile, so there are two: this part of the rows, or all of them.
PART = 4


@jax.tree_util.register_dataclass
@dataclass
class SharedPrompts:
    """Takes the place of the adapters' slots. `first` names a row for each prompt, `prompt` the prompt of each row."""

    slots: jax.Array
    first: jax.Array
    prompt: jax.Array


def read_prompts_once() -> None:
    """Call before a backend is made, and after `attend_within_segments`."""
    generate = GeneratorMixin.generate

    def sharing(self: Any, tokens: Any, mask: Any, *, adapter_indices: Any = None, **others: Any) -> Any:
        one_part = tokens.sharding.mesh.shape["fsdp"] == 1
        if isinstance(self, MODELS) and one_part and adapter_indices is not None and not others.get("prompt_logprobs"):
            found = prompts(*map(np.asarray, (tokens, mask, adapter_indices)))
            if found is not None:
                adapter_indices = SharedPrompts(adapter_indices, *map(jnp.asarray, found))
        return generate(self, tokens, mask, adapter_indices=adapter_indices, **others)

    GeneratorMixin.generate = sharing
    for model in MODELS:
        model.__call__ = _by_prompt(model.__call__)


def prompts(
    tokens: NDArray[np.int32], mask: NDArray[np.int32], slots: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """A row of each prompt, and the prompt of each row; None if there are too many to gain anything."""
    rows = np.concatenate([slots[:, None], mask, tokens], axis=1)
    _, first, prompt = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    room = len(tokens) // PART
    if len(first) > room:
        return None
    return np.resize(first, room).astype(np.int32), prompt.reshape(-1).astype(np.int32)


def _by_prompt(call: Any) -> Any:
    def called(self: Any, tokens: Any, *, attention_mask: Any, adapter_indices: Any = None, **others: Any) -> Any:
        shared = adapter_indices if isinstance(adapter_indices, SharedPrompts) else None
        slots = adapter_indices if shared is None else shared.slots
        if shared is None or others.get("kv_cache") is not None:
            return call(self, tokens, attention_mask=attention_mask, adapter_indices=slots, **others)
        read = call(
            self,
            tokens[shared.first],
            attention_mask=attention_mask[shared.first],
            adapter_indices=slots[shared.first],
            **others,
        )
        return jax.tree.map(lambda value: value[shared.prompt], read)

    return called
