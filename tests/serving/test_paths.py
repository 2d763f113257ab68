"""Where a served environment keeps its files, and that this says nothing about what its groups are."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.rollout.group import config_hash
from hermes_rl.serving.paths import serve_paths
from hermes_rl.store.database.store import Store
from tests.serving.counting_env import Ending, Streamed, says_it
from tests.serving.parts import draws, serving, trainer, until
from tests.serving.test_command import ended, started
from tests.support.token_servers import VLLMServer
from tests.support.trajectory_api import served

ENDPOINT = APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="m")


def env(**settings: Any) -> Streamed:
    return Streamed(HermesAgentEnvConfig(**settings), [ENDPOINT])


def test_with_a_folder_of_its_own_the_address_of_the_api_does_not_matter(tmp_path: Path) -> None:
    one, other = (
        serve_paths(env(serve_dir=str(tmp_path), rollout_server_url=f"http://127.0.0.1:{port}")) for port in (1, 2)
    )
    assert one == other
    assert [one.spool, one.metrics, one.split, one.scores] == [
        tmp_path / "spool" / "counting",
        tmp_path / "counting.metrics.jsonl",
        tmp_path / "counting.split.json",
        tmp_path / "counting.scores.jsonl",
    ]


def test_without_one_each_api_has_files_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_HOME", str(tmp_path))
    one, other = (serve_paths(env(rollout_server_url=f"http://127.0.0.1:{port}")) for port in (1, 2))
    assert one.spool != other.spool
    assert one.spool.parent == tmp_path / "rl" / "spool"


def test_shards_and_the_evaluating_one_do_not_meet_in_a_folder(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [{}, {"shards": 2}, {"shards": 2, "shard": 1}, {"evaluation_only": True}]
    spools = {serve_paths(env(serve_dir=str(tmp_path), **one)).spool.name for one in settings}
    assert spools == {"counting", "counting-0-of-2", "counting-1-of-2", "counting-evaluation"}


def test_where_files_are_kept_is_no_part_of_what_a_group_is(tmp_path: Path) -> None:
    assert config_hash(env()) == config_hash(env(serve_dir=str(tmp_path), evaluation_only=True))


async def test_the_command_keeps_everything_below_the_folder(tmp_path: Path, store: Store, api: str) -> None:
    await trainer(store, max_staleness=100)
    folder = tmp_path / "run"
    async with (
        VLLMServer(says_it) as model,
        started(tmp_path, api, model.base_url, "--env.serve_dir", str(folder)) as process,
    ):
        code, told, said = await ended(process)
    assert code == 0, said
    assert Path(told["metrics_path"]) == folder / "counting.metrics.jsonl"
    assert json.loads((folder / "counting.split.json").read_text())["environment"] == "counting"
    assert Path(told["spool"]) == folder / "spool" / "counting"
    assert not (tmp_path / "home" / "rl" / "serve").exists()


async def test_what_is_in_the_spool_reaches_an_api_at_another_address(
    tmp_path: Path, store: Store, free_port: int
) -> None:
    await trainer(store, max_staleness=100)
    kept = {"serve_dir": str(tmp_path / "run"), "stop_timeout": 1.0}
    url = f"http://127.0.0.1:{free_port}"
    async with VLLMServer(says_it) as model, serving(url, model.base_url, tmp_path, Ending, **kept) as run:
        async with served(store, port=free_port):
            await until(lambda: run.board.tally.groups > 1)
        await until(lambda: run.board.delivery.spooled)
        left = (await run.stopped()).left
    assert left
    before = len(await draws(store))
    async with (
        served(store) as other_url,
        VLLMServer(says_it) as model,
        serving(other_url, model.base_url, tmp_path, Ending, max_num_workers=1, **kept) as run,
    ):
        await until(lambda: run.board.delivery is not None and not run.board.delivery.spooled)
        assert len(await draws(store)) >= before + left
