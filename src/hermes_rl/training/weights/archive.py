"""The archive in which an engine hands out an adapter.

Always true: only the two files that make up an adapter are taken from it, under names of our own choosing, and no more
of them than the bound; whatever else it says about paths, links and owners is not looked at.
"""

import tarfile
from pathlib import Path

from hermes_rl.training.engine import EngineError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS

# An adapter of rank 128 for a model of 235 billion parameters has a third of it.
LARGEST = 64 * 2**30
PIECE = 2**20


class BadArchiveError(EngineError):
    """It holds no adapter, or more than can be one."""


def unpack_adapter(archive: Path, folder: Path, *, largest: int = LARGEST) -> None:
    """Put the adapter of an archive, packed or not, into a folder that is there."""
    left, found = largest, set()
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or name not in {CONFIG, TENSORS} or name in found:
                    continue
                left -= member.size
                content = tar.extractfile(member)
                if left < 0 or content is None:
                    raise BadArchiveError(f"{archive}: its {name} has {member.size:,} bytes, which no adapter has")
                with (folder / name).open("wb") as file:
                    while piece := content.read(PIECE):
                        file.write(piece)
                found.add(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadArchiveError(f"{archive} cannot be unpacked: {error}") from error
    if missing := sorted({CONFIG, TENSORS} - found):
        raise BadArchiveError(f"{archive} holds no adapter: {', '.join(missing)} is not in it")
