"""The checks that read a Harbor task's files, and those that compare scores: no rollout is run here."""

from dataclasses import replace
from pathlib import Path

import pytest

from hermes_rl.core.errors import Failure, FailureSource
from hermes_rl.validation.audit.cheats import success_lines
from hermes_rl.validation.audit.checks import CHECKS, Outcome, judge
from hermes_rl.validation.audit.evidence import AgentScores, HarborFiles, TaskEvidence
from hermes_rl.validation.audit.report import Status, certificate, status_of
from hermes_rl.validation.audit.task_files import find_tasks, folder_digest, is_harbor_dataset, read_task
from hermes_rl.validation.report import AgentKind
from tests.validation.audit.harbor_tasks import Planned, planted_tasks, sound_tasks, write_task

NULL = AgentScores("null", AgentKind.NULL, (0.0, 0.0, 0.0))
ORACLE = AgentScores("oracle", AgentKind.ORACLE, (1.0, 1.0, 1.0), (1.0, 1.0))
CHEAT = AgentScores("forges results", AgentKind.CHEAT, (0.0,))
SOUND = TaskEvidence("sums", "train", agents=(NULL, ORACLE, CHEAT))
# What only rollouts or other tasks show.
DYNAMIC = {"null_fails", "oracle_passes", "cheats_fail", "unique", "not_in_other_split"}
SILENT_SKIP = "bad-no-skips-13"


def failed(task: TaskEvidence) -> set[str]:
    return {result.check for result in judge(task) if result.outcome in {Outcome.DEFECT, Outcome.WARNING}}


def with_tests(text: str, path: str = "test_outputs.py") -> TaskEvidence:
    return replace(SOUND, files=HarborFiles(tests={path: text}))


STATIC = [task for task in planted_tasks() if task.defect not in DYNAMIC and task.name != SILENT_SKIP]


@pytest.mark.parametrize("task", STATIC, ids=lambda task: task.name)
def test_a_planted_defect_is_found_in_the_files(tmp_path: Path, task: Planned) -> None:
    evidence = replace(SOUND, files=read_task(write_task(tmp_path, task)))
    assert failed(evidence) >= {task.defect}


@pytest.mark.parametrize("task", sound_tasks(10), ids=lambda task: task.name)
def test_a_sound_task_passes_every_check_of_its_files(tmp_path: Path, task: Planned) -> None:
    assert failed(replace(SOUND, files=read_task(write_task(tmp_path, task)))) == set()


@pytest.mark.parametrize(
    ("agents", "check"),
    [
        ((replace(NULL, scores=(1.0, 1.0, 1.0)), ORACLE), "null_fails"),
        ((replace(NULL, scores=(0.25, 0.25, 0.25)), ORACLE), "zero_floor"),
        ((NULL, replace(ORACLE, scores=(0.5, 0.5, 0.5), elsewhere=())), "oracle_passes"),
        ((NULL, replace(ORACLE, scores=(1.0, 0.0, 1.0))), "repeatable"),
        ((NULL, replace(ORACLE, elsewhere=(1.0, 0.0))), "same_elsewhere"),
        ((NULL, ORACLE, replace(CHEAT, scores=(1.0,))), "cheats_fail"),
        ((NULL, ORACLE, replace(CHEAT, scores=(0.3,))), "cheats_score_nothing"),
        ((NULL, CHEAT), "has_oracle"),
        (
            (NULL, ORACLE, replace(CHEAT, scores=(), failure=Failure(FailureSource.VERIFIER, "no_reward", "none"))),
            "always_scored",
        ),
    ],
)
def test_scores_show_a_defect(agents: tuple[AgentScores, ...], check: str) -> None:
    assert failed(replace(SOUND, agents=agents)) == {check}


def test_sound_scores_show_no_defect() -> None:
    assert failed(SOUND) == set()


def test_cheats_that_score_what_doing_nothing_scores_are_no_defect_of_their_own() -> None:
    agents = (replace(NULL, scores=(1.0,)), ORACLE, replace(CHEAT, scores=(1.0,)))
    assert failed(replace(SOUND, agents=agents)) == {"null_fails"}


