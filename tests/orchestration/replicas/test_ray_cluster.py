"""The Ray cluster that the tests of replicas start: where it writes, and what is left of it."""

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.orchestration.replicas import ray_cluster
from tests.orchestration.replicas.ray_cluster import RayCluster, users_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parts,
    pytest.mark.timeout(600),
    # Of Ray's own processes, which it leaves to the system when a start of it fails.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the clusters that the test starts, each of them once, however often it fails."""
    made = list[Path]()
    real = tempfile.mkdtemp

    def noted(*options: Any, **named: Any) -> str:
        made.append(Path(real(*options, **named)))
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    return made


def test_a_cluster_starts_where_ray_has_no_default_folder_and_makes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with RayCluster(nodes=0, in_threads=True) as cluster:
        assert users_of(cluster.folder)
    assert not users_of(cluster.folder)
    assert not (tmp_path / "ray").exists()
    assert "RAY_TMPDIR" not in os.environ


def test_a_cluster_whose_head_fails_to_start_leaves_no_process(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.mkdtemp

    def blocked(*options: Any, **named: Any) -> str:
        folder: str = real(*options, **named)
        # A head writes its address after all of its processes have started.
        Path(folder, "ray", "ray_current_cluster").mkdir(parents=True)
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", blocked)
    monkeypatch.setattr(ray_cluster, "ATTEMPTS", 2)
    monkeypatch.setattr(ray_cluster, "TRIED_AGAIN", {IsADirectoryError, *ray_cluster.TRIED_AGAIN})
    # Beside other tests a start may also fail by itself, as Ray's do.
    with pytest.raises(Exception, match=r"Is a directory|timed out during startup"):
        RayCluster(nodes=0, in_threads=True)
    [folder] = folders
    assert not users_of(folder)
    assert not folder.exists()


def test_a_cluster_whose_node_fails_to_start_leaves_no_process(
    folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "CPUS", -1)
    with pytest.raises(ValueError, match="negative"):
        RayCluster(nodes=1, in_threads=True)
    [folder] = folders
    assert not users_of(folder)
    assert not folder.exists()
