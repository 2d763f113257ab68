"""ModelFolder: a model as its publisher lays it out: config.json, safetensors in one file or several, a tokenizer."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.tensors import Form, Tensor, TensorFile

INDEX = "model.safetensors.index.json"
# What makes up a model besides its weights; licences stay with what they license.
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
            raise ConfigError(f"{path} is no model's folder: {error}; name one with --base-model") from error

    @cached_property
    def shards(self) -> dict[str, TensorFile]:
        """Its files of weights, by name."""
        names = sorted(path.name for path in self.path.glob("*.safetensors"))
        if (self.path / INDEX).exists():
            names = sorted(set(self.index["weight_map"].values()))
        if not names:
            raise ConfigError(f"{self.path} has no safetensors; name a folder that does with --base-model")
        return {name: TensorFile(self.path / name) for name in names}

    @cached_property
    def index(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.path / INDEX).read_text())
        return told

    @cached_property
    def forms(self) -> dict[str, Form]:
        return {name: form for shard in self.shards.values() for name, form in shard.forms.items()}

    def tensor(self, name: str) -> Tensor:
        return next(shard[name] for shard in self.shards.values() if name in shard.forms)

    def companions(self) -> list[Path]:
        """All that a copy needs besides the weights."""
        found = {path for pattern in COMPANIONS for path in self.path.glob(pattern) if path.is_file()}
        return sorted(found - {self.path / INDEX})

    def tokenizer_files(self) -> list[Path]:
        return [self.path / name for name in TOKENIZER if (self.path / name).is_file()]


def find_model(name: str) -> ModelFolder:
    """The folder of that path, or of a model of that name on the hub, which is fetched."""
    path = Path(name).expanduser()
    if path.is_dir():
        return ModelFolder(path)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise ConfigError(f"there is no folder {name}; name that of the base model with --base-model")
    return ModelFolder(_fetched(name))


def _fetched(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigError(
            f"{name} is no folder, and fetching it needs a package: pip install 'hermes-rl[train]'; "
            "or name a folder with --base-model"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(WEIGHTS)))
    except Exception as error:
        raise ConfigError(f"{name} cannot be fetched: {error}; name a folder with --base-model") from error
