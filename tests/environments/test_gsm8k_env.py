"""gsm8k: its problems are right and state no answer; one marked number is the answer, and nothing else is."""

import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from environments.gsm8k_env import DATA, Gsm8kConfig, answer_in, bundled, load
from hermes_rl.core.errors import ConfigError
from scripts.make_gsm8k_data import problems, text_of
from tests.environments import playing

PROBLEMS = problems()
ROWS = [{"question": f"What is {number} + {number}?", "answer": f"Twice.\n#### {2 * number:,}"} for number in range(20)]


@pytest.fixture
def player() -> playing.Player:
    return playing.Player()


@pytest.fixture
async def env(player: playing.Player) -> AsyncIterator[Any]:
    async with playing.bundled("gsm8k", player) as opened:
        yield opened


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, also for what the datasets package keeps."""
    monkeypatch.setattr(import_module("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def write_rows(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_data_is_what_the_generator_makes() -> None:
    assert DATA.read_text() == text_of(PROBLEMS)


def test_there_are_200_different_problems_of_20_templates() -> None:
    assert len({row["question"] for row in PROBLEMS}) == 200
    assert set(Counter(row["template"] for row in PROBLEMS).values()) == {10}
    train, held_out = bundled()
    assert (len(train), len(held_out)) == (160, 40)
    assert set(Counter(row["template"] for row in held_out).values()) == {2}


def test_every_calculation_of_a_solution_is_right_and_the_last_is_the_answer() -> None:
    for row in PROBLEMS:
        shown = re.findall(r"<<(\d+)([-+*/])(\d+)=(\d+)>>", row["answer"])
        assert 2 < len(shown) <= 6, row
        for left, sign, right, result in shown:
            one, other, value = int(left), int(right), int(result)
            holds = {"+": one + other == value, "-": one - other == value, "*": one * other == value}
            assert holds.get(sign, value * other == one), row
        assert answer_in(row["answer"]) == int(shown[-1][-1])


def test_a_solution_starts_from_the_numbers_of_its_question() -> None:
    for row in PROBLEMS:
        # 2 and 4 are legs, halves and weekends, 5 weekdays, 100 what percents are of.
        known = {*re.findall(r"\d+", row["question"]), "2", "4", "5", "100"}
        for left, right, result in re.findall(r"<<(\d+)[-+*/](\d+)=(\d+)>>", row["answer"]):
            assert {left, right} <= known, row
            known.add(result)


def test_no_question_states_its_answer() -> None:
    for row in PROBLEMS:
        assert str(answer_in(row["answer"])) not in re.findall(r"\d+", row["question"]), row


@pytest.mark.parametrize(
    "text",
    [
        r"So it is \boxed{1234}.",
        r"\boxed{1,234}",
        r"\boxed{1{,}234}",
        r"\boxed{1234.0}",
        r"\boxed{\$1,234.00}",
        r"\boxed{$1234}",
        r"\boxed{ 1234\% }",
        r"\boxed {1234.}",
        r"Put it in \boxed{}. It is \boxed{1234}, in short \boxed{1,234}.",
        r"<think>\boxed{7}? No.</think> \boxed{1234}",
        "12 + 1222\n#### 1234",
        "  #### $1,234\n",
        "#### Step 1\n1 + 1233\n#### Step 2\n\\boxed{1234}",
    ],
)
def test_one_marked_number_is_the_answer(text: str) -> None:
    assert answer_in(text) == 1234


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1234",
        "The answer is 1234.",
        r"\boxed{}",
        r"\boxed{12 34}",
        r"\boxed{1,2,34}",
        r"\boxed{1233, 1234}",
        r"\boxed{1234 or 1235}",
        r"\boxed{1e3}",
        r"\boxed{NaN}",
        r"\boxed{1234} \boxed{1235}",
        r"\boxed{1234} \boxed{about a thousand}",
        "#### 1234\n#### 1235",
        "#### 1234 1235",
        r"<think>\boxed{1234}</think> I am done.",
        r"\boxed{１２３４}",  # noqa: RUF001 (digits of another script)
    ],
)
def test_anything_else_is_no_answer(text: str) -> None:
    assert answer_in(text) is None


def test_a_negative_answer_is_not_its_opposite() -> None:
    assert answer_in(r"\boxed{-5}") == -5


async def test_the_oracle_scores_one_and_doing_nothing_zero(env: Any, player: playing.Player) -> None:
    for item in env.eval_items()[:5]:
        right = await playing.played(env, player, item, env.oracle(item))
        assert (right.score, right.components) == (1.0, {"correct": 1.0, "answered": 1.0})
        idle = await playing.played(env, player, item, playing.NOTHING)
        assert (idle.score, idle.components) == (0.0, {"correct": 0.0, "answered": 0.0})


async def test_a_wrong_answer_in_the_right_form_is_told_apart(env: Any, player: playing.Player) -> None:
    rollout = await playing.played(env, player, env.train_items()[0], [r"\boxed{999999}"])
    assert (rollout.score, rollout.components) == (0.0, {"correct": 0.0, "answered": 1.0})


async def test_the_terminal_can_calculate(env: Any, player: playing.Player) -> None:
    steps = [("terminal", {"command": 'python3 -c "print(17 * 24)"'}), "Done."]
    rollout = await playing.played(env, player, env.train_items()[0], steps)
    assert json.loads(rollout.tool_uses[0].result)["output"].strip() == "408"


async def test_every_oracle_is_right_and_no_cheat_is(env: Any) -> None:
    for item in PROBLEMS:
        right = answer_in(item["answer"])
        assert answer_in(str(env.oracle(item)[-1])) == right
        assert all(answer_in(str(steps[-1])) != right for steps in env.cheats(item).values()), item


def test_a_folder_of_jsonl_files_is_loaded_by_its_splits(cache: Path) -> None:
    (cache / "mine").mkdir()
    write_rows(cache / "mine" / "train.jsonl", ROWS[:15])
    write_rows(cache / "mine" / "test.jsonl", ROWS[15:])
    assert load(Gsm8kConfig(dataset_name=str(cache / "mine"))) == (ROWS[:15], ROWS[15:])


def test_a_configuration_is_chosen_by_name(cache: Path) -> None:
    folder = cache / "laid out as on the hub"
    for name, rows in (("main", ROWS[:10]), ("other", ROWS[10:])):
        (folder / name).mkdir(parents=True)
        write_rows(folder / name / "train.jsonl", rows)
        write_rows(folder / name / "test.jsonl", rows[:1])
    configs = "".join(
        f"- config_name: {name}\n  data_files:\n"
        f"  - {{split: train, path: {name}/train.jsonl}}\n  - {{split: test, path: {name}/test.jsonl}}\n"
        for name in ("main", "other")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    assert load(Gsm8kConfig(dataset_name=str(folder), dataset_config="other")) == (ROWS[10:], ROWS[10:11])
    with pytest.raises(ConfigError, match="main"):
        load(Gsm8kConfig(dataset_name=str(folder)))


def test_one_split_is_never_both(cache: Path) -> None:
    (cache / "mine").mkdir()
    write_rows(cache / "mine" / "test.jsonl", ROWS)
    train, held_out = load(Gsm8kConfig(dataset_name=str(cache / "mine"), dataset_split="test"))
    assert (len(train), len(held_out)) == (18, 2)


def test_of_a_single_file_each_tenth_row_is_held_out(cache: Path) -> None:
    write_rows(cache / "mine.jsonl", ROWS)
    train, held_out = load(Gsm8kConfig(dataset_name=str(cache / "mine.jsonl")))
    assert held_out == [ROWS[0], ROWS[10]]
    assert train == [row for row in ROWS if row not in held_out]


def test_a_parquet_file_is_loaded(cache: Path) -> None:
    import_module("datasets").Dataset.from_list(ROWS).to_parquet(cache / "mine.parquet")
    train, held_out = load(Gsm8kConfig(dataset_name=str(cache / "mine.parquet")))
    assert (len(train), len(held_out)) == (18, 2)


async def test_rollouts_run_on_a_loaded_dataset(cache: Path, player: playing.Player) -> None:
    write_rows(cache / "mine.jsonl", ROWS)
    async with playing.bundled("gsm8k", player, dataset_name=str(cache / "mine.jsonl")) as env:
        rollout = await playing.played(env, player, env.train_items()[0], [r"\boxed{2}"])
    assert rollout.score == 1.0


def test_rows_of_another_form_are_refused_with_the_row(cache: Path) -> None:
    write_rows(cache / "mine.jsonl", [*ROWS, {"question": "How many?", "answer": "some"}])
    with pytest.raises(ConfigError, match=r"not in the form of GSM8K.*How many"):
        load(Gsm8kConfig(dataset_name=str(cache / "mine.jsonl")))


def test_a_split_that_is_not_there_is_refused(cache: Path) -> None:
    (cache / "mine").mkdir()
    write_rows(cache / "mine" / "train.jsonl", ROWS)
    with pytest.raises(ConfigError, match="cannot be loaded"):
        load(Gsm8kConfig(dataset_name=str(cache / "mine"), dataset_split="dev"))


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'hermes-rl\[datasets\]'"):
        load(Gsm8kConfig(dataset_name="openai/gsm8k"))
