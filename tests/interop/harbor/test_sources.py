"""Folders, repositories, registries and the hub as sources of tasks."""

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

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


@pytest.fixture
async def hub(repository: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """Harbor's hub as its own client asks it: PostgREST routes, with a public key; and a registry.json."""
    commit = git(repository, "rev-parse", "first")
    task = {"name": "one", "path": "tasks/one", "git_url": f"file://{repository}", "git_commit_id": commit}
    versions: dict[str, list[dict[str, Any]]] = {"1.9": [], "1.10": [task]}

    async def table(request: web.Request) -> web.Response:
        assert request.headers["apikey"] == "public"
        known = versions if request.query["name"] == "eq.theirs" else {}
        return web.json_response([{request.query["select"]: version} for version in known])

    async def get_dataset(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer public"
        asked = await request.json()
        tasks = versions.get(asked["p_version"]) if asked["p_name"] == "theirs" else None
        return web.json_response(None if tasks is None else {"name": "theirs", "tasks": tasks})

    async def registry(_: web.Request) -> web.Response:
        return web.json_response([{"name": "theirs", "version": v, "tasks": tasks} for v, tasks in versions.items()])

    application = web.Application()
    application.add_routes([web.get("/rest/v1/dataset", table), web.post("/rest/v1/rpc/get_dataset", get_dataset)])
    application.add_routes([web.get("/registry.json", registry)])
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    monkeypatch.setenv("HARBOR_SUPABASE_URL", address)
    monkeypatch.setenv("HARBOR_SUPABASE_PUBLISHABLE_KEY", "public")
    yield address
    await runner.cleanup()


async def test_the_newest_version_of_a_dataset_is_taken_from_an_index_over_http(hub: str) -> None:
    assert await names("hub:theirs") == ["one"]
    assert await names("hub:theirs@1.10") == ["one"]
    assert await names(f"{hub}/registry.json#theirs") == ["one"]


async def test_what_the_hub_does_not_have_is_named(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="has no dataset theirs@2"):
        await names("hub:theirs@2")
    with pytest.raises(ConfigError, match=r"has no dataset nothing$"):
        await names("hub:nothing")
    with pytest.raises(ConfigError, match=r"nowhere\.json cannot be read: 404"):
        await names(f"{hub}/nowhere.json#theirs")
    monkeypatch.delenv("HARBOR_SUPABASE_URL")
    with pytest.raises(ConfigError, match="HARBOR_SUPABASE_URL and HARBOR_SUPABASE_PUBLISHABLE_KEY in the environment"):
        await names("hub:theirs")
