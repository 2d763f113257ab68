"""The bundled environment `harbor`: our three tasks, other people's layouts, and what it refuses to run."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.prebuild import NO_MODEL, distinct_specs, open_for_prebuild, prebuild_specs
from tests.environments.playing import NOTHING, Player, bundled, played
from tests.support.sandbox_parts import IMAGE, DockerDaemon, Parts, find_parts

HARBOR: Any = sys.modules[load_environment("harbor").__module__]
OURS = ["log-report", "readings-to-json", "service-order"]
PLAIN = "FROM debian:12-slim\nWORKDIR /app\n"
WITHOUT_IMAGE = "[metadata]\nruns_without_image = true\n"
# As tasks of Harbor have them: everything by its absolute path.
ABSOLUTE = """#!/bin/bash
[ "$(pwd -P)" = "$(cd /app && pwd -P)" ] && [ -x /app/tool.sh ] && [ -e /opt/made ] && [ "$GREETING" = hello ] || exit 1
if [ "$(cat /app/answer.txt)" = "$(cat /tests/expected.txt)" ]; then right=1; else right=0; fi
echo "{\\"reward\\": $right, \\"tidy\\": 0.5}" > /logs/verifier/reward.json
"""


@pytest.fixture(scope="module")
def parts() -> Parts:
    return find_parts()


@pytest.fixture(scope="module")
def docker_daemon(parts: Parts) -> Iterator[DockerDaemon]:
    with DockerDaemon(parts.image, None) as daemon:
        yield daemon


@pytest.fixture
def open_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home that the users of sandboxes can enter, where images are baked; tmp_path is its owner's alone."""
    with TemporaryDirectory(dir="/var/tmp") as directory:
        Path(directory).chmod(0o755)
        monkeypatch.setenv("HERMES_HOME", directory)
        yield


def make_task(
    folder: Path, *, test: str, toml: str = WITHOUT_IMAGE, dockerfile: str = PLAIN, run: str | None = None
) -> Path:
    """A task folder; its tests know the answer 42."""
    for name in ("environment", "tests", *(["tests/run"] if run else [])):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text("Write the answer into answer.txt.")
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "tests" / "test.sh").write_text(test)
    (folder / "tests" / "expected.txt").write_text("42\n")
    if run:
        (folder / "tests" / "run" / "run.sh").write_text(run)
    return folder


def absolute_task(folder: Path) -> Path:
    dockerfile = (
        "# syntax=docker/dockerfile:1\nFROM debian:12-slim AS only\nENV GREETING=hello\nLABEL a=b\n"
        "RUN touch /opt/made && \\\n    # not this\n    touch /opt/too\nWORKDIR /app\nCOPY tool.sh .\nCMD bash\n"
    )
    made = make_task(folder, test=ABSOLUTE, toml="", dockerfile=dockerfile)
    (folder / "environment" / "tool.sh").write_text("echo 42 > /app/answer.txt\n")
    (folder / "environment" / "tool.sh").chmod(0o755)
    return made


def shell(command: str) -> list[Any]:
    return [("terminal", {"command": command}), "Done."]


@pytest.mark.parametrize("name", OURS)
async def test_doing_nothing_and_cheating_score_0_and_the_solution_1(name: str) -> None:
    player = Player()
    async with bundled("harbor", player, tasks=[name], terminal_backend="bubblewrap") as env:
        scores = {
            who: (await played(env, player, name, steps)).score
            for who, steps in {"null": NOTHING, "oracle": env.oracle(name), **env.cheats(name)}.items()
        }
    assert len(scores) >= 8
    assert scores == {who: float(who == "oracle") for who in scores}


async def test_two_of_our_tasks_are_for_training_and_one_is_held_out() -> None:
    async with bundled("harbor", Player()) as env:
        assert (env.train_items(), env.eval_items()) == (OURS[:2], OURS[2:])
        assert env.config.rollout_deadline == 300
    async with bundled("harbor", Player(), dataset_split="test") as env:
        assert env.eval_items() == OURS


async def test_the_machines_of_tasks_can_be_prepared_ahead() -> None:
    kind = load_environment("harbor")
    env = kind(kind.config_init()[0], [NO_MODEL])
    async with open_for_prebuild(env) as backends:
        prepared = await prebuild_specs(distinct_specs(env), backends, print, lambda: None)
    assert (prepared.specs, prepared.failed) == (3, [])


async def test_a_task_is_known_by_its_content(tmp_path: Path) -> None:
    task = make_task(tmp_path / "one", test="true")
    async with bundled("harbor", Player(), dataset_name=str(task)) as env:
        before = env.item_id("one")
        assert before == env.item_id("one")
    (task / "tests" / "expected.txt").write_text("43\n")
    async with bundled("harbor", Player(), dataset_name=str(task)) as env:
        assert env.item_id("one") != before


