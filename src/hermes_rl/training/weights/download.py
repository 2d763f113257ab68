"""Downloads an adapter from the engine that trained it.

Always true: on success the folder holds a complete adapter; after an error its content is unusable. Only the two files
of an adapter are extracted from an archive, with a size limit; its paths, links and owners are ignored.
"""

import asyncio
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS

# A rank-128 adapter of a 235B model takes a third of this.
MAX_ADAPTER_BYTES = 64 * 2**30
CHUNK_BYTES = 2**20


class BadAdapterArchiveError(EngineError):
    """The archive holds no adapter, or is too large for one."""


def unpack_adapter(archive: Path, folder: Path, *, max_bytes: int = MAX_ADAPTER_BYTES) -> None:
    """Extract the adapter of a tar archive, compressed or not, into an existing folder."""
    remaining, found = max_bytes, set()
    try:
        with tarfile.open(archive, "r:*") as tar:
            for member in tar:
                name = Path(member.name).name
                if not member.isfile() or name not in {CONFIG, TENSORS} or name in found:
                    continue
                remaining -= member.size
                content = tar.extractfile(member)
                if remaining < 0 or content is None:
                    raise BadAdapterArchiveError(
                        f"{archive}: {name} has {member.size:,} bytes, too large for an adapter"
                    )
                with (folder / name).open("wb") as file:
                    while chunk := content.read(CHUNK_BYTES):
                        file.write(chunk)
                found.add(name)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise BadAdapterArchiveError(f"{archive} cannot be unpacked: {error}") from error
    if missing := sorted({CONFIG, TENSORS} - found):
        raise BadAdapterArchiveError(f"{archive} holds no adapter: {', '.join(missing)} is missing")


# Maximum time until the next chunk.
READ_TIMEOUT_S = 60.0
# Lifetime of the copy that hosted Tinker makes for a download.
EXPORT_TTL_S = 3600
MAX_ERROR_BYTES = 300
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Remote:
    """Weights at an engine: `base_url` is None for hosted Tinker, which exports only training states."""

    sampler: str
    state: str | None = None
    base_url: str | None = None
    api_key: str | None = None


async def download_adapter(remote: Remote, folder: Path, progress: Progress = lambda _done, _total: None) -> None:
    """Download the adapter into an existing folder. `progress` gets the bytes received and the total."""
    if remote.base_url is None:
        await _download_hosted(remote, folder, progress)
        return
    archive = folder / "download.tar"
    try:
        await _fetch(_archive_url(remote.base_url, remote.sampler), archive, progress)
        await asyncio.to_thread(unpack_adapter, archive, folder)
    finally:
        archive.unlink(missing_ok=True)


async def _fetch(url: str, file: Path, progress: Progress) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIMEOUT_S, sock_read=READ_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            if response.status != 200:
                text = (await response.read())[:MAX_ERROR_BYTES].decode(errors="replace")
                raise EngineError(f"{url} answered HTTP {response.status}: {text}", permanent=response.status == 404)
            total, done = response.content_length or 0, 0
            with file.open("wb") as output:
                async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                    done += len(chunk)
                    if done > MAX_ADAPTER_BYTES:
                        raise EngineError(
                            f"{url} sends more than {MAX_ADAPTER_BYTES:,} bytes, too much for an adapter",
                            permanent=True,
                        )
                    output.write(chunk)
                    progress(done, total)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise EngineError(
            f"cannot download the weights from {url}: {str(error) or type(error).__name__}; "
            "start the engine with `hermes-rl engine start`, or pass its address with --base-url"
        ) from error


def _archive_url(base_url: str, sampler: str) -> str:
    parts = urlsplit(sampler)
    names = [name for name in parts.path.split("/") if name and name != "sampler_weights"]
    if parts.scheme != "tinker" or not parts.netloc or len(names) != 1 or names[0] == "weights":
        raise ConfigError(f"{sampler} is not a sampler path; it must be like tinker://MODEL/sampler_weights/NAME")
    return f"{base_url.rstrip('/')}/api/v1/training_runs/{parts.netloc}/checkpoints/{names[0]}/archive"


async def _download_hosted(remote: Remote, folder: Path, progress: Progress) -> None:
    """Like `tinker checkpoint download`: load the state, and save it again in a downloadable form."""
    if remote.state is None:
        raise ConfigError(
            "hosted Tinker exports only training states: give a tinker://RUN/weights/NAME path, or for a self-hosted "
            "engine its address with --base-url"
        )
    urls, delete = await asyncio.to_thread(_external_urls, remote)
    try:
        for name in (CONFIG, TENSORS):
            if name not in urls:
                raise EngineError(
                    f"{remote.state} was saved as {', '.join(sorted(urls))}, without {name}", permanent=True
                )
            await _fetch(urls[name], folder / name, progress)
    finally:
        await asyncio.to_thread(delete)


def _external_urls(remote: Remote) -> tuple[dict[str, str], Callable[[], object]]:
    """Temporary URLs of the files, and a function that deletes them."""
    try:
        import tinker
    except ImportError as error:
        raise ConfigError("hosted Tinker needs its SDK: pip install 'hermes-rl[train]'") from error
    try:
        service = tinker.ServiceClient(api_key=remote.api_key)
        training: Any = service.create_training_client_from_state(str(remote.state))
        path = training.save_weights_external("hermes-rl-export", ttl_seconds=EXPORT_TTL_S).result().path
        rest = tinker.RestClient(api_key=remote.api_key)
        urls = dict(rest.get_external_weights_urls(path).result().urls)
    except (tinker.TinkerError, ValueError, OSError) as error:
        raise EngineError(f"hosted Tinker cannot export {remote.state}: {error}") from error

    def delete() -> None:
        try:
            rest.delete_checkpoint_from_tinker_path(path).result()
        except (tinker.TinkerError, OSError):
            # It expires by itself.
            return

    return urls, delete
