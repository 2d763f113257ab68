"""What is done to one slot of the LoRA weights, and to no other.

All slots lie in the same arrays, and an optimizer of SkyRL's is made for all of them.
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

_OF_AN_ADAPTER = ("lora_A", "lora_B", "lora_ranks", "lora_scaling")


@nnx.jit  # type: ignore[untyped-decorator]
def step_of_one(gradients: Any, weights: Any, optimizer: Any, slot: Any, clip: Any) -> Any:
    """The optimizer's step with the mean of a slot's gradients; the gradients without them, and the step's metrics."""
    mean = gradients.get_mean(slot)
    norm = optax.global_norm(mean)
    scale = jnp.where((clip > 0) & (norm > clip), clip / norm, 1.0)
    before = jax.tree.map(lambda value: value, weights)
    optimizer.update(weights, jax.tree.map(lambda value: value * scale, mean))

    def of_the_slot(path: Any, old: Any, new: Any) -> Any:
        index = get_adapter_idx(path, slot)
        return old.at[index].set(new[index])

    # Weight decay takes from every weight the optimizer knows, those of other models and samplers among them.
    nnx.update(weights, jax.tree.map_with_path(of_the_slot, before, weights))
    rate = optimizer.opt_state.hyperparams["learning_rate"]
    return gradients.reset_adapter(slot), OptimStepMetrics(grad_norm=norm, learning_rate=rate)


def copy_adapter(model: Any, source: int, target: int) -> None:
    def copied(path: Any, value: Any) -> Any:
        if path[-2].key not in _OF_AN_ADAPTER:
            return value
        return value.at[get_adapter_idx(path, target)].set(value[get_adapter_idx(path, source)])

    nnx.update(model, jax.tree.map_with_path(copied, nnx.state(model)))


def load_adapter(model: Any, archive: Path, slot: int) -> None:
    """A saved sampler into a slot; the archive says its rank, since its model may be gone."""
    with tarfile.open(archive) as tar:
        member = next(member for member in tar if Path(member.name).name == "adapter_config.json")
        settings = json.loads(cast("IO[bytes]", tar.extractfile(member)).read())
    config = LoraConfig(rank=settings["r"], alpha=settings["lora_alpha"], seed=0)
    init_lora_adapter(model, slot, config)
    load_lora_checkpoint(model, config, slot, archive)
