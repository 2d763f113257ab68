"""Operations on one slot of the LoRA weights that leave the others unchanged.

All slots share the same arrays, and each SkyRL optimizer covers all of them.
"""

import json
import tarfile
from pathlib import Path
from typing import IO, Any, cast

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from skyrl.backends.jax import OptimStepMetrics
from skyrl.tinker.types import LoraConfig
from skyrl.tx.layers.lora import init_lora_adapter
from skyrl.tx.utils.models import get_adapter_idx, load_lora_checkpoint

from .token_sum import slot_gradient

_ADAPTER_PARAMETERS = ("lora_A", "lora_B", "lora_ranks", "lora_scaling")


@nnx.jit  # type: ignore[untyped-decorator]
def step_slot(gradients: Any, weights: Any, optimizer: Any, slot: Any, clip: Any) -> Any:
    """Take an optimizer step with a slot's gradient; returns the gradients with that slot reset, and metrics."""
    gradient = slot_gradient(gradients, slot)
    norm = optax.global_norm(gradient)
    scale = jnp.where((clip > 0) & (norm > clip), clip / norm, 1.0)
    before = jax.tree.map(lambda value: value, weights)
    optimizer.update(weights, jax.tree.map(lambda value: value * scale, gradient))

    def only_slot(path: Any, old: Any, new: Any) -> Any:
        index = get_adapter_idx(path, slot)
        return old.at[index].set(new[index])

    # Weight decay applies to all slots, including those of other models and samplers: restore them.
    nnx.update(weights, jax.tree.map_with_path(only_slot, before, weights))
    rate = optimizer.opt_state.hyperparams["learning_rate"]
    return gradients.reset_adapter(slot), OptimStepMetrics(grad_norm=norm, learning_rate=rate)


def copy_adapter(model: Any, source: int, target: int) -> None:
    def copy(path: Any, value: Any) -> Any:
        if path[-2].key not in _ADAPTER_PARAMETERS:
            return value
        return value.at[get_adapter_idx(path, target)].set(value[get_adapter_idx(path, source)])

    nnx.update(model, jax.tree.map_with_path(copy, nnx.state(model)))


def load_adapter(model: Any, archive: Path, slot: int) -> None:
    """Load a saved sampler into a slot; its rank comes from the archive, since its model may be unloaded."""
    with tarfile.open(archive) as tar:
        member = next(member for member in tar if Path(member.name).name == "adapter_config.json")
        settings = json.loads(cast("IO[bytes]", tar.extractfile(member)).read())
    config = LoraConfig(rank=settings["r"], alpha=settings["lora_alpha"], seed=0)
    init_lora_adapter(model, slot, config)
    load_lora_checkpoint(model, config, slot, archive)
