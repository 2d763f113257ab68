"""An adapter from the engine that trained it, into a folder.

Always true: when it returns, the folder holds a whole adapter; when it raises, what is there is nothing to use.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from hermes_rl.errors import ConfigError
from hermes_rl.training.engine import EngineError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS
from hermes_rl.training.weights.archive import LARGEST, PIECE, unpack_adapter

# Seconds in which the next piece must come.
READ_TIME = 60.0
# Of the copy that hosted Tinker makes for a download.
KEPT_SECONDS = 3600
SHOWN = 300
Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Remote:
    """Weights at an engine: `base_url` is None for hosted Tinker, which hands out what it saved to go on training."""

    sampler: str
    state: str | None = None
    base_url: str | None = None
    api_key: str | None = None


async def download_adapter(remote: Remote, folder: Path, told: Told = lambda _done, _total: None) -> None:
    """Have the adapter in a folder that is there. `told` how many bytes have come, of how many."""
    if remote.base_url is None:
        await _from_hosted(remote, folder, told)
        return
    archive = folder / "download.tar"
    try:
        await _fetch(_archive_url(remote.base_url, remote.sampler), archive, told)
        await asyncio.to_thread(unpack_adapter, archive, folder)
    finally:
        archive.unlink(missing_ok=True)


async def _fetch(url: str, file: Path, told: Told) -> None:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=READ_TIME, sock_read=READ_TIME)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as response:
            if response.status != 200:
                said = (await response.read())[:SHOWN].decode(errors="replace")
                raise EngineError(f"{url} answered HTTP {response.status}: {said}", lasting=response.status == 404)
            total, done = response.content_length or 0, 0
            with file.open("wb") as output:
                async for piece in response.content.iter_chunked(PIECE):
                    done += len(piece)
                    if done > LARGEST:
                        raise EngineError(
                            f"{url} sends more than {LARGEST:,} bytes, which no adapter has", lasting=True
                        )
                    output.write(piece)
                    told(done, total)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise EngineError(
            f"the weights cannot be had from {url}: {str(error) or type(error).__name__}; "
            "start the engine again with `hermes-rl engine start`, or name its address with --base-url"
        ) from error


def _archive_url(base_url: str, sampler: str) -> str:
    parts = urlsplit(sampler)
    names = [name for name in parts.path.split("/") if name and name != "sampler_weights"]
    if parts.scheme != "tinker" or not parts.netloc or len(names) != 1 or names[0] == "weights":
        raise ConfigError(
            f"{sampler} names no weights to sample from; it must be like tinker://MODEL/sampler_weights/NAME"
        )
    return f"{base_url.rstrip('/')}/api/v1/training_runs/{parts.netloc}/checkpoints/{names[0]}/archive"


async def _from_hosted(remote: Remote, folder: Path, told: Told) -> None:
    """As `tinker checkpoint download` does it: the state is loaded, and saved once more in a form that can be had."""
    if remote.state is None:
        raise ConfigError(
            "hosted Tinker hands out only what it saved to go on training: name a tinker://RUN/weights/NAME, "
            "or for an engine of your own its address with --base-url"
        )
    urls, forget = await asyncio.to_thread(_external_urls, remote)
    try:
        for name in (CONFIG, TENSORS):
            if name not in urls:
                raise EngineError(
                    f"{remote.state} was saved as {', '.join(sorted(urls))}, without {name}", lasting=True
                )
            await _fetch(urls[name], folder / name, told)
    finally:
        await asyncio.to_thread(forget)


def _external_urls(remote: Remote) -> tuple[dict[str, str], Callable[[], object]]:
    """Where each file lies for a while, and what removes them."""
    try:
        import tinker
    except ImportError as error:
        raise ConfigError("weights of hosted Tinker need its SDK: pip install 'hermes-rl[train]'") from error
    try:
        service = tinker.ServiceClient(api_key=remote.api_key)
        training: Any = service.create_training_client_from_state(str(remote.state))
        path = training.save_weights_external("hermes-rl-export", ttl_seconds=KEPT_SECONDS).result().path
        rest = tinker.RestClient(api_key=remote.api_key)
        urls = dict(rest.get_external_weights_urls(path).result().urls)
    except (tinker.TinkerError, ValueError, OSError) as error:
        raise EngineError(f"hosted Tinker does not hand out {remote.state}: {error}") from error

    def forget() -> None:
        try:
            rest.delete_checkpoint_from_tinker_path(path).result()
        except (tinker.TinkerError, OSError):
            # It ends by itself.
            return

    return urls, forget
