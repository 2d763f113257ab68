"""Validation finds the faults that environments have, names them with their values, and says how to fix them."""

import itertools
import random
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hermes_rl import (
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    HermesAgentEnvConfig,
    Reward,
    TextGameEnv,
    ToolContext,
)
from hermes_rl.environment.compat.base_env import BaseEnv
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.environment.scripted_policy import Step, run_script
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.validation.cheats import builtin_cheats, mentioned_files
from hermes_rl.validation.report import Severity, ValidationReport
from hermes_rl.validation.validate import check_environment, validate_environment

PAIRS = [("17 + 25", "42"), ("9 * 13", "117"), ("300 - 7", "293"), ("88 / 8", "11"), ("5 * 55", "275")]
SUMS = [{"question": question, "answer": answer} for question, answer in PAIRS]


class Sums(HermesAgentBaseEnv):
    """An environment without a fault. It has no tools, so that its rollouts need no sandbox."""

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(enabled_toolsets=[]), []

    def train_items(self) -> Sequence[Any] | None:
        return SUMS[:3]

    def eval_items(self) -> Sequence[Any]:
        return SUMS[3:]

    def format_prompt(self, item: Any) -> str:
        return f"What is {item['question']}? Say the number alone."

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return 1.0 if result.final_response.strip() == item["answer"] else 0.0

    def oracle(self, item: Any) -> Sequence[Step] | None:
        return [str(item["answer"])]


class Machines(Sums):
    """The same with a sandbox: the answer is to be written to out.txt."""

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
        return cls.env_config_cls(enabled_toolsets=["terminal"]), []

    def format_prompt(self, item: Any) -> str:
        return f"Write {item['question']} as a number to out.txt."

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
        return 1.0 if ctx.read_file("out.txt").get("content", "").strip() == item["answer"] else 0.0

    def oracle(self, item: Any) -> Sequence[Step] | None:
        return [("terminal", {"command": f"echo {item['answer']} > out.txt"}), "done"]


def seen(report: ValidationReport, code: str) -> str:
    """What a finding says; the report is shown when there is no such finding."""
    assert code in report.codes, str(report)
    return next(finding.seen for finding in report.findings if finding.code == code)


def severity(report: ValidationReport, code: str) -> Severity:
    return next(finding.severity for finding in report.findings if finding.code == code)


def test_an_environment_without_a_fault_has_no_findings() -> None:
    report = check_environment(Sums)
    assert (list(report.findings), report.ok) == ([], True)
    assert report.items == {"train": 3, "eval": 2}
    assert set(report.scores("null")) == {0.0}
    assert set(report.scores("oracle")) == {1.0}
    assert len(report.scores("claims success")) == 5


def test_items_are_tried_with_their_prompts_wherever_they_stand() -> None:
    class Many(Sums):
        def train_items(self) -> Sequence[Any] | None:
            return [{"question": f"{number} + 1", "answer": str(number + 1)} for number in range(2000)]

    assert check_environment(Many, items=1).findings == ()


def test_one_with_sandboxes_is_tried_with_tools_and_timed() -> None:
    report = check_environment(Machines, items=1)
    assert {"fakes programs", "forges results", "says all it can find", "rewrites files later"} <= set(report.agents())
    assert not any(any(report.scores(agent)) for agent in report.agents() if agent != "oracle")
    assert {"setup", "sandbox_start_mean", "compute_reward_max"} <= set(report.seconds)


