from pathlib import Path

import pytest

from hermes_rl.training.weights.download import BadAdapterArchiveError, unpack_adapter
from tests.training.weights.archives import FILES, packed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "inner" / "folder"
    made.mkdir(parents=True)
    return made


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("prefix", ["", "./", "/", "checkpoint/"])
def test_the_two_files_of_an_adapter_are_taken(tmp_path: Path, folder: Path, mode: str, prefix: str) -> None:
    members = {prefix + name: content for name, content in FILES.items()}
    unpack_adapter(packed(tmp_path, members, mode), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


def test_nothing_is_written_beside_the_folder(tmp_path: Path, folder: Path) -> None:
    escaping = {"../../evil": b"x", "/tmp/evil": b"x", "../adapter_config.json": b"{}"}
    unpack_adapter(packed(tmp_path, FILES | escaping), folder)
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a.tar", *FILES}


def test_a_link_is_not_followed(tmp_path: Path, folder: Path) -> None:
    links = {"adapter_config.json": "/etc/passwd"}
    with pytest.raises(BadAdapterArchiveError, match=r"adapter_config\.json is missing"):
        unpack_adapter(packed(tmp_path, {"adapter_model.safetensors": b"weights"}, links=links), folder)


def test_an_archive_of_more_than_an_adapter_has_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(BadAdapterArchiveError, match="1,000 bytes"):
        unpack_adapter(packed(tmp_path, FILES | {"adapter_model.safetensors": b"0" * 1000}), folder, max_bytes=900)


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path, folder: Path) -> None:
    archive = packed(tmp_path, FILES | {"adapter_model.safetensors": bytes(range(256)) * 400})
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(BadAdapterArchiveError):
        unpack_adapter(archive, folder)


def test_a_page_of_text_is_no_archive(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "a.tar").write_text("<html>not found</html>")
    with pytest.raises(BadAdapterArchiveError, match="cannot be unpacked"):
        unpack_adapter(tmp_path / "a.tar", folder)
