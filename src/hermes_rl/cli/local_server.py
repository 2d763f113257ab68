"""The small model or the weights of a run behind an OpenAI-compatible endpoint, with llama.cpp.

For `engine serve`, `evaluate --run` and `quickstart`.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_rl.cli.export_weights import PERCENT, local_adapter
from hermes_rl.cli.last import run_reference
from hermes_rl.cli.progress import progress
from hermes_rl.core.private_files import private_folder

if TYPE_CHECKING:
    from hermes_rl.training.local_model.server import ModelServer

SMALL_MODEL = "smollm2"
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class RunServerSettings:
    """What to serve and where; `run` is `smollm2`, or anything that `hermes-rl export` accepts."""

    run: str
    step: int | None = None
    base_model: str | None = None
    kind: str | None = None
    host: str = "127.0.0.1"
    port: int = 0
    parallel: int = 8
    context: int = CONTEXT
    threads: int = 0


@contextmanager
def run_server(settings: RunServerSettings) -> "Iterator[ModelServer]":
    """Serve the small model or a run's weights for the duration of the block."""
    from hermes_rl.training.local_model.server import require_llama_cpp

    require_llama_cpp()
    if settings.run == SMALL_MODEL:
        from hermes_rl.training.local_model.chat_template import CHAT_TEMPLATE

        with _server(settings, fetch_small_model(), SMALL_MODEL, CHAT_TEMPLATE) as running:
            yield running
        return
    from hermes_rl.training.local_model.download import models_home

    home = private_folder(models_home())
    with tempfile.TemporaryDirectory(prefix="serve-", dir=home) as scratch:
        file, name = _run_file(settings, Path(scratch))
        with _server(settings, file, name) as running:
            yield running


def fetch_small_model() -> Path:
    """The small model's GGUF file, downloaded on first use with progress."""
    from hermes_rl.training.local_model.download import small_model_file

    with progress("model", 1) as shown:
        return small_model_file(lambda state: shown.show(0, state))


def small_model_folder() -> Path:
    """The small model in the layout that engines train from, in float32; converted on first use with progress."""
    from hermes_rl.training.local_model.download import models_home
    from hermes_rl.training.local_model.hugging_face import convert_gguf

    file = fetch_small_model()
    with progress("convert the model", PERCENT) as shown:
        return convert_gguf(
            file,
            models_home() / f"{SMALL_MODEL}-float32",
            lambda done, total, name: shown.show(done * PERCENT // total, name),
        )


def _run_file(settings: RunServerSettings, folder: Path) -> tuple[Path, str]:
    """Write a run's weights as a GGUF file; its path and the run's name."""
    from hermes_rl.training.weights.adapter import Adapter
    from hermes_rl.training.weights.export import ExportRequest, WeightFormat, export_weights
    from hermes_rl.training.weights.source import find_source

    source = find_source(run_reference(settings.run), step=settings.step)
    adapter = Adapter(local_adapter(source.location, private_folder(folder / "adapter")))
    request = ExportRequest(WeightFormat.GGUF, folder / "gguf", settings.base_model, settings.kind)
    with progress(f"convert {source.name}", PERCENT) as shown:
        export_weights(
            source, adapter, request, lambda part, whole, tensor: shown.show(part * PERCENT // whole, tensor)
        )
    return folder / "gguf" / f"{source.name}.gguf", source.name


@contextmanager
def _server(
    settings: RunServerSettings, file: Path, name: str, chat_template: str | None = None
) -> "Iterator[ModelServer]":
    from hermes_rl.training.local_model.download import models_home
    from hermes_rl.training.local_model.server import ServerSettings, model_server

    with model_server(
        ServerSettings(
            file=file,
            name=name,
            log=models_home() / "llama_cpp.log",
            host=settings.host,
            port=settings.port,
            parallel=settings.parallel,
            context=settings.context,
            threads=settings.threads,
            chat_template=chat_template,
        )
    ) as running:
        yield running