def test_a_verifier_that_passes_every_agent_cannot_fail() -> None:
    agents = (replace(NULL, scores=(1.0,)), ORACLE, replace(CHEAT, scores=(1.0,)))
    assert "tests_can_fail" in failed(replace(SOUND, agents=agents, files=HarborFiles()))


def test_a_fault_of_the_machine_is_no_defect() -> None:
    broken = replace(CHEAT, scores=(), failure=Failure(FailureSource.SANDBOX, "start", "no memory"))
    task = replace(SOUND, agents=(NULL, ORACLE, broken))
    assert (failed(task), status_of(task, judge(task))) == (set(), Status.CANNOT)


def test_a_refused_task_is_still_read() -> None:
    template = "def test_outputs():\n    pass\n"
    task = replace(with_tests(template), agents=(), refused="its base image cannot be had")
    assert failed(task) == {"tests_can_fail"}


@pytest.mark.parametrize(
    "body",
    ["pass", "assert True", "print('fine')", "assert 1 == 1", "assert missing or True", '"""Nothing."""', "..."],
)
def test_a_test_function_without_a_real_assertion_cannot_fail(body: str) -> None:
    assert failed(with_tests(f"def test_it():\n    {body}\n")) == {"tests_can_fail"}


def test_an_assertion_whose_failure_is_swallowed_cannot_fail() -> None:
    text = "def test_it():\n    try:\n        assert open('a').read() == 'b'\n    except Exception:\n        pass\n"
    assert failed(with_tests(text)) == {"tests_can_fail"}


@pytest.mark.parametrize(
    "body",
    ["assert work() == 3", "self.assertTrue(work())", "raise ValueError(work())", "check_all()", "open('a.txt')"],
)
def test_a_test_function_that_can_raise_can_fail(body: str) -> None:
    assert failed(with_tests(f"def test_it(self):\n    {body}\n")) == set()


@pytest.mark.parametrize(
    "line",
    [
        "began=$(date +%s)",
        "curl -sf http://localhost:8000/health",
        "# curl https://example.org",
        "RANDOM=7; n=$RANDOM",
        "export LC_ALL=C.UTF-8",
        "cat /dev/null /usr/share/dict/words",
    ],
)
def test_what_looks_like_a_dependence_and_is_none_passes(line: str) -> None:
    assert failed(with_tests(f"{line}\n[ -s out.txt ] && echo 1 > reward.txt\n", "test.sh")) == set()


def test_installing_while_verifying_is_a_warning() -> None:
    results = judge(with_tests("apt-get install -y curl\ncurl -LsSf https://astral.sh/uv/install.sh | sh\n", "test.sh"))
    assert [(one.check, one.outcome) for one in results if one.seen] == [("nothing_installed", Outcome.WARNING)]


def test_the_words_of_success_are_those_of_the_tests_and_not_of_the_prompt() -> None:
    files = HarborFiles("Print 'sum verified'.", {"test.sh": "grep -q '^ALL VALID$' log; grep -q 'sum verified' log"})
    assert "ALL VALID" in success_lines(files)
    assert "sum verified" not in success_lines(files)


def test_equal_audits_give_equal_certificates() -> None:
    results = judge(SOUND)
    first, second = (certificate("sums", "0" * 64, "sums", Status.SOUND, results) for _ in range(2))
    assert first == second
    assert certificate("sums", "1" * 64, "sums", Status.SOUND, results)["id"] != first["id"]


def test_a_task_has_another_hash_when_a_file_changes(tmp_path: Path) -> None:
    folder = write_task(tmp_path, sound_tasks(1)[0])
    before = folder_digest(folder)
    (folder / "tests" / "test.sh").write_text("exit 1\n")
    assert folder_digest(folder) != before


def test_a_dataset_folder_is_known_by_its_tasks(tmp_path: Path) -> None:
    assert not is_harbor_dataset(tmp_path)
    write_task(tmp_path, sound_tasks(1)[0])
    assert list(find_tasks(tmp_path)) == ["sound-plain-0"]
    assert is_harbor_dataset(tmp_path / "sound-plain-0")


def test_every_check_says_what_it_proves_and_how_to_fix() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.proves and check.fix for check in CHECKS)
