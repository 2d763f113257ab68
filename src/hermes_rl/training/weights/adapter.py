"""Adapter: a LoRA in PEFT's form, read for what it adds to each weight.

Always true: whatever a file holds is either understood or refused; nothing is left out in silence.
"""

import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.tensors import Floats, TensorFile, floats

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PART = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
# Kinds of adapters that add more than a product of two matrices.
NOT_PLAIN = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")


class Adapter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} is no PEFT adapter: {error}") from error
        for name in NOT_PLAIN:
            if self.config.get(name):
                raise ConfigError(f"{folder / CONFIG} has {name}; only a plain LoRA can be exported")
        self._file = TensorFile(folder / TENSORS)
        self._sides: dict[str, dict[str, str]] = {}
        for name in self._file.forms:
            part = PART.match(name)
            if part is None:
                raise ConfigError(f"{folder / TENSORS} holds {name}, which is no part of a plain LoRA")
            self._sides.setdefault(part["module"], {})[part["side"]] = name
        for module, sides in self._sides.items():
            if len(sides) != 2:
                raise ConfigError(f"{folder / TENSORS} has only one side of {module}")

    @cached_property
    def modules(self) -> frozenset[str]:
        """The layers it changes, by their names in the base model."""
        return frozenset(self._sides)

    @property
    def rank(self) -> int:
        return int(self.config["r"])

    @property
    def alpha(self) -> float:
        return float(self.config["lora_alpha"])

    def change(self, module: str) -> Floats:
        """What it adds to the weight of that layer."""
        down, up = (floats(self._file[self._sides[module][side]]) for side in "AB")
        if self.config.get("fan_in_fan_out"):
            raise ConfigError(f"{self.folder / CONFIG} has fan_in_fan_out; only weights of linear layers can be merged")
        return (up @ down) * self.scale(module)

    def scale(self, module: str) -> float:
        rank = self._matching("rank_pattern", module, self.rank)
        alpha = self._matching("alpha_pattern", module, self.alpha)
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def described(self, base_model: str) -> dict[str, Any]:
        """Its configuration with what PEFT needs and engines leave out: the layers by name, and the task.

        Without `target_modules` PEFT would guess them by the model's kind, and drop the weights of all others.
        """
        layers = sorted({module.rpartition(".")[2] for module in self.modules})
        told = {"task_type": "CAUSAL_LM", "target_modules": layers, "base_model_name_or_path": base_model}
        return {**self.config, **told, "inference_mode": True}

    def _matching(self, patterns: str, module: str, otherwise: float) -> float:
        """PEFT's rule: a key matches the end of a name from a dot on; the first match wins."""
        told: Mapping[str, float] = self.config.get(patterns) or {}
        return next((value for key, value in told.items() if re.match(rf"(.*\.)?({key})$", module)), otherwise)
