"""Weights as they are asked for, in a folder of their own.

Always true: the folder is there whole or not at all; one that was there is replaced only when that was asked for.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hermes_rl.errors import ConfigError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS, Adapter
from hermes_rl.training.weights.card import card
from hermes_rl.training.weights.merging import MergedModel, write_merged
from hermes_rl.training.weights.model_folder import ModelFolder, find_model
from hermes_rl.training.weights.source import Source

CARD = "README.md"
# What vLLM takes as --max-lora-rank.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
Told = Callable[[int, int, str], None]


class Form(StrEnum):
    PEFT = "peft"
    MERGED = "merged"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Exported:
    form: Form
    folder: Path
    base_model: str
    step: int | None
    files: tuple[str, ...]
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for: `base_model` in place of the one that the run or the adapter names; `kind` of GGUF weights."""

    form: Form
    out: Path
    base_model: str | None = None
    kind: str | None = None
    overwrite: bool = False


def export_weights(source: Source, adapter: Adapter, wish: Wish, told: Told = lambda *_: None) -> Exported:
    """Write the adapter as it is asked for. `told` how many tensors are done, of how many, and which is next."""
    name = wish.base_model or source.base_model or str(adapter.config.get("base_model_name_or_path") or "")
    if not name:
        raise ConfigError("neither the run nor the adapter says which model it changes; name it with --base-model")
    with _whole_folder(wish.out, overwrite=wish.overwrite) as folder:
        if wish.form is Form.PEFT:
            base = _at_hand(name)
            _write_peft(adapter, base, name, folder)
        else:
            base = find_model(name)
            model = MergedModel(base, adapter)
            if wish.form is Form.MERGED:
                write_merged(model, folder, lambda done, tensor: told(done, len(model.forms), tensor))
            else:
                from hermes_rl.training.weights.gguf_file import write_gguf

                file = folder / f"{source.name}.gguf"
                write_gguf(model, file, wish.kind, lambda done, tensor: told(done, len(model.forms), tensor))
        usage = _usage(wish.form, wish.out, source.name, name, adapter)
        (folder / CARD).write_text(card(wish.form, source, adapter, base, name, usage))
        files = tuple(sorted(path.name for path in folder.iterdir()))
        size = sum(path.stat().st_size for path in folder.iterdir())
    return Exported(wish.form, wish.out, name, source.saved.step if source.saved else None, files, size)


def _write_peft(adapter: Adapter, base: ModelFolder | None, base_model: str, folder: Path) -> None:
    shutil.copyfile(adapter.folder / TENSORS, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps(adapter.described(base_model), indent=2) + "\n")
    for path in base.tokenizer_files() if base else ():
        shutil.copyfile(path, folder / path.name)


def _at_hand(name: str) -> ModelFolder | None:
    """The base model's folder where it is one: an adapter alone is not worth fetching a model for."""
    path = Path(name).expanduser()
    return ModelFolder(path) if path.is_dir() else None


def _usage(form: Form, out: Path, name: str, base_model: str, adapter: Adapter) -> str:
    rank = next((rank for rank in RANKS if rank >= adapter.rank), adapter.rank)
    command = {
        Form.PEFT: f"vllm serve {base_model} --enable-lora --max-lora-rank {rank} \\\n"
        f"  --lora-modules {name}={out.name}",
        Form.MERGED: f"vllm serve {out.name}",
        Form.GGUF: f"llama-server --model {out.name}/{name}.gguf",
    }[form]
    return f"```bash\n{command}\n```"


@contextmanager
def _whole_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which takes the place of `out` when all is in it."""
    if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} is there already; name another with -o, or say --overwrite")
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield aside
        aside.chmod(0o755)
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
