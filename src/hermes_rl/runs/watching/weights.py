"""Whether a folder holds weights that load: a PEFT adapter whose two files are whole.

Always true: only headers are read, so the answer takes no longer for large weights.
"""

import json
from pathlib import Path

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
LONGEST_HEADER = 100 * 2**20


def weights_problem(folder: Path) -> str | None:
    """Why they would not load, in words; None when they would."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        if not isinstance(config, dict) or "peft_type" not in config:
            return f"{folder / CONFIG} describes no adapter"
        return _tensors_problem(folder / TENSORS)
    except FileNotFoundError as error:
        return f"{error.filename} is missing"
    except (OSError, ValueError) as error:
        return f"{folder} cannot be read: {error}"


def _tensors_problem(path: Path) -> str | None:
    """A safetensors file begins with the length of its header; the header says where each tensor ends."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= LONGEST_HEADER:
            return f"{path} is no safetensors file"
        header = json.loads(file.read(length))
    ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
    if not ends:
        return f"{path} holds no tensor"
    missing = 8 + length + max(ends) - path.stat().st_size
    return f"{path} is torn: {missing} bytes are missing" if missing > 0 else None
