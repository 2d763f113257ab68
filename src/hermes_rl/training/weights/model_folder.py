"""ModelFolder: a model in Hugging Face layout: config.json, one or more safetensors files, a tokenizer."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.tensors import Tensor, TensorFile, TensorInfo

INDEX = "model.safetensors.index.json"
# Files to copy besides the weights; licences stay with the model.
COMPANIONS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "LICENSE*", "NOTICE*", "USE_POLICY*")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)
WEIGHTS = ("*.safetensors", "*.json", *COMPANIONS[1:])


class ModelFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.config: dict[str, Any] = json.loads((path / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not a model folder: {error}; pass one with --base-model") from error

    @cached_property
    def shards(self) -> dict[str, TensorFile]:
        """The safetensors files, by name."""
        names = sorted(path.name for path in self.path.glob("*.safetensors"))
        if (self.path / INDEX).exists():
            names = sorted(set(self.index["weight_map"].values()))
        if not names:
            raise ConfigError(f"{self.path} has no safetensors files; pass a folder with them as --base-model")
        return {name: TensorFile(self.path / name) for name in names}

    @cached_property
    def index(self) -> dict[str, Any]:
        index: dict[str, Any] = json.loads((self.path / INDEX).read_text())
        return index

    @cached_property
    def infos(self) -> dict[str, TensorInfo]:
        return {name: info for shard in self.shards.values() for name, info in shard.infos.items()}

    def tensor(self, name: str) -> Tensor:
        return next(shard[name] for shard in self.shards.values() if name in shard.infos)

    def companions(self) -> list[Path]:
        """The files that a copy needs besides the weights."""
        found = {path for pattern in COMPANIONS for path in self.path.glob(pattern) if path.is_file()}
        return sorted(found - {self.path / INDEX})

    def tokenizer_files(self) -> list[Path]:
        return [self.path / name for name in TOKENIZER if (self.path / name).is_file()]


def find_model(name: str) -> ModelFolder:
    """A local folder, or a model downloaded from the Hugging Face hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelFolder(path)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ConfigError(f"folder {name} does not exist; pass the base model with --base-model")
    return ModelFolder(_download(name))


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(
            f"{name} is not a folder, and downloading it needs a package: pip install 'hermes-rl[train]'; "
            "or pass a folder with --base-model"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(WEIGHTS)))
    except Exception as error:
        raise ConfigError(f"cannot download {name}: {error}; pass a folder with --base-model") from error
