"""Uploads an adapter to a self-hosted engine, which keeps it as a training state without an optimizer."""

import asyncio
import json
import tarfile
import tempfile
from pathlib import Path

import aiohttp

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.weights.adapter import CONFIG, TENSORS, Adapter
from hermes_rl.training.weights.tensors import Tensor, TensorInfo, write_tensors

CONNECT_TIMEOUT_S = 10.0
# The engine answers when it has stored the whole archive.
ANSWER_TIMEOUT_S = 600.0
MAX_ERROR_CHARS = 300


async def upload_adapter(base_url: str, adapter: Adapter) -> str:
    """Upload an adapter; returns its tinker:// path at the engine."""
    url = f"{base_url.rstrip('/')}/api/v1/adapters"
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "adapter.tar.gz"
        await asyncio.to_thread(pack_adapter, adapter, archive)
        try:
            with archive.open("rb") as file:
                async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, data=file) as response:
                    body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineError(
                f"cannot upload {adapter.folder} to {url}: {str(error) or type(error).__name__}"
            ) from error
    if response.status in {404, 405}:
        raise ConfigError(
            f"the engine at {base_url} cannot load an adapter from a folder; use one of `hermes-rl engine start`"
        )
    if response.status != 200:
        text = body[:MAX_ERROR_CHARS].decode(errors="replace")
        raise EngineError(f"{url} refused {adapter.folder}: HTTP {response.status}: {text}", permanent=True)
    return str(fast_json.loads(body)["path"])


def pack_adapter(adapter: Adapter, archive: Path) -> None:
    """Write an adapter as a tar.gz archive, in float32 and with the tensor names that engines use."""
    names = {
        f"base_model.model.{module}.lora_{side}.weight": (module, side) for module in adapter.modules for side in "AB"
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        infos = {name: TensorInfo.for_shape("F32", adapter.matrix(*names[name]).shape) for name in sorted(names)}

        def tensor(name: str) -> Tensor:
            values = adapter.matrix(*names[name])
            return Tensor("F32", values.shape, values.tobytes())

        write_tensors(folder / TENSORS, infos, tensor)
        (folder / CONFIG).write_text(json.dumps({"peft_type": "LORA", "r": adapter.rank, "lora_alpha": adapter.alpha}))
        # Weights hardly compress.
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            for name in (CONFIG, TENSORS):
                tar.add(folder / name, name)
