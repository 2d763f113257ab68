"""Reads adapter archives: a tar.gz with `adapter_config.json` and `adapter_model.safetensors`, like saved samplers."""

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"


def adapter_settings(archive: Path) -> dict[str, Any]:
    """Rank `r` and `lora_alpha` are always there. Raises ValueError if the archive holds no adapter."""
    with _member(archive, CONFIG) as file:
        settings: dict[str, Any] = json.loads(file.read())
    if missing := [name for name in ("r", "lora_alpha") if name not in settings]:
        raise ValueError(f"{CONFIG} of the adapter has no {missing[0]}")
    return settings


def tensor_shapes(archive: Path) -> dict[str, tuple[int, ...]]:
    with _member(archive, TENSORS) as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def check_same_tensors(given: dict[str, tuple[int, ...]], own: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError if an adapter does not have exactly the tensors that are trained here."""
    for problem, names in (
        ("lacks tensors that this engine trains", own.keys() - given.keys()),
        ("has tensors that this engine does not train", given.keys() - own.keys()),
        ("has tensors of another shape", {name for name in own if given.get(name) != own[name]}),
    ):
        if names:
            raise ValueError(f"the adapter {problem}: {len(names)}, for example {min(names)}")


@contextmanager
def _member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with tarfile.open(archive) as tar:
            found = next((member for member in tar if Path(member.name).name == name and member.isfile()), None)
            file = None if found is None else tar.extractfile(found)
            if file is None:
                raise ValueError(f"the archive has no {name}")
            yield file
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ValueError(f"not an adapter archive: {error}") from error