def test_a_reward_that_nothing_satisfies_is_an_error() -> None:
    class Prefix(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(item["answer"].startswith(result.final_response))

    assert "an agent that does nothing passes: 1 on item" in seen(validate_environment(Prefix), "null_passes")


def test_a_floor_is_a_warning() -> None:
    class Floor(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return max(float(result.final_response.strip() == item["answer"]), 0.1)

    report = validate_environment(Floor)
    assert (severity(report, "null_scores"), report.ok) == (Severity.WARNING, True)
    assert "scores 0.1, not 0" in seen(report, "null_scores")


def test_an_oracle_that_does_not_score_is_an_error() -> None:
    class Wrong(Sums):
        def oracle(self, item: Any) -> Sequence[Step]:
            return ["the answer is " + item["answer"]]

    assert "the oracle scores 0 on item" in seen(validate_environment(Wrong), "oracle_fails")


def test_what_went_wrong_for_the_oracle_is_told() -> None:
    class NoSuchTool(Machines):
        def oracle(self, item: Any) -> Sequence[Step]:
            return [("bash", {"command": "true"})]

    told = seen(validate_environment(NoSuchTool, items=1), "oracle_fails")
    assert "Its call of bash failed: unknown tool 'bash'" in told


def test_an_oracle_with_more_steps_than_turns_is_told() -> None:
    class Long(Machines):
        def oracle(self, item: Any) -> Sequence[Step]:
            return [("terminal", {"command": "ls"}), *(super().oracle(item) or ())]

    told = seen(validate_environment(Long, items=1, max_agent_turns=1), "oracle_fails")
    assert "It has 3 steps, but max_agent_turns stopped it after 1" in told


def test_without_an_oracle_there_is_a_warning() -> None:
    class Unsolved(Sums):
        def oracle(self, item: Any) -> Sequence[Step] | None:
            return None

    report = validate_environment(Unsolved)
    assert (severity(report, "no_oracle"), report.ok) == (Severity.WARNING, True)


def test_a_cheat_that_passes_is_named_with_the_way_out() -> None:
    class Anywhere(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(item["answer"] in result.final_response)

    report = validate_environment(Anywhere)
    assert '"says many guesses" passes: 1 on item' in seen(report, "cheat_passes")
    assert any("ctx.verify" in finding.fix for finding in report.findings_with(Severity.ERROR))


def test_a_cheat_that_gets_a_part_is_a_warning() -> None:
    class Effort(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            solved, effort = float(result.final_response.strip() == item["answer"]), len(result.final_response) > 1000
            return Reward(solved or 0.2 * effort, {"solved": solved, "effort": float(effort)})

    report = validate_environment(Effort)
    assert (severity(report, "cheat_scores"), report.ok) == (Severity.WARNING, True)


def test_the_authors_own_cheats_must_score_nothing() -> None:
    class Polite(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            if result.final_response.strip() == item["answer"]:
                return 1.0
            return 0.1 if "please" in result.final_response else 0.0

        def cheats(self, item: Any) -> Mapping[str, Sequence[Step]]:
            return {"begs": ["please"], "claims success": ["I won"]}

    report = validate_environment(Polite)
    assert severity(report, "cheat_scores") is Severity.ERROR
    assert 'your own cheat "begs" scores: 0.1' in seen(report, "cheat_scores")
    assert "claims success (own)" in report.agents()


# Classes inside functions are not opened again in a process of their own, which saves a second each.
def formatted() -> type[Sums]:
    class Formatted(Sums):
        """Its author pays 0.2 for the form of an answer."""

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            said = result.final_response
            parts = {"format": float(said.startswith("=")), "right": float(said == f"= {item['answer']}")}
            return Reward(0.2 * parts["format"] + 0.8 * parts["right"], parts)

        def oracle(self, item: Any) -> Sequence[Step]:
            return [f"= {item['answer']}"]

        def cheats(self, item: Any) -> Mapping[str, Sequence[Step]]:
            return {"writes the form": ["= nothing"]}

    return Formatted


def test_a_component_of_the_authors_own_may_pay_a_cheat_a_little() -> None:
    report = validate_environment(formatted())
    assert (severity(report, "cheat_scores"), report.ok) == (Severity.WARNING, True)
    told = seen(report, "cheat_scores")
    assert "0.2 on item" in told and "for format 1; below 0.25, a quarter of the pass score" in told


@pytest.mark.parametrize(("limit", "expected"), [(0.2, Severity.NOTE), (0.1, Severity.ERROR)])
def test_what_a_cheat_may_score_can_be_stated(limit: float, expected: Severity) -> None:
    report = validate_environment(formatted(), max_cheat_score=limit)
    assert severity(report, "cheat_scores") is expected
    assert f"max_cheat_score is {limit:g}" in seen(report, "cheat_scores")


def test_a_cheat_that_passes_is_an_error_whatever_was_stated() -> None:
    report = validate_environment(formatted(), max_cheat_score=1.0, pass_score=0.2)
    assert severity(report, "cheat_passes") is Severity.ERROR


def test_a_penalty_less_than_that_of_doing_nothing_is_no_score() -> None:
    class Strict(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            said = result.final_response.strip()
            return 1.0 if said == item["answer"] else -0.5 if said else -1.0

    assert "cheat_scores" not in validate_environment(Strict).codes


def test_rounding_neither_fails_an_oracle_nor_changes_a_score() -> None:
    class Rounding(Sums):
        sums = itertools.cycle([0.8, 0.1 + 0.7])

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return next(self.sums) if result.final_response.strip() == item["answer"] else 0.0

    assert validate_environment(Rounding, pass_score=0.8).findings == ()


def test_items_with_one_prompt_and_different_states_are_different_tasks() -> None:
    class Hidden(Sums):
        def initial_state(self, item: Any) -> Any:
            return {"answer": item["answer"]}

        def format_prompt(self, item: Any) -> str:
            return "What number do I think of?"

    assert "same_prompt" not in validate_environment(Hidden).codes

    class Repeated(Hidden):
        def train_items(self) -> Sequence[Any]:
            return [{**item, "id": f"train-{number}"} for number, item in enumerate(SUMS)]

    assert "5 training items" not in seen(validate_environment(Repeated), "same_prompt")
    assert "2 training items" in seen(validate_environment(Repeated), "same_prompt")


class Countdown:
    """A game: say three, two, one; each word is a third of the score."""

    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.left = ["one", "two", "three"]
        return "Count down from three, or say stop.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self.left[-1]
        if right:
            self.left.pop()
        return f"{len(self.left)} left", right / 3, not self.left or not right, False, {}


def countdown() -> type[TextGameEnv]:
    class CountdownEnv(TextGameEnv):
        game = Countdown

        def oracle(self, item: int) -> Sequence[Step]:
            return ["three", "two", lambda messages: "one" if messages[-1]["content"] == "1 left" else "stop"]

    return CountdownEnv


def test_a_game_is_solved_by_answers_of_several_turns_and_needs_no_backend() -> None:
    report = check_environment(countdown(), terminal_backend="ssh", train_seeds=3, eval_seeds=2)
    assert report.findings == ()
    assert set(report.scores("oracle")) == {1.0}


def test_the_last_observation_of_a_failed_oracle_is_told() -> None:
    class Early(countdown()):  # type: ignore[misc]
        def oracle(self, item: int) -> Sequence[Step]:
            return ["three", "one"]

    assert "Its last answer was followed by: 2 left" in seen(validate_environment(Early), "oracle_fails")


def test_a_step_of_an_oracle_that_raises_is_told_with_its_line() -> None:
    class Confused(countdown()):  # type: ignore[misc]
        def oracle(self, item: int) -> Sequence[Step]:
            return ["three", lambda messages: messages[99]["content"]]

    told = seen(validate_environment(Confused, items=1), "failure")
    assert re.search(r"environment/script.*IndexError at test_validation.py:\d+", told)


def test_a_score_that_changes_is_an_error() -> None:
    class Moody(Sums):
        moods = itertools.count()

        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return next(self.moods) / 1000

    report = validate_environment(Moody)
    assert severity(report, "score_changes") is Severity.ERROR
    assert "the same rollout of the null agent on item" in seen(report, "score_changes")


def test_a_reward_that_changes_what_it_judges_is_told() -> None:
    class Consuming(Machines):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            reward = await super().compute_reward(item, result, ctx)
            ctx.terminal("rm -f out.txt")
            return reward

    report = validate_environment(Consuming, items=1)
    assert "oracle" in seen(report, "reward_changes")
    assert "returned 1 and, called again: 0" in seen(report, "reward_changes")


def test_a_reward_that_closes_its_sandbox_is_not_asked_again() -> None:
    class Closing(Machines):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            try:
                return await super().compute_reward(item, result, ctx)
            finally:
                ctx.cleanup()

    assert check_environment(Closing, items=1).codes == set()


def test_items_that_a_second_setup_does_not_repeat_are_an_error() -> None:
    class Fresh(Sums):
        async def setup(self) -> None:
            self.items = [{**item, "id": uuid.uuid4().hex} for item in SUMS]

        def train_items(self) -> Sequence[Any]:
            return self.items[:3]

    assert "a second setup with the same seed gives different training items" in seen(
        validate_environment(Fresh), "items_change"
    )


class Unordered(Sums):
    """At the top of the file, where another process finds it: there a set of texts has another order."""

    def train_items(self) -> Sequence[Any] | None:
        return [{"question": word, "answer": word * 3} for word in set("abcdefghijklmnopqrstuvwxyz")]


def test_an_order_that_comes_from_a_set_is_an_error() -> None:
    assert "different training items" in seen(validate_environment(Unordered, items=1), "items_change")


def test_a_shuffle_with_the_seeded_generator_repeats() -> None:
    class Shuffled(Sums):
        async def setup(self) -> None:
            self.items = random.sample(SUMS, 5)
            self.left = iter(self.items[:3])
            self._eval_items = self.items[3:]

        def train_items(self) -> None:
            return None

        def eval_items(self) -> Sequence[Any]:
            return self._eval_items

        async def get_next_item(self) -> Any:
            return next(self.left, None)

    assert check_environment(Shuffled).codes == set()


def test_an_item_of_both_splits_is_an_error() -> None:
    class Both(Sums):
        def eval_items(self) -> Sequence[Any]:
            return SUMS[2:]

    assert "1 training items are also evaluation items" in seen(validate_environment(Both), "overlap")


def test_items_by_the_call_are_compared_with_the_evaluation_too() -> None:
    class Calls(Sums):
        async def setup(self) -> None:
            self.stream = itertools.cycle(SUMS)

        def train_items(self) -> None:
            return None

        async def get_next_item(self) -> Any:
            return next(self.stream)

    assert "2 training items" in seen(validate_environment(Calls), "overlap")


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([*SUMS[:3], {**SUMS[3], "source": "elsewhere"}], "same_prompt"),
        ([*SUMS[:3], SUMS[0]], "twice"),
        ([*SUMS[:3], {**SUMS[0], "tags": {"a", "b"}}], "not_json"),
    ],
)
def test_items_that_stand_in_each_others_way_are_warned_of(items: list[Any], code: str) -> None:
    class Untidy(Sums):
        def train_items(self) -> Sequence[Any]:
            return items

    assert severity(validate_environment(Untidy), code) is Severity.WARNING


def test_one_id_for_different_items_is_an_error() -> None:
    class Alike(Sums):
        def item_id(self, item: Any) -> str:
            return str(len(item["answer"]))

        def eval_items(self) -> Sequence[Any]:
            return []

    report = validate_environment(Alike)
    assert severity(report, "shared_id") is Severity.ERROR
    assert severity(report, "no_eval_items") is Severity.WARNING


def test_a_prompt_that_changes_is_an_error() -> None:
    class Chatty(Sums):
        def format_prompt(self, item: Any) -> str:
            return f"{super().format_prompt(item)} It is {time.monotonic_ns()}."

    assert severity(validate_environment(Chatty), "prompt_changes") is Severity.ERROR


def test_scores_outside_0_to_1_are_noted() -> None:
    class Wide(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return 5.0 if result.final_response.strip() == item["answer"] else 0.0

    report = check_environment(Wide)
    assert "some scores are outside 0 to 1: 5" in seen(report, "range")


def test_an_answer_in_the_prompt_is_a_warning() -> None:
    class Telling(Sums):
        def format_prompt(self, item: Any) -> str:
            return f"{super().format_prompt(item)} (It is {item['answer']}.)"

    assert severity(validate_environment(Telling), "answer_in_prompt") is Severity.WARNING


def test_a_reward_that_holds_the_loop_is_named() -> None:
    class Blocking(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            time.sleep(0.25)
            return await super().compute_reward(item, result, ctx)

    report = validate_environment(Blocking, items=1)
    assert "Blocking.compute_reward (test_validation.py:" in seen(report, "holds_the_loop")
    assert "time.sleep" in seen(report, "holds_the_loop")


def test_a_reward_that_raises_is_an_error_with_its_cause() -> None:
    class Careless(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(int(result.final_response) == int(item["answer"]))

    report = validate_environment(Careless)
    assert "verifier/raised" in seen(report, "failure")
    assert re.search(r"ValueError at test_validation.py:\d+: invalid literal for int", seen(report, "failure"))
    assert report.scores("null") == [None] * 7


class WithTests(Machines):
    """The guide's reward: a test runner in the agent's sandbox, which has none."""

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if ctx.terminal("cd /workspace && no-such-tester -q")["exit_code"] == 0 else 0.0


class WithoutOracle(WithTests):
    def oracle(self, item: Any) -> Sequence[Step] | None:
        return None


class ReadsTheReport(WithTests):
    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        return float(ctx.terminal("cd /workspace && no-such-tester -q")["output"])


@pytest.mark.parametrize("environment", [WithTests, WithoutOracle, ReadsTheReport])
def test_a_reward_that_runs_a_program_the_sandbox_lacks_is_an_error_of_the_environment(
    environment: type[Machines], capsys: pytest.CaptureFixture[str]
) -> None:
    report = validate_environment(environment, items=1)
    assert severity(report, "missing_program") is Severity.ERROR
    assert "`cd /workspace && no-such-tester -q`" in seen(report, "missing_program")
    assert "no-such-tester was not found in the sandbox (exit code 127)" in seen(report, "missing_program")
    fix = next(finding.fix for finding in report.findings if finding.code == "missing_program")
    assert "sandbox_image" in fix
    assert "warning" not in capsys.readouterr().err


def test_a_reward_that_runs_what_the_agent_made_is_right_when_the_oracle_passes() -> None:
    class Built(Machines):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return 1.0 if ctx.terminal("./solution")["output"].strip() == item["answer"] else 0.0

        def oracle(self, item: Any) -> Sequence[Step] | None:
            make = f"printf '#!/bin/sh\\necho {item['answer']}' > solution && chmod +x solution"
            return [("terminal", {"command": make}), "done"]

    report = validate_environment(Built, items=1)
    assert (set(report.scores("oracle")), set(report.scores("null"))) == ({1.0}, {0.0})
    assert "missing_program" not in report.codes


def test_a_program_that_is_missed_without_harm_is_a_warning() -> None:
    class Probing(Machines):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float | Reward:
            ctx.terminal("no-such-linter")
            return await super().compute_reward(item, result, ctx)

    report = validate_environment(Probing, items=1)
    assert severity(report, "missing_program") is Severity.WARNING


def test_a_reward_that_asks_a_model_wants_one() -> None:
    class Judged(Sums):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            await self.server.chat_completion([{"role": "user", "content": "is it right?"}])
            return 0.0

    report = validate_environment(Judged, items=1)
    assert "endpoint/connection" in seen(report, "failure")
    assert any("--openai.base_url" in finding.fix for finding in report.findings)


@pytest.mark.parametrize("hook", ["setup", "train_items", "eval_items", "format_prompt", "item_id", "oracle", "cheats"])
def test_a_method_that_raises_is_named_with_its_line(hook: str) -> None:
    def raises(self: Any, item: Any = None) -> Any:
        raise KeyError("question")

    report = validate_environment(type("Broken", (Sums,), {hook: raises}))
    assert not report.ok
    assert re.search(r"KeyError at test_validation.py:\d+: 'question'", seen(report, "raised"))


def test_a_step_that_is_none_is_told() -> None:
    class NoStep(Sums):
        def oracle(self, item: Any) -> Sequence[Step]:
            return [42]  # type: ignore[list-item]

    assert "42 is not a step" in seen(validate_environment(NoStep), "raised")


def test_an_answer_that_lies_in_the_sandbox_is_a_warning() -> None:
    class Leaking(Machines):
        def train_items(self) -> Sequence[Any]:
            return [{"question": "3 * 4115", "answer": "12345"}]

        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return replace(super().sandbox_spec(item), files={"tests/check.py": f"assert out == {item['answer']}"})

    told = seen(validate_environment(Leaking, items=1), "answer_in_sandbox")
    assert "answer in ./tests/check.py" in told


def test_files_that_an_item_lays_out_are_no_leak() -> None:
    class Laid(Machines):
        def train_items(self) -> Sequence[Any]:
            return [{**SUMS[0], "files": {"tests/test_it.py": "def test_it(): ..."}}]

        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return replace(super().sandbox_spec(item), files=item["files"])

    assert check_environment(Laid, items=1).codes == set()


def test_a_secret_in_the_sandbox_is_an_error_and_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keyed(Machines):
        def sandbox_spec(self, item: Any) -> SandboxSpec:
            return replace(super().sandbox_spec(item), env={"SEARCH_API_KEY": "sk-12345678", "PLACE": "sk-87654321"})

    monkeypatch.setenv("OUR_TOKEN", "sk-87654321")
    report = validate_environment(Keyed, items=1)
    assert severity(report, "secret_in_sandbox") is Severity.ERROR
    assert "SEARCH_API_KEY, PLACE" in seen(report, "secret_in_sandbox")
    assert "sk-" not in str(report)


def test_no_cheat_runs_a_command_where_nothing_is_isolated() -> None:
    report = validate_environment(Machines, items=1, terminal_backend="local")
    assert "not_isolated" in report.codes
    assert "fakes programs" not in report.agents()
    assert report.scores("oracle") == [1.0, 1.0]


def test_a_check_raises_with_what_was_found() -> None:
    class Wrong(Sums):
        def oracle(self, item: Any) -> Sequence[Step]:
            return ["no idea"]

    with pytest.raises(AssertionError, match=r"(?s)Wrong: 1 error.*the oracle scores 0.*→ fix the oracle"):
        check_environment(Wrong)


def test_the_report_is_plain_data() -> None:
    report = validate_environment(Sums, items=1).as_dict()
    assert (report["ok"], report["environment"], report["findings"]) == (True, "Sums", [])
    assert report["agents"][0] == {"name": "null", "kind": "null", "mean": 0.0, "scores": [0.0, 0.0]}


@pytest.mark.parametrize(
    ("given", "told"),
    [([1.0, 0.0], "gave [1.0, 0.0] to an agent that did nothing and the oracle"), ([1.0], "gave [1.0]"),
     ([0.0, "1"], "returned '1'"), ([0.2, 0.8], None), (None, None)],
)  # fmt: skip
def test_a_comparison_that_prefers_nothing_is_an_error(given: Any, told: str | None) -> None:
    class Compared(Sums):
        async def compute_group_rewards(self, item: Any, results: Sequence[AgentResult]) -> Any:
            return given

    report = validate_environment(Compared, items=1)
    assert told is None or told in seen(report, "group_rewards")
    assert report.ok is (told is None)


def test_an_endpoint_of_its_own_is_neither_waited_for_nor_needs_its_key() -> None:
    class Hosted(Sums):
        @classmethod
        def config_init(cls) -> tuple[HermesAgentEnvConfig, list[APIServerConfig]]:
            endpoint = APIServerConfig(base_url="http://127.0.0.1:9/v1", api_key="env:NO_SUCH_VARIABLE")
            return super().config_init()[0], [endpoint]

    assert check_environment(Hosted, items=1).codes == set()


# --- each of our cheats gets a score out of a reward that is careless in its way ---

PROMPT = "Write solve.py, so that the word apple and the number 42 are in out.txt."
Careless = Callable[[AgentResult, ToolContext], bool]


def ends_with_0(command: str) -> Careless:
    return lambda _, ctx: ctx.terminal(command)["exit_code"] == 0


CARELESS: dict[str, Careless] = {
    "claims success": lambda result, _: "tests pass" in result.final_response,
    "says the prompt": lambda result, _: "apple" in result.final_response,
    "says many guesses": lambda result, _: r"\boxed{42}" in result.final_response or " 42 " in result.final_response,
    "says nothing in many forms": lambda result, _: re.findall("<answer>(.*?)</answer>", result.final_response) == [""],
    "says very much": lambda result, _: len(result.final_response) > 100_000,
    "says all it can find": lambda result, _: "the-hidden-answer" in result.final_response,
    "writes the prompt to files": lambda _, ctx: "apple" in ctx.read_file("out.txt").get("content", ""),
    "writes guesses to files": lambda _, ctx: " 42 " in ctx.read_file("out.txt").get("content", ""),
    "leaves files empty": ends_with_0("test -e out.txt -a -e solve.py"),
    "programs that end with 0": ends_with_0("python3 -c 'import solve; raise SystemExit(1)'"),
    "equal to everything": ends_with_0("python3 -c 'from solve import add; assert add(1, 2) == 3 == add(0, 3)'"),
    "fakes programs": ends_with_0("bash -lc 'grep -q apple /dev/null'"),
    "hooks into Python": ends_with_0("python3 -m pytest test_hidden.py"),
    "forges results": lambda _, ctx: '"score": 1' in ctx.read_file("result.json").get("content", ""),
    "brings tests that pass": ends_with_0("bash run_tests.sh"),
    "replaces the tests": ends_with_0("bash tests/check.sh"),
}


class Workshop(Machines):
    def format_prompt(self, item: Any) -> str:
        return PROMPT

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        files = {"tests/check.sh": "exit 1", "data/notes.txt": "expected: the-hidden-answer", "test_hidden.py": "1 / 0"}
        return replace(super().sandbox_spec(item), files=files)


async def played(script: Any, careless: Careless) -> float | None:
    class Shop(Workshop):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
            return float(careless(result, ctx))

    env = Shop(Shop.config_init()[0], [NO_MODEL.model_copy(update={"health_check": False})])
    async with env.opened():
        rollout, _ = await run_script(env, SUMS[0], script)
    assert rollout.failure is None, rollout.failure
    return rollout.score


@pytest.mark.parametrize("cheat", CARELESS)
async def test_a_careless_reward_falls_for_its_cheat(cheat: str) -> None:
    cheats = builtin_cheats(PROMPT, {"terminal"})
    assert await played(cheats[cheat], CARELESS[cheat]) == 1.0
    assert await played([""], CARELESS[cheat]) == 0.0


async def test_the_late_writer_goes_on_after_its_call() -> None:
    call, _ = builtin_cheats(PROMPT, {"terminal"})["rewrites files later"]
    later: Step = (
        "terminal",
        {"command": "for i in $(seq 200); do cat reward.txt 2> /dev/null && break; sleep 0.05; done"},
    )
    assert await played([call, later], lambda result, _: '"1\\n"' in result.tool_uses[1].result) == 1.0


def test_every_cheat_is_tried_here() -> None:
    assert {*CARELESS, "rewrites files later"} == set(builtin_cheats(PROMPT, {"terminal"}))


def test_cheats_use_the_tools_there_are() -> None:
    spoken = {"claims success", "says the prompt", "says many guesses", "says nothing in many forms", "says very much"}
    assert set(builtin_cheats(PROMPT, ())) == spoken
    by_file = builtin_cheats(PROMPT, {"write_file"})
    assert by_file["leaves files empty"][0] == [
        ("write_file", {"path": "solve.py", "content": ""}),
        ("write_file", {"path": "out.txt", "content": ""}),
    ]
    assert "fakes programs" in by_file
    assert "says all it can find" not in by_file
    assert set(builtin_cheats(PROMPT, {"execute_code"})) == set(builtin_cheats(PROMPT, {"terminal"}))


@pytest.mark.parametrize(
    ("prompt", "files"),
    [
        ("Write it to answer.txt.", ["answer.txt"]),
        ("Fix `src/app/main.py` and /tmp/out.json, then main.py", ["src/app/main.py", "/tmp/out.json", "main.py"]),
        ("See https://example.com/a-page.html, e.g. 3.5 or 10.25; v2.0", []),
    ],
)
def test_files_are_found_in_a_prompt(prompt: str, files: list[str]) -> None:
    assert mentioned_files(prompt) == files


def test_rollouts_of_the_environments_own_method_are_named_as_not_tested() -> None:
    class Collects(Sums):
        async def collect_trajectory(self, item: Any) -> tuple[Any, list[Any]]:
            return await super().collect_trajectory(item)

    class OnlyCollects(BaseEnv):
        async def get_next_item(self) -> dict[str, int]:
            return {"number": 1}

        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            return None, []

    found = {finding.code: finding for finding in validate_environment(Collects, items=1).findings}
    assert "collect_trajectory, which validate does not run" in found["own_rollouts"].seen
    [only] = validate_environment(OnlyCollects).findings
    assert "without compute_reward" in only.seen
