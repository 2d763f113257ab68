"""What is refused before anything is started, and what a worker is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hermes_rl.cli.main import hermes_rl
from hermes_rl.console.run_command import run_click
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.file_lock import exclusive_lock
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.replicas.controller import FleetTask, run_fleet
from hermes_rl.orchestration.replicas.hosts import Hosts
from hermes_rl.orchestration.replicas.shards import _shard_counts
from hermes_rl.orchestration.replicas.state_file import (
    DesiredFleet,
    FleetPaths,
    init_desired_fleet,
    read_desired_fleet,
    update_desired_fleet,
)
from hermes_rl.orchestration.replicas.types import FleetTimeouts
from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec
from hermes_rl.rollout.config import ENDLESS

MODEL = ("--openai.server_type", "vllm", "--openai.base_url", "http://127.0.0.1:1/v1")
ENVIRONMENT = str(Path(__file__).with_name("numbers_env.py"))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = run_click(hermes_rl, list(words), prog_name="hermes-rl")
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--on", "ray"], "needs --replicas N"),
        (["--shards", "4"], "needs --replicas N"),
        (["--replicas", "2", "--env.evaluation_only", "true"], "runs in one process"),
        (["--replicas", "2", "--env.shards", "4"], "use --shards"),
        (["--replicas", "2", "--replica-resource", "a=b"], "NAME=AMOUNT"),
        (["--replicas", "2", "--replica-key", "NO_SUCH_KEY_12"], "config set NO_SUCH_KEY_12"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(
    words: list[str], expected: str, capsys: pytest.CaptureFixture[str], api: str
) -> None:
    address = ["--env.rollout_server_url", api, *MODEL]
    code, text = said(capsys, "serve", ENVIRONMENT, *words, *address)
    assert code == 2
    assert expected in text


def test_another_number_of_shards_than_the_api_has_is_refused(capsys: pytest.CaptureFixture[str], api: str) -> None:
    code, text = said(
        capsys,
        *("serve", ENVIRONMENT, "--replicas", "2", "--shards", "8", "--env.rollout_server_url", api),
        *MODEL,
    )
    assert code == 2
    assert "in 4 shards" in text


def test_without_the_extra_it_says_which(
    capsys: pytest.CaptureFixture[str], api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    code, text = said(
        capsys,
        *("serve", ENVIRONMENT, "--replicas", "2", "--on", "ray", "--env.rollout_server_url", api),
        *MODEL,
    )
    assert code == 2
    assert "pip install 'hermes-rl[ray]'" in text


def test_the_shards_of_an_environment_are_read_from_what_the_api_knows() -> None:
    known = (
        b'[{"name": "a", "instance": "0/4"}, {"name": "a", "instance": "evaluation"}, {"name": "b", "instance": ""}]'
    )
    assert _shard_counts("a", known) == {4}
    assert _shard_counts("b", known) == {1}
    assert _shard_counts("c", known) == set()


def test_a_worker_is_told_its_shard_and_only_the_first_evaluates() -> None:
    order = WorkerSpec("env.py", ("--env.group_size", "4"), 8, serve_dir="runs/one/serve")
    first, last = order.command(0, None), order.command(7, Path("serve.yaml"))
    assert first[first.index("--env.shard") + 1] == "0"
    assert last[last.index("--env.shards") + 1] == "8"
    assert last[last.index("--config") + 1] == "serve.yaml"
    assert last[last.index("--env.serve_dir") + 1] == str(rl_home() / "runs/one/serve")
    assert "--env.steps_per_eval" not in first
    assert last[-2:] == ["--env.steps_per_eval", str(ENDLESS)]


def test_keys_are_no_part_of_an_orders_name_or_of_what_is_shown_of_it() -> None:
    order = WorkerSpec("env.py", (), 2, env={"SOME_KEY": "geheim"})
    assert order.name == WorkerSpec("env.py", (), 2).name
    assert "geheim" not in repr(order) + " ".join(order.command(0, None))


def test_the_same_command_goes_on_with_what_it_was_resized_to() -> None:
    places = FleetPaths("going-on")
    init_desired_fleet(places, 3)
    update_desired_fleet(places, lambda last: DesiredFleet(5, ("replica-1",), last.began_with))
    init_desired_fleet(places, 3)
    assert read_desired_fleet(places) == DesiredFleet(5, (), 3)
    init_desired_fleet(places, 4)
    assert read_desired_fleet(places) == DesiredFleet(4, (), 4)


def test_a_second_driver_of_one_home_is_refused_before_it_joins_anything() -> None:
    places = FleetPaths("held-here")
    task = FleetTask("held-here", "numbers", 1, 1, "ray", FleetTimeouts())

    def joined() -> Hosts:
        raise AssertionError("who does not hold the lock has no business there")

    with exclusive_lock(places.driver, "--name"), pytest.raises(ConfigError, match="--name"):
        run_fleet(task, joined, lambda text: None)


def test_replicas_that_nobody_knows_are_told_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = said(capsys, "replicas", "status", "nobody")
    assert code == 2
    assert "no replicas named 'nobody'" in text


@pytest.fixture
def api() -> Iterator[str]:
    """Answers as a trajectory API that has the numbers in four shards."""
    import asyncio
    import threading

    async def environments(_request: web.Request) -> web.Response:
        known: list[dict[str, Any]] = [{"name": "numbers", "instance": f"{shard}/4"} for shard in range(4)]
        return web.json_response(known)

    app = web.Application()
    app.router.add_get("/v1/environments", environments)
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(runner.cleanup())
    loop.close()
