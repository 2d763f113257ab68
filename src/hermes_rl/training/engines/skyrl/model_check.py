"""Checks from the model folder whether SkyRL can train a model, before minutes are spent on starting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.training.sizing.model_shape import ModelShape, known_shape

# Supported by skyrl.tx.models 0.3.0.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3_5ForCausalLM",
    "DeepseekV3ForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Model:
    """`name` is the value for the trainer's base_model; `shape` is None if the memory cannot be estimated."""

    name: str
    warning: str | None = None
    shape: ModelShape | None = None


def check_model(given: str, *, cuda: bool = False) -> Model:
    """Resolve a folder to its absolute path; of a Hugging Face name only the shape of well-known ones is known."""
    folder = Path(given).expanduser()
    if not folder.is_dir():
        if given.count("/") == 1 and not given.startswith((".", "/", "~")):
            known = known_shape(given)
            return Model(given, shape=known and known[1])
        raise ConfigError(f"--model {given}: neither a folder nor a Hugging Face name (OWNER/NAME)")
    config = _read_config(folder)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"--model {given}: no *.safetensors found; SkyRL loads only that format. To convert: transformers' "
            "from_pretrained(…), then save_pretrained(FOLDER)"
        )
    declared = config.get("architectures") or []
    if not any(name in ARCHITECTURES for name in declared):
        raise ConfigError(
            f"--model {given}: SkyRL trains {', '.join(ARCHITECTURES)}, but config.json has "
            f"{', '.join(declared) or 'no architecture'}"
        )
    dtype = config.get("dtype") or config.get("torch_dtype")
    warning = None
    if dtype != "float32" and not cuda:
        warning = (
            f"config.json has dtype {dtype}: on a CPU float32 is faster, and sampling and training logprobs agree "
            "to 1e-5 instead of 0.05 with bfloat16"
        )
    return Model(str(folder.resolve()), warning, ModelShape.from_config(config))


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = fast_json.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"--model {folder}: no config.json; give a folder with config.json, tokenizer.json and *.safetensors"
        ) from None
    except ValueError as error:
        raise ConfigError(f"--model {folder}: config.json is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"--model {folder}: config.json is not a JSON object")
    return config
