"""Whether SkyRL can train a model: read from its folder before minutes are spent on starting."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError

# What skyrl.tx.models has at 0.3.0.
ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3_5ForCausalLM",
    "DeepseekV3ForCausalLM",
)


@dataclass(frozen=True, slots=True)
class Model:
    """`name` is what the trainer's base_model must say."""

    name: str
    warning: str | None = None


def checked_model(given: str) -> Model:
    """A folder by its whole path, a name on the Hugging Face hub as it is."""
    folder = Path(given).expanduser()
    if not folder.is_dir():
        if given.count("/") == 1 and not given.startswith((".", "/", "~")):
            return Model(given)
        raise ConfigError(f"--model {given}: no such folder, and no name on the Hugging Face hub (OWNER/NAME)")
    settings = _settings(folder)
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"--model {given}: no *.safetensors in it; SkyRL loads that format only. From another one: "
            "transformers' from_pretrained(…), then save_pretrained(FOLDER)"
        )
    named = settings.get("architectures") or []
    if not any(name in ARCHITECTURES for name in named):
        raise ConfigError(
            f"--model {given}: SkyRL trains {', '.join(ARCHITECTURES)}, and config.json names "
            f"{', '.join(named) or 'no architecture'}"
        )
    kind = settings.get("dtype") or settings.get("torch_dtype")
    warning = None
    if kind != "float32":
        warning = (
            f"config.json says {kind}: on a CPU float32 is faster, and its logprobs agree to 1e-5 between sampling and "
            "training, those of bfloat16 to 0.05"
        )
    return Model(str(folder.resolve()), warning)


def _settings(folder: Path) -> dict[str, Any]:
    try:
        settings = jsontext.loads((folder / "config.json").read_bytes())
    except FileNotFoundError:
        raise ConfigError(
            f"--model {folder}: no config.json in it; name the folder that holds config.json, tokenizer.json and "
            "*.safetensors"
        ) from None
    except ValueError as error:
        raise ConfigError(f"--model {folder}: config.json is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"--model {folder}: config.json holds no object")
    return settings