@pytest.mark.parametrize(
    ("written", "score", "components"),
    [
        ("echo 0.25 > $VERIFIER_DIR/reward.txt", 0.25, {}),
        ('echo \'{"reward": 1, "style": 0.5}\' > $VERIFIER_DIR/reward.json', 1.0, {"reward": 1.0, "style": 0.5}),
        ("echo '{\"passed\": 0.75}' > $VERIFIER_DIR/reward.json; exit 3", 0.75, {"passed": 0.75}),
    ],
)
async def test_the_reward_is_what_the_tests_wrote(
    tmp_path: Path, written: str, score: float, components: dict[str, float]
) -> None:
    task, player = make_task(tmp_path / "one", test=written), Player()
    async with bundled("harbor", player, dataset_name=str(task), terminal_backend="bubblewrap") as env:
        rollout = await played(env, player, "one", NOTHING)
    assert (rollout.score, rollout.components) == (score, components)


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        ("echo no reward at all; exit 1", "verifier/no_reward"),
        ("sleep 60; echo 1 > $VERIFIER_DIR/reward.txt", "verifier/no_reward"),
        ("echo good > $VERIFIER_DIR/reward.txt", "verifier/no_reward"),
        ('echo \'{"a": 1, "b": 1}\' > $VERIFIER_DIR/reward.json', "verifier/no_reward"),
    ],
)
async def test_tests_that_leave_no_reward_leave_no_score(tmp_path: Path, test: str, cause: str) -> None:
    task = make_task(tmp_path / "one", test=test, toml=f"{WITHOUT_IMAGE}[verifier]\ntimeout_sec = 2\n")
    player = Player()
    async with bundled(
        "harbor", player, dataset_name=str(task), terminal_backend="bubblewrap", rollout_retries=0
    ) as env:
        rollout = await played(env, player, "one", NOTHING)
    assert rollout.score is None and str(rollout.failure) == cause


@pytest.mark.parametrize(
    "left",
    [
        "mkdir -p shut/in; chmod 000 shut",
        "chmod 555 .",
        "sleep 60 > answer.txt",
        "ln -s /tmp/tests/expected.txt answer.txt",
    ],
)
async def test_whatever_the_agent_leaves_it_is_scored(tmp_path: Path, left: str) -> None:
    test = (
        'if diff answer.txt "$(dirname "$0")"/expected.txt >&2; then echo 1; else echo 0; fi > $VERIFIER_DIR/reward.txt'
    )
    task, player = make_task(tmp_path / "one", test=test), Player()
    async with bundled(
        "harbor", player, dataset_name=str(task), terminal_backend="bubblewrap", terminal_timeout=2
    ) as env:
        assert (await played(env, player, "one", shell(left))).score == 0
        assert (await played(env, player, "one", shell("echo 42 > answer.txt; chmod 400 answer.txt"))).score == 1


async def test_a_program_that_hangs_is_judged_by_what_it_said(tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "one",
        test='cp "$RUN_OUTPUT" $VERIFIER_DIR/reward.txt',
        run="echo 0.5; bash answer.sh",
        toml=f"{WITHOUT_IMAGE}[verifier]\ntimeout_sec = 2\n",
    )
    player = Player()
    async with bundled("harbor", player, dataset_name=str(task), terminal_backend="bubblewrap") as env:
        rollout = await played(env, player, "one", shell("echo 'sleep 60' > answer.sh"))
    assert rollout.score == 0.5


async def test_what_the_agent_wrote_never_runs_beside_the_judge(tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "one",
        test='[ -e answer.sh ] && exit 1; cp "$RUN_OUTPUT" $VERIFIER_DIR/reward.txt',
        run="ls /tmp/tests 2>/dev/null; bash answer.sh",
    )
    player = Player()
    async with bundled("harbor", player, dataset_name=str(task), terminal_backend="bubblewrap") as env:
        rollout = await played(env, player, "one", shell("echo 'echo 0.125' > answer.sh"))
    assert rollout.score == 0.125


