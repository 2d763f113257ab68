"""Exports weights into a folder in the requested format.

Always true: the folder appears complete or not at all; an existing one is replaced only with `overwrite`.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS, Adapter
from hermes_rl.training.weights.merge import MergedModel, write_merged
from hermes_rl.training.weights.model_card import model_card
from hermes_rl.training.weights.model_folder import ModelFolder, find_model
from hermes_rl.training.weights.source import WeightSource

CARD = "README.md"
# Values that vLLM accepts for --max-lora-rank.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
Progress = Callable[[int, int, str], None]


class WeightFormat(StrEnum):
    PEFT = "peft"
    MERGED = "merged"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class ExportedWeights:
    form: WeightFormat
    folder: Path
    base_model: str
    step: int | None
    files: tuple[str, ...]
    size: int
    """In bytes."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """`base_model` overrides that of the run or adapter; `kind` is the GGUF weight type."""

    form: WeightFormat
    out: Path
    base_model: str | None = None
    kind: str | None = None
    overwrite: bool = False


def export_weights(
    source: WeightSource, adapter: Adapter, request: ExportRequest, progress: Progress = lambda *_: None
) -> ExportedWeights:
    """Write the weights. `progress` gets the tensors done, the total, and the name of the next."""
    name = request.base_model or source.base_model or str(adapter.config.get("base_model_name_or_path") or "")
    if not name:
        raise ConfigError("neither the run nor the adapter names its base model; pass --base-model")
    with _atomic_folder(request.out, overwrite=request.overwrite) as folder:
        if request.form is WeightFormat.PEFT:
            base = _local_folder(name)
            _write_peft(adapter, base, name, folder)
        else:
            base = find_model(name)
            model = MergedModel(base, adapter)
            if request.form is WeightFormat.MERGED:
                write_merged(model, folder, lambda done, tensor: progress(done, len(model.infos), tensor))
            else:
                from hermes_rl.training.weights.gguf_file import write_gguf

                file = folder / f"{source.name}.gguf"
                write_gguf(model, file, request.kind, lambda done, tensor: progress(done, len(model.infos), tensor))
        usage = _usage_example(request.form, request.out, source.name, name, adapter)
        (folder / CARD).write_text(model_card(request.form, source, adapter, base, name, usage))
        files = tuple(sorted(path.name for path in folder.iterdir()))
        size = sum(path.stat().st_size for path in folder.iterdir())
    return ExportedWeights(request.form, request.out, name, source.saved.step if source.saved else None, files, size)


def _write_peft(adapter: Adapter, base: ModelFolder | None, base_model: str, folder: Path) -> None:
    shutil.copyfile(adapter.folder / TENSORS, folder / TENSORS)
    (folder / CONFIG).write_text(json.dumps(adapter.peft_config(base_model), indent=2) + "\n")
    for path in base.tokenizer_files() if base else ():
        shutil.copyfile(path, folder / path.name)


def _local_folder(name: str) -> ModelFolder | None:
    """The base model if it is a local folder: a PEFT export is not worth downloading a model for."""
    path = Path(name).expanduser()
    return ModelFolder(path) if path.is_dir() else None


def _usage_example(form: WeightFormat, out: Path, name: str, base_model: str, adapter: Adapter) -> str:
    rank = next((rank for rank in RANKS if rank >= adapter.rank), adapter.rank)
    command = {
        WeightFormat.PEFT: f"vllm serve {base_model} --enable-lora --max-lora-rank {rank} \\\n"
        f"  --lora-modules {name}={out.name}",
        WeightFormat.MERGED: f"vllm serve {out.name}",
        WeightFormat.GGUF: f"llama-server --model {out.name}/{name}.gguf",
    }[form]
    return f"```bash\n{command}\n```"


@contextmanager
def _atomic_folder(out: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder that replaces `out` when the block succeeds."""
    if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
        raise ConfigError(f"{out} already exists; choose another with -o, or pass --overwrite")
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        yield temporary
        temporary.chmod(0o755)
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        temporary.rename(out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
