"""A base model with an adapter merged into it: W + scale · B·A in float32, then in the type of W.

Always true: every layer that the adapter changes is found in the base model, and has the shape that it needs. Where the
adapter changes a head that shares its weights with the embeddings, the two are parted.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.adapter import Adapter
from hermes_rl.training.weights.model_folder import INDEX, ModelFolder
from hermes_rl.training.weights.tensors import Form, Tensor, floats, stored, write_tensors

HEAD, EMBEDDINGS = "lm_head", "model.embed_tokens.weight"
Told = Callable[[int, str], None]


class MergedModel:
    """Tensor by tensor: what is not changed is the base model's own bytes."""

    def __init__(self, base: ModelFolder, adapter: Adapter) -> None:
        self.base, self.adapter = base, adapter
        self.parted = HEAD in adapter.modules and f"{HEAD}.weight" not in base.forms
        self.forms = dict(base.forms)
        if self.parted:
            self.forms[f"{HEAD}.weight"] = self.forms[EMBEDDINGS]
        for module in adapter.modules:
            form = self.forms.get(f"{module}.weight")
            if form is None:
                raise ConfigError(f"{base.path} has no layer {module}, which the adapter changes: another base model?")

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base.config, **({"tie_word_embeddings": False} if self.parted else {})}

    def tensor(self, name: str) -> Tensor:
        source = EMBEDDINGS if self.parted and name == f"{HEAD}.weight" else name
        before = self.base.tensor(source)
        module = name.removesuffix(".weight")
        if module not in self.adapter.modules:
            return before
        change = self.adapter.change(module)
        if change.shape != before.shape:
            raise ConfigError(
                f"the adapter changes {module} by {change.shape}, which has {before.shape} in {self.base.path}: "
                "another base model?"
            )
        return stored(floats(before) + change, before.kind)


def write_merged(model: MergedModel, folder: Path, told: Told) -> None:
    """The model's folder anew: the same files, with the merged weights in them. `told` how many tensors are done."""
    for path in model.base.companions():
        shutil.copyfile(path, folder / path.name)
    (folder / "config.json").write_text(json.dumps(model.config, indent=2) + "\n")
    done = 0

    def next_tensor(name: str) -> Tensor:
        nonlocal done
        done += 1
        told(done, name)
        return model.tensor(name)

    weight_map: dict[str, str] = {}
    for file, shard in model.base.shards.items():
        forms = _shard_forms(model, shard.forms)
        write_tensors(folder / file, forms, next_tensor)
        weight_map |= dict.fromkeys(forms, file)
    if len(model.base.shards) > 1:
        index = {"metadata": {"total_size": sum(form.size for form in model.forms.values())}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shard_forms(model: MergedModel, forms: dict[str, Form]) -> dict[str, Form]:
    """A head that is parted from the embeddings lies beside them."""
    parted = {f"{HEAD}.weight": forms[EMBEDDINGS]} if model.parted and EMBEDDINGS in forms else {}
    return forms | parted
