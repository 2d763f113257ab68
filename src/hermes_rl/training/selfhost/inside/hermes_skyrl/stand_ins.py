"""Stand-ins for torch and PEFT, of which SkyRL's JAX path imports all and uses one class each.

torch alone would take four of the six seconds that the engine's imports take, and with the libraries for CUDA that PyPI
adds to it more room than everything else together. Only images need it, which this engine does not train on.
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType


@dataclass
class LoraConfig:
    """What PEFT needs to know of an adapter, written as PEFT does."""

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
    """From transformers, which would import it where it is installed."""
    # None is what Python takes for `not there`; transformers asks once, and remembers.
    sys.modules["torch"] = None  # type: ignore[assignment]
    from transformers.utils.import_utils import is_torch_available

    is_torch_available()


def stand_in() -> None:
    """Before anything of SkyRL is imported."""
    torch, peft = ModuleType("torch"), ModuleType("peft")
    torch.Tensor = type("Tensor", (), {})  # type: ignore[attr-defined]
    peft.LoraConfig = LoraConfig  # type: ignore[attr-defined]
    sys.modules["torch"], sys.modules["peft"] = torch, peft
