"""Archives of an adapter, as engines pack it and as nobody should, and the routes that hand them out."""

import io
import tarfile
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


def packed(place: Path, members: dict[str, bytes], mode: str = "w:gz", links: dict[str, str] | None = None) -> Path:
    archive = place / "a.tar"
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return archive


class ArchiveServer:
    """The routes of a self-hosted engine that hand out any weights as one archive; those of hosted Tinker's files too.

    The weights called `gone` it does not have.
    """

    def __init__(self, archive: Path) -> None:
        self.archive = archive
        self.url = ""
        self.asked: list[str] = []
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None))

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        match request.path.strip("/").split("/"):
            case ["api", "v1", "training_runs", _, "checkpoints", name, "archive"] if name != "gone":
                self.asked.append(name)
                return web.Response(status=302, headers={"Location": f"{self.url}{request.path[:-7]}download"})
            case ["api", "v1", "training_runs", _, "checkpoints", _, "download"]:
                return web.Response(body=self.archive.read_bytes())
            case ["signed", name]:
                return web.Response(body=FILES[name])
        return web.json_response({"detail": "Checkpoint not found"}, status=404)
