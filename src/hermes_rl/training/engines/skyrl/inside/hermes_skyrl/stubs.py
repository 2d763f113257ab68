"""Stubs for torch and PEFT, which SkyRL's JAX path imports but uses only one class of each.

torch would take four of the six seconds of the engine's imports, and with its CUDA libraries more disk than everything
else together. Only image inputs need it, and this engine trains on text.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType


@dataclass
class LoraConfig:
    """The adapter configuration in PEFT's format."""

    base_model_name_or_path: str
    r: int
    lora_alpha: float
    peft_type: str = "LORA"
    task_type: str = "CAUSAL_LM"
    bias: str = "none"
    lora_dropout: float = 0.0
    target_modules: None = None

    def save_pretrained(self, folder: Path) -> None:
        (folder / "adapter_config.json").write_text(json.dumps(asdict(self), indent=2))


def hide_torch() -> None:
    """Hide an installed torch from transformers, which would import it."""
    # None makes the import fail; transformers checks once and caches the result.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers.utils.import_utils import is_torch_available

    is_torch_available()


def install_stubs() -> None:
    """Call before SkyRL is imported."""
    torch, peft = ModuleType("torch"), ModuleType("peft")
    torch.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    peft.LoraConfig = LoraConfig  # type: ignore[attr-defined]
    sys.modules["torch"], sys.modules["peft"] = torch, peft
