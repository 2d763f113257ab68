"""Folders, repositories and registries as sources of tasks."""

import json
import subprocess
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.interop.harbor.sources import dataset_source, load_tasks


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with the task `one` at its tag `first`, and `two` after it."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))
    made = tmp_path / "made"
    for name in ("one", "two"):
        folder = made / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "task.toml").touch()
        git(made, "init", "-q")
        git(made, "add", ".")
        git(made, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", name)
        if name == "one":
            git(made, "tag", "first")
    return made


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


async def names(source: str) -> list[str]:
    return [task.name for task in load_tasks(await dataset_source(source), None, {})]


async def test_a_repository_has_its_tasks_below_tasks(repository: Path) -> None:
    assert await names(f"git+file://{repository}") == ["one", "two"]


async def test_a_repository_is_taken_at_a_tag_or_commit(repository: Path) -> None:
    assert await names(f"git+file://{repository}@first") == ["one"]
    assert await names(f"git+file://{repository}@{git(repository, 'rev-parse', 'first')}") == ["one"]


async def test_a_folder_of_a_repository_can_be_chosen(repository: Path) -> None:
    assert await names(f"git+file://{repository}#tasks/two") == ["two"]


async def test_a_folder_outside_the_repository_is_refused(repository: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        await names(f"git+file://{repository}#../..")


async def test_a_repository_that_cannot_be_had_is_named(repository: Path) -> None:
    with pytest.raises(ConfigError, match=r"git clone.*nowhere.* failed"):
        await names(f"git+file://{repository}/nowhere")


async def test_a_registry_names_folders_and_commits(repository: Path) -> None:
    (repository / "registry.json").write_text(
        json.dumps(
            [
                {"name": "mine", "version": "1", "tasks": [{"name": "one", "path": "tasks/one"}]},
                {
                    "name": "theirs",
                    "version": "2",
                    "tasks": [
                        {
                            "name": "one",
                            "path": "tasks/one",
                            "git_url": f"file://{repository}",
                            "git_commit_id": git(repository, "rev-parse", "first"),
                        }
                    ],
                },
            ]
        )
    )
    assert await names(f"{repository}/registry.json#mine") == ["one"]
    assert await names(f"{repository}/registry.json#theirs@2") == ["one"]
    with pytest.raises(ConfigError, match="no dataset theirs@3; it has: mine@1, theirs@2"):
        await names(f"{repository}/registry.json#theirs@3")
