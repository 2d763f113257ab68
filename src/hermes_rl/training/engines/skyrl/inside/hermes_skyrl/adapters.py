"""Operations on one slot of the LoRA weights that leave the others unchanged.

All slots share the same arrays, and each SkyRL optimizer covers all of them.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from skyrl.backends.jax import OptimStepMetrics
from skyrl.tinker.types import LoraConfig
from skyrl.tx.layers.lora import init_lora_adapter
from skyrl.tx.utils.models import (
    get_adapter_idx,
    insert_adapter_state,
    load_lora_checkpoint,
    save_lora_checkpoint,
)

from .adapter_archive import adapter_settings, check_same_tensors, tensor_shapes
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
    settings = adapter_settings(archive)
    config = LoraConfig(rank=settings["r"], alpha=settings["lora_alpha"], seed=0)
    init_lora_adapter(model, slot, config)
    load_lora_checkpoint(model, config, slot, archive)


def load_trained_adapter(model: Any, archive: Path, slot: int, config: LoraConfig) -> None:
    """Load an adapter into a slot that is trained with `config`. Raises ValueError if it cannot be trained there."""
    settings = adapter_settings(archive)
    if settings["r"] != config.rank:
        raise ValueError(f"the adapter has rank {settings['r']}, the model {config.rank}")
    with TemporaryDirectory() as folder:
        own = Path(folder) / "own.tar.gz"
        save_lora_checkpoint(model, "", config, slot, own, 0)
        check_same_tensors(tensor_shapes(archive), tensor_shapes(own))
    load_lora_checkpoint(model, config, slot, archive)
    # The slot keeps its own scale, which is saved with it, so the weights take up the difference.
    factor = settings["lora_alpha"] / config.alpha

    def scale(path: Any, value: Any) -> Any:
        if path[-2].key != "lora_B":
            return value
        index = get_adapter_idx(path, slot)
        return value.at[index].set(value[index] * factor)

    if factor != 1:
        nnx.update(model, jax.tree.map_with_path(scale, nnx.state(model)))


def optimizer_state(backend: Any, model_id: str) -> Any:
    return backend._extract_checkpoint_data(model_id)["optimizer_state"]  # noqa: SLF001


def set_optimizer_state(backend: Any, model_id: str, state: Any) -> None:
    model = backend.models[model_id]
    insert_adapter_state(model.adapter_index, nnx.state(backend.optimizers[model_id]), state, model.lora_config.rank)
