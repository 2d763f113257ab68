"""Merges an adapter into its base model: W + scale · B·A in float32, stored in the dtype of W.

Always true: every layer of the adapter exists in the base model with a matching shape. A head that is tied to the
embeddings and changed by the adapter is untied.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.model_folder import INDEX, ModelFolder
from hermes_rl.training.weights.tensors import Tensor, TensorInfo, to_float32, to_tensor, write_tensors

HEAD, EMBEDDINGS = "lm_head", "model.embed_tokens.weight"
Progress = Callable[[int, str], None]


class MergedModel:
    """Computes one tensor at a time; unchanged tensors are the base model's bytes."""

    def __init__(self, base: ModelFolder, adapter: Adapter) -> None:
        self.base, self.adapter = base, adapter
        self.untied = HEAD in adapter.modules and f"{HEAD}.weight" not in base.infos
        self.infos = dict(base.infos)
        if self.untied:
            self.infos[f"{HEAD}.weight"] = self.infos[EMBEDDINGS]
        for module in adapter.modules:
            if f"{module}.weight" not in self.infos:
                raise ConfigError(
                    f"{base.path} has no layer {module}, which the adapter changes; is it the right base model?"
                )

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base.config, **({"tie_word_embeddings": False} if self.untied else {})}

    def tensor(self, name: str) -> Tensor:
        source = EMBEDDINGS if self.untied and name == f"{HEAD}.weight" else name
        before = self.base.tensor(source)
        module = name.removesuffix(".weight")
        if module not in self.adapter.modules:
            return before
        delta = self.adapter.delta(module)
        if delta.shape != before.shape:
            raise ConfigError(
                f"the adapter has shape {delta.shape} for {module}, but {self.base.path} has {before.shape}; is it the "
                "right base model?"
            )
        return to_tensor(to_float32(before) + delta, before.dtype)


def write_merged(model: MergedModel, folder: Path, progress: Progress) -> None:
    """Write the model folder with merged weights. `progress` gets the tensors done."""
    for path in model.base.companions():
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    done = 0

    def next_tensor(name: str) -> Tensor:
        nonlocal done
        done += 1
        progress(done, name)
        return model.tensor(name)

    weight_map: dict[str, str] = {}
    for file, shard in model.base.shards.items():
        infos = _shard_infos(model, shard.infos)
        write_tensors(folder / file, infos, next_tensor)
        weight_map |= dict.fromkeys(infos, file)
    if len(model.base.shards) > 1:
        index = {"metadata": {"total_size": sum(info.size for info in model.infos.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shard_infos(model: MergedModel, infos: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """An untied head goes into the shard of the embeddings."""
    untied = {f"{HEAD}.weight": infos[EMBEDDINGS]} if model.untied and EMBEDDINGS in infos else {}
    return infos | untied