@pytest.mark.parametrize(
    ("toml", "dockerfile", "test", "problem"),
    [
        ("", PLAIN, "", "bubblewrap takes a tar or directory for the image debian:12-slim: name it in --env.images"),
        (
            WITHOUT_IMAGE,
            PLAIN + "COPY missing.txt .",
            "",
            "line 3 of environment/Dockerfile, COPY: there is no missing.txt",
        ),
        (WITHOUT_IMAGE, PLAIN + "COPY Dockerfile /etc/", "", "without an image there is no /etc/Dockerfile"),
        (
            WITHOUT_IMAGE,
            PLAIN + "COPY --from=x Dockerfile .",
            "",
            "line 3 .* COPY: the option --from=x is not supported",
        ),
        (WITHOUT_IMAGE, PLAIN + "\nONBUILD RUN x", "", "line 4 .* ONBUILD: this instruction is not supported"),
        (WITHOUT_IMAGE, PLAIN + "FROM another", "", "line 3 .* FROM: only one stage"),
        (WITHOUT_IMAGE, PLAIN + "RUN cat <<EOF\nx", "", "line 3: the here-document EOF does not end"),
        (WITHOUT_IMAGE, PLAIN, "x=1\napt-get install -y curl\n", "tests/test.sh calls apt-get, but without an image"),
        (WITHOUT_IMAGE + "[environment]\ngpus = 1\n", PLAIN, "", r"\[environment\] gpus"),
        (WITHOUT_IMAGE + '[environment]\nnetwork_mode = "allowlist"\n', PLAIN, "", r"\[environment\] network_mode"),
        (WITHOUT_IMAGE + '[agent]\nallowed_hosts = ["a.b"]\n', PLAIN, "", r"\[agent\] network_mode = 'allowlist'"),
        (
            WITHOUT_IMAGE + '[environment]\nmemory = "much"\n',
            PLAIN,
            "",
            r"\[environment\] memory = 'much' is not a size",
        ),
        (WITHOUT_IMAGE + "[environment.tpu]\ntype = 'v5'\n", PLAIN, "", r"\[environment\] tpu"),
        (
            WITHOUT_IMAGE + "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n",
            PLAIN,
            "",
            r"\[\[verifier.collect\]\] service 'db'",
        ),
        (WITHOUT_IMAGE + '[environment.env]\nKEY = "${KEY}"\n', PLAIN, "", r"env KEY: \${KEY} has no value"),
        ('artifacts = ["../x"]\n' + WITHOUT_IMAGE, PLAIN, "", r"artifact ../x: '..' is refused"),
    ],
)
async def test_a_task_that_cannot_be_run_faithfully_is_refused_with_the_reason(
    tmp_path: Path, toml: str, dockerfile: str, test: str, problem: str
) -> None:
    task = make_task(tmp_path / "one", test=test, toml=toml, dockerfile=dockerfile)
    with pytest.raises(ConfigError, match=f"one: {problem}"):
        async with bundled("harbor", Player(), dataset_name=str(task), terminal_backend="bubblewrap"):
            pass


async def test_all_reasons_are_told_at_once_and_others_can_be_chosen(tmp_path: Path) -> None:
    make_task(tmp_path / "good", test="curl http://localhost:80/  # not from afar: curl x")
    make_task(tmp_path / "bad", test="curl x", toml=f"{WITHOUT_IMAGE}[environment]\nos = 'windows'\ngpus = 2")
    with pytest.raises(
        ConfigError, match=r"(?s)bad: \[environment\] gpus.*bad: \[environment\] os.*bad: tests/test.sh"
    ):
        async with bundled("harbor", Player(), dataset_name=str(tmp_path)):
            pass
    async with bundled("harbor", Player(), dataset_name=str(tmp_path), tasks=["good"]) as env:
        assert env.train_items() == ["good"]
    async with bundled("harbor", Player(), dataset_name=str(tmp_path), skip_unsupported=True) as env:
        assert env.train_items() == ["good"]
    with pytest.raises(ConfigError, match="no task other; there is: bad, good"):
        async with bundled("harbor", Player(), dataset_name=str(tmp_path), tasks=["other"]):
            pass


async def test_the_host_itself_is_no_place_for_tasks() -> None:
    with pytest.raises(ConfigError, match="local is not a sandbox"):
        async with bundled("harbor", Player(), terminal_backend="local"):
            pass


@pytest.mark.slow
@pytest.mark.usefixtures("open_home")
async def test_an_image_has_the_paths_that_tasks_of_harbor_name(tmp_path: Path, parts: Parts) -> None:
    task, player = absolute_task(tmp_path / "one"), Player()
    settings = {"images": {"debian:12-slim": str(parts.root)}, "terminal_backend": "bubblewrap"}
    async with bundled("harbor", player, dataset_name=str(task), **settings) as env:
        solved = await played(env, player, "one", shell("/app/tool.sh"))
        idle = await played(env, player, "one", NOTHING)
    assert (solved.score, solved.components, idle.score) == (1.0, {"reward": 1.0, "tidy": 0.5}, 0.0), solved.failure


@pytest.mark.slow
async def test_tasks_run_on_docker(tmp_path: Path, docker_daemon: DockerDaemon) -> None:
    absolute_task(tmp_path / "one")
    for name in OURS:
        shutil.copytree(HARBOR.OUR_TASKS / name, tmp_path / name)
    settings = {
        "images": {"debian:12-slim": IMAGE},
        "terminal_backend": "docker",
        "sandbox_settings": {"docker": {"url": docker_daemon.url, "image": IMAGE}},
    }
    player = Player()
    async with bundled("harbor", player, dataset_name=str(tmp_path), **settings) as env:
        assert (await played(env, player, "one", shell("/app/tool.sh"))).score == 1
        for name in OURS:
            assert (await played(env, player, name, env.oracle(name))).score == 1
        forging = env.cheats(OURS[0])["forges when it is run"]
        assert (await played(env, player, OURS[0], forging)).score == 0
