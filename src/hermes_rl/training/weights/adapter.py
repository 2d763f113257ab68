"""Adapter: a LoRA in PEFT format, and the delta it adds to each weight.

Always true: unsupported content is rejected, never silently ignored.
"""

import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.tensors import Floats, TensorFile, to_float32

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
TENSOR_NAME = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")
# Options that add more than the product of two matrices.
UNSUPPORTED = ("use_dora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens", "use_qalora")


class Adapter:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} is not a PEFT adapter: {error}") from error
        for name in UNSUPPORTED:
            if self.config.get(name):
                raise ConfigError(f"{folder / CONFIG} has {name}; only a plain LoRA can be exported")
        self._file = TensorFile(folder / TENSORS)
        self._matrices: dict[str, dict[str, str]] = {}
        for name in self._file.infos:
            part = TENSOR_NAME.match(name)
            if part is None:
                raise ConfigError(f"{folder / TENSORS} holds {name}, which is not part of a plain LoRA")
            self._matrices.setdefault(part["module"], {})[part["side"]] = name
        for module, sides in self._matrices.items():
            if len(sides) != 2:
                raise ConfigError(f"{folder / TENSORS} has only one of the two matrices of {module}")

    @cached_property
    def modules(self) -> frozenset[str]:
        """The layers it changes, by name in the base model."""
        return frozenset(self._matrices)

    @property
    def rank(self) -> int:
        return int(self.config["r"])

    @property
    def alpha(self) -> float:
        return float(self.config["lora_alpha"])

    def delta(self, module: str) -> Floats:
        """What it adds to the layer's weight: scale · B·A."""
        down, up = (self.matrix(module, side) for side in "AB")
        if self.config.get("fan_in_fan_out"):
            raise ConfigError(f"{self.folder / CONFIG} has fan_in_fan_out; only linear layers can be merged")
        return (up @ down) * self.scale(module)

    def matrix(self, module: str, side: str) -> Floats:
        """The layer's matrix A or B."""
        return to_float32(self._file[self._matrices[module][side]])

    def scale(self, module: str) -> float:
        rank = self._match_pattern("rank_pattern", module, self.rank)
        alpha = self._match_pattern("alpha_pattern", module, self.alpha)
        return alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def peft_config(self, base_model: str) -> dict[str, Any]:
        """The configuration with the fields that PEFT needs and engines omit.

        Without `target_modules` PEFT would guess them from the model type, and drop the weights of other layers.
        """
        layers = sorted({module.rpartition(".")[2] for module in self.modules})
        required = {"task_type": "CAUSAL_LM", "target_modules": layers, "base_model_name_or_path": base_model}
        return {**self.config, **required, "inference_mode": True}

    def _match_pattern(self, field: str, module: str, default: float) -> float:
        """PEFT's rule: a key matches the end of a module name, starting at a dot; the first match wins."""
        patterns: Mapping[str, float] = self.config.get(field) or {}
        return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)
