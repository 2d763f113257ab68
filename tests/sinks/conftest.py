"""What the tests of sinks live in: nothing of the tester's own accounts, and no network."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the tester's own wandb, trackio or Hugging Face."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "TRACKIO_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def unconnected() -> Iterator[dict[str, str]]:
    """Variables that send every request of a program to a proxy of ours, which must hear nothing."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        yield dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), address)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
