"""Rollouts of an environment on a token engine: sequences in the record, breaches counted, chat mode as before."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hermes_rl import AgentResult, APIServerConfig, ConfigError, HermesAgentEnvConfig, Reward, ScriptedUser, ToolContext
from hermes_rl.core.trajectory import StopReason
from hermes_rl.rollout.metrics import RolloutCounts
from hermes_rl.store.codec import encode
from hermes_rl.store.records import atropos_columns, group_from_record, group_to_record
from hermes_rl.training.batch import training_batch
from hermes_rl.training.config import TrainerSettings
from tests.support.chat_models import chat_model
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, Text
from tests.support.token_servers import Altered, Asked, Tokens, VLLMServer

MODEL = chat_model("chatml")


def call(command: str) -> str:
    arguments = json.dumps({"name": "terminal", "arguments": {"command": command}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


def ids(text: str) -> tuple[int, ...]:
    return (*MODEL.tokenizer.encode(text, add_special_tokens=False), MODEL.stop_ids[0])


def writes_the_number(asked: Asked) -> Tokens:
    """Write the number of the prompt into the file, then say so."""
    text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
    number, _, rest = text.split("<|im_start|>user\nwrite ")[1].partition("<|im_end|>")
    return Tokens(ids("Done." if "tool_response" in rest else call(f"echo {number} > answer")))


@asynccontextmanager
async def exact(
    server: VLLMServer, tmp_path: Path, *, kind: type[FileEnv] = FileEnv, **config: Any
) -> AsyncIterator[FileEnv]:
    folder = MODEL.save(tmp_path / "tokenizer")
    endpoint = APIServerConfig.model_validate(
        {"base_url": server.base_url, "model_name": "scripted", "server_type": "vllm", "max_retries": 0, "timeout": 20}
    )
    settings = {"tokenizer_name": str(folder), "group_size": 2, "terminal_backend": "bubblewrap", **config}
    env = kind(HermesAgentEnvConfig.model_validate(settings), [endpoint])
    async with env.opened():
        yield env


async def test_a_rollout_with_tools_has_its_tokens_in_the_record(tmp_path: Path) -> None:
    async with VLLMServer(writes_the_number) as server, exact(server, tmp_path) as env:
        group = await env.collect_group({"number": 7})
    assert [rollout.score for rollout in group.rollouts] == [1.0, 1.0]
    for rollout in group.rollouts:
        [sequence] = rollout.sequences
        sampled = tuple(token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept)
        assert sampled == (*ids(call("echo 7 > answer")), *ids("Done."))
        assert rollout.stop_reason is StopReason.NATURAL
        assert rollout.messages[-1] == {"role": "assistant", "content": "Done."}
    assert group_from_record(json.loads(json.dumps(group_to_record(group)))) == group


async def test_the_words_of_a_user_are_no_tokens_to_train_on(tmp_path: Path) -> None:
    class Talking(FileEnv):
        user = ScriptedUser(["and now?"])

    def answers(asked: Asked) -> Tokens:
        text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
        return Tokens(ids("two" if "and now?" in text else "one"))

    async with VLLMServer(answers) as server, exact(server, tmp_path, kind=Talking, group_size=1) as env:
        [rollout] = (await env.collect_group({"number": 7})).rollouts
    [sequence] = rollout.sequences
    pairs = list(zip(sequence.tokens, sequence.mask, strict=True))
    assert tuple(token for token, kept in pairs if kept) == (*ids("one"), *ids("two"))
    others = MODEL.tokenizer.decode([token for token, kept in pairs if not kept], skip_special_tokens=False)
    assert "<|im_start|>user\nand now?<|im_end|>" in others


async def test_the_form_of_atropos_is_derived_from_the_sequences(tmp_path: Path) -> None:
    async with VLLMServer(writes_the_number) as server, exact(server, tmp_path) as env:
        group = await env.collect_group({"number": 7})
    columns = atropos_columns(group)
    for rollout, tokens, mask, logprobs in zip(
        group.scored, columns["tokens"], columns["masks"], columns["inference_logprobs"], strict=True
    ):
        [sequence] = rollout.sequences
        assert tuple(tokens) == sequence.tokens
        assert [token for token in mask if token != -100] == [
            token for token, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept
        ]
        assert [one for one in logprobs if one != 1.0] == [one for one in sequence.logprobs if one is not None]
    assert columns["generation_params"] == {"temperature": 1.0, "top_p": None, "top_k": None, "logprobs": "raw"}


async def test_tools_are_told_in_the_prompt_of_a_template_that_has_no_place_for_them(tmp_path: Path) -> None:
    async with VLLMServer(writes_the_number) as server, exact(server, tmp_path) as env:
        await env.collect_group({"number": 7})
        prompt = MODEL.tokenizer.decode(server.bodies[0]["token_ids"], skip_special_tokens=False)
    assert '"terminal"' in prompt
    assert "<tool_call>" in prompt


async def test_an_environment_that_teaches_its_tool_itself_turns_that_off(tmp_path: Path) -> None:
    async with VLLMServer(writes_the_number) as server, exact(server, tmp_path, tool_prompt=False) as env:
        group = await env.collect_group({"number": 7})
        prompt = MODEL.tokenizer.decode(server.bodies[0]["token_ids"], skip_special_tokens=False)
    assert "terminal" not in prompt
    assert group.scores == [1.0, 1.0]


async def test_a_breach_is_counted_and_kept_with_its_evidence_and_costs_no_score(tmp_path: Path) -> None:
    def lies(asked: Asked) -> Altered:
        return Altered(writes_the_number(asked), lambda answer: {**answer, "prompt_token_ids": [1, 2, 3]})

    async with VLLMServer(lies) as server, exact(server, tmp_path, ensure_scores_are_not_same=False) as env:
        group = await env.collect_group({"number": 7})
    tally = RolloutCounts()
    tally.add(group)
    assert tally.breaches == {"prompt_ids": 2}
    assert tally.summary()["token_breaches"] == {"prompt_ids": 2}
    for rollout in group.rollouts:
        assert (rollout.score, rollout.sequences, rollout.withheld) == (1.0, (), "no_tokens")
        assert rollout.metadata["breaches"][0]["evidence"]["kept"] == [1, 2, 3]
    assert group.withheld == "too_few_scored"


async def test_a_full_context_ends_a_rollout_by_its_own_reason(tmp_path: Path) -> None:
    async with (
        VLLMServer(lambda _: Tokens(ids("word " * 5000)), context=2048) as server,
        exact(server, tmp_path, max_token_length=100_000) as env,
    ):
        group = await env.collect_group({"number": 7})
    assert {rollout.stop_reason for rollout in group.rollouts} == {StopReason.CONTEXT_FULL}


async def test_compaction_begins_a_second_sequence_and_trains_every_token_once(tmp_path: Path) -> None:
    def looks_often(asked: Asked) -> Tokens:
        turns = asked.prompt.count(ids("")[0])
        return Tokens(ids(call(f"seq {turns * 100} {turns * 100 + 60}")))

    settings: dict[str, Any] = {"compaction": "drop_results", "max_context_tokens": 3000, "max_agent_turns": 9}
    async with VLLMServer(looks_often) as server, exact(server, tmp_path, **settings) as env:
        group = await env.collect_group({"number": 7})
    for rollout in group.rollouts:
        sampled = sum(sum(sequence.mask) for sequence in rollout.sequences)
        assert len(rollout.sequences) > 1
        assert sampled == rollout.usage.completion_tokens
        assert "breaches" not in rollout.metadata


async def test_turn_scores_meet_the_tokens_of_their_turn_over_several_sequences(tmp_path: Path) -> None:
    """From the environment to the trainer: each turn has an advantage of its own, and compaction moves none."""

    def looks_often(asked: Asked) -> Tokens:
        turns = asked.prompt.count(ids("")[0])
        return Tokens(ids(call(f"seq {turns * 100} {turns * 100 + 60}")))

    class Scored(FileEnv):
        async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> Reward:
            first = not self.seen
            self.seen.append(result)
            return Reward(0.0, turns=tuple(float(first) for _ in range(result.turns_used)))

        seen: ClassVar[list[AgentResult]] = []

    settings: dict[str, Any] = {"compaction": "drop_results", "max_context_tokens": 3000, "max_agent_turns": 9}
    settings["ensure_scores_are_not_same"] = False
    async with VLLMServer(looks_often) as server, exact(server, tmp_path, kind=Scored, **settings) as env:
        group = await env.collect_group({"number": 7})
    assert [rollout.turns_used for rollout in group.rollouts] == [9, 9]
    assert all(len(rollout.sequences) > 1 for rollout in group.rollouts)
    batch = training_batch([encode(group)], TrainerSettings(per_turn=True), 0)
    assert not batch.excluded
    best = next(index for index, rollout in enumerate(group.rollouts) if sum(rollout.turn_scores))
    examples = [
        example for example, origin in zip(batch.examples, batch.origins, strict=True) if origin.outcome.rollout == best
    ]
    found = [value for example in examples for value, _ in groupby(example.advantages[example.mask == 1])]
    assert found == [turns_left / 2 for turns_left in range(9, 0, -1)]


async def test_a_call_that_cannot_be_read_beside_one_that_can_is_answered_and_the_stream_goes_on(
    tmp_path: Path,
) -> None:
    both = f'{call("echo 7 > answer")}\n<tool_call>\n{{"name": "terminal", "argum\n</tool_call>'

    def calls_twice(asked: Asked) -> Tokens:
        text = MODEL.tokenizer.decode(asked.prompt, skip_special_tokens=False)
        return Tokens(ids("Done." if "could not be read" in text else both))

    async with VLLMServer(calls_twice) as server, exact(server, tmp_path) as env:
        group = await env.collect_group({"number": 7})
    for rollout in group.rollouts:
        assert rollout.score == 1.0
        assert [use.error is None for use in rollout.tool_uses] == [True, False]
        [sequence] = rollout.sequences
        assert sum(sequence.mask) == len(ids(both)) + len(ids("Done."))


async def test_a_call_that_cannot_be_read_alone_ends_the_rollout(tmp_path: Path) -> None:
    broken = Tokens(ids('<tool_call>\n{"name": ter</tool_call>'))
    async with VLLMServer(lambda _: broken) as server, exact(server, tmp_path) as env:
        group = await env.collect_group({"number": 7})
    assert {rollout.stop_reason for rollout in group.rollouts} == {StopReason.UNPARSED_TOOL_CALL}
    assert all(len(rollout.sequences) == 1 for rollout in group.rollouts)


@pytest.mark.parametrize(
    ("settings", "told"),
    [({"renderer": "no-such"}, "no-such"), ({"extra_body": {"tempreature": 1}}, "tempreature")],
)
async def test_settings_that_no_rollout_could_keep_are_refused_when_it_opens(
    tmp_path: Path, settings: dict[str, Any], told: str
) -> None:
    async with VLLMServer(writes_the_number) as server:
        with pytest.raises(ConfigError, match=told):
            async with exact(server, tmp_path, **settings):
                pass


async def test_chat_mode_has_no_sequences_and_is_saved_and_scored(tmp_path: Path) -> None:
    async with ScriptedModel(lambda _: Text("no tokens here")) as model, opened(FileEnv, model, group_size=2) as env:
        group = await env.collect_group({"number": 7})
    assert env.tokenizer is None
    assert [rollout.sequences for rollout in group.rollouts] == [(), ()]
    assert group_to_record(group)["tokens"] is None
    assert group.scores == [0.0, 0.0]
