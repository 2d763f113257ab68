"""Tasks that together use every part of Harbor's format, on bubblewrap: the oracle scores 1, an agent that idles 0."""

import functools
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hermes_rl import ConfigError
from tests.environments.harbor_tasks import JUDGE, SEPARATE, TESTS_IMAGE, make_images, task, tasks, write_tasks
from tests.environments.playing import NOTHING, Player, bundled, played

FAST = ["bracket-is-a-test", "installs-for-its-test", "outside-the-workdir", "separate-with-a-dockerfile"]
FETCHED = JUDGE.format(place="/app/answer.txt", answer="42")


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, str]]:
    # Users of sandboxes must be able to enter the home, where images are baked; tmp_path is its owner's alone.
    with TemporaryDirectory(dir="/var/tmp") as directory, pytest.MonkeyPatch.context() as patch:
        Path(directory).chmod(0o755)
        patch.setenv("HERMES_HOME", directory)
        yield make_images(Path(directory, "images"))


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server of a folder's files, whose address does not look like this machine's own."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.2", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"127.0.0.2:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@asynccontextmanager
async def opened(
    folder: Path, images: dict[str, str], player: Player, names: Sequence[str] | None = None, **settings: Any
) -> AsyncIterator[Any]:
    """The environment with these tasks. The server that tests install from is gone once the machines are built."""
    (folder / "served").mkdir()
    (folder / "served" / "judge.sh").write_text(FETCHED)
    async with AsyncExitStack() as stack:
        with serving(folder / "served") as address:
            made = tasks(address)
            write_tasks(folder / "tasks", {name: made[name] for name in names or made})
            given = {"images": images, "variables": {"ANSWER": "42"}, "terminal_backend": "bubblewrap", **settings}
            env = await stack.enter_async_context(
                bundled("harbor", player, dataset_name=str(folder / "tasks"), rollout_retries=0, **given)
            )
        yield env


async def scores(env: Any, player: Player) -> dict[str, tuple[object, ...]]:
    """What the oracle and doing nothing score on each task; the failure where there is no score."""
    found: dict[str, tuple[object, ...]] = {}
    for name in env.tasks:
        solved = await played(env, player, name, env.oracle(name))
        idle = await played(env, player, name, NOTHING)
        found[name] = tuple(one.score if one.failure is None else one.failure for one in (solved, idle))
    return found


async def test_a_solution_scores_1_and_doing_nothing_0(tmp_path: Path, images: dict[str, str]) -> None:
    player = Player()
    async with opened(tmp_path, images, player, FAST) as env:
        assert env.unavailable == {}
        assert await scores(env, player) == dict.fromkeys(sorted(FAST), (1.0, 0.0))


@pytest.mark.long
async def test_every_part_of_the_format(tmp_path: Path, images: dict[str, str]) -> None:
    player = Player()
    async with opened(tmp_path, images, player) as env:
        assert env.unavailable == {}
        found = await scores(env, player)
    assert len(found) >= 25
    assert found == dict.fromkeys(sorted(tasks()), (1.0, 0.0))


async def test_reward_json_counts_before_reward_txt(tmp_path: Path, images: dict[str, str]) -> None:
    player = Player()
    async with opened(tmp_path, images, player, ["json-before-text"]) as env:
        assert (await played(env, player, "json-before-text", NOTHING)).score == 0


async def test_steps_are_judged_one_after_the_other_and_their_mean_counts(
    tmp_path: Path, images: dict[str, str]
) -> None:
    player = Player()
    async with opened(tmp_path, images, player, ["steps"]) as env:
        half = await played(env, player, "steps", env.oracle("steps")[:2])
        whole = await played(env, player, "steps", env.oracle("steps"))
    assert (half.score, whole.score) == (0.5, 1.0)


async def test_under_its_minimum_a_step_is_the_last(tmp_path: Path, images: dict[str, str]) -> None:
    player, name = Player(), "steps-to-the-last"
    async with opened(tmp_path, images, player, [name]) as env:
        rollout = await played(env, player, name, [("submit_step", {}), *env.oracle(name)[2:]])
    assert rollout.score == 0
    assert any("The task is over" in str(message.get("content")) for message in rollout.messages)


async def test_a_machine_that_cannot_be_built_is_named_and_never_scored(tmp_path: Path, images: dict[str, str]) -> None:
    folder, player = tmp_path / "tasks", Player()
    broken = {
        "unhealthy": task("[environment.healthcheck]\ncommand = 'false'\nretries = 1\n"),
        "unreachable": task(test="curl -sSf http://127.0.0.2:9/x\n" + FETCHED),
        "no-judge": task(SEPARATE, **{"tests/Dockerfile": f"{TESTS_IMAGE}RUN exit 3\n"}),
    }
    write_tasks(folder, broken)
    settings = {"images": images, "terminal_backend": "bubblewrap", "rollout_retries": 0}
    async with bundled("harbor", player, dataset_name=str(folder), **settings) as env:
        assert set(env.unavailable) == set(broken)
        rollout = await played(env, player, "unhealthy", NOTHING)
    assert "the health check failed" in env.unavailable["unhealthy"]
    assert "could not be had" in env.unavailable["unreachable"]
    assert (rollout.score, str(rollout.failure)) == (None, "environment/sandbox_spec")


async def test_a_task_whose_image_cannot_be_had_is_left_out_by_name(tmp_path: Path, images: dict[str, str]) -> None:
    made = {
        "here": task(),
        "away": task(dockerfile="FROM not-here:1\n"),
        "no-judge": task(SEPARATE, **{"tests/Dockerfile": "FROM not-here:2\n"}),
    }
    write_tasks(tmp_path, made)
    settings = {"images": images, "terminal_backend": "bubblewrap", "dataset_name": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"(?s)away: .* the image not-here:1.*no-judge: .* the image not-here:2"):
        async with bundled("harbor", Player(), **settings):
            pass
    async with bundled("harbor", Player(), **settings, skip_unsupported=True) as env:
        assert list(env.tasks) == ["here"]


async def test_a_task_without_network_has_none_where_others_have_one(tmp_path: Path, images: dict[str, str]) -> None:
    names = ["agent-without-network", "no-internet", "no-network", "plain"]
    async with opened(tmp_path, images, Player(), names, sandbox_network=True) as env:
        assert {name: env.machines[name].agent.network for name in names} == {
            **dict.fromkeys(names[:3], False),
            "plain": True,
        }


async def test_limits_are_those_of_the_task(tmp_path: Path, images: dict[str, str]) -> None:
    async with opened(tmp_path, images, Player(), ["limits", "old-sizes"]) as env:
        limits = {name: made.agent.limits.named() for name, made in env.machines.items()}
    assert limits["limits"]["disk_mb"] == 200
    assert limits["old-sizes"]["disk_mb"] == 300
