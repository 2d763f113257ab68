"""What a group of a real environment leaves in a trace: real sandboxes, real tools, a scripted model."""

import json
from collections import Counter
from typing import Any

from tests.rollout.external.programs import SMALL, writes_the_number
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import Calls, ScriptedModel, Status, Text, always
from tests.tracing.keeping import Kept, attributes


def writes_its_number(request: dict[str, Any]) -> Calls | Text:
    if request["messages"][-1]["role"] == "tool":
        return Text("Done, and nobody else is to read this.")
    number = request["messages"][-1]["content"].split()[-1]
    return Calls([("terminal", json.dumps({"command": f"printf {number} > answer"}))])


async def group_traced(script: Any, kept: Kept, **config: Any) -> None:
    async with ScriptedModel(script) as model, opened(FileEnv, model, rollout_retries=0, group_size=2, **config) as env:
        with kept.root():
            await env.collect_group({"number": 7})


async def test_every_step_of_a_rollout_is_a_span() -> None:
    kept = Kept()
    await group_traced(writes_its_number, kept)
    assert Counter(span.name for span in kept.exported()) == {
        "process": 1,
        "group": 1,
        "invoke_agent FileEnv": 2,
        "turn": 4,
        "chat scripted": 4,
        "execute_tool terminal": 4,
        "start_sandbox": 2,
        "compute_reward": 2,
    }


async def test_all_spans_of_a_group_are_joined() -> None:
    kept = Kept()
    await group_traced(writes_its_number, kept)
    ids = {record[1] for record in kept.records}
    assert [record[3] for record in kept.records if record[2] not in ids] == ["process"]
    assert len({record[0] for record in kept.records}) == 1


async def test_what_a_program_asks_the_model_is_inside_its_own_rollout() -> None:
    kept = Kept()
    await group_traced(writes_the_number, kept, **SMALL)
    rollouts = [record[1] for record in kept.records if record[3] == "rollout"]
    asked_by = Counter(record[2] for record in kept.records if record[3] == "chat")
    assert len(rollouts) == 2 and asked_by == dict.fromkeys(rollouts, 2)


async def test_a_rollout_tells_its_score_and_tokens() -> None:
    kept = Kept()
    await group_traced(writes_its_number, kept)
    told = attributes(kept.by_name()["invoke_agent FileEnv"])
    assert told["gen_ai.evaluation.score.value"] == 1.0
    assert told["gen_ai.operation.name"] == "invoke_agent"
    assert told["gen_ai.usage.output_tokens"] > 0


async def test_a_rollout_that_failed_says_whose_fault_it_was() -> None:
    kept = Kept()
    await group_traced(always(Status(500)), kept)
    told = kept.by_name()
    assert attributes(told["invoke_agent FileEnv"])["error.type"] == "endpoint/http_500"
    assert attributes(told["chat scripted"])["error.type"] == "endpoint/http_500"


async def test_no_words_of_the_conversation_are_exported_unless_asked_for() -> None:
    kept, asked = Kept(), Kept(content=True)
    await group_traced(writes_its_number, kept)
    await group_traced(writes_its_number, asked)
    assert "nobody else" not in repr(kept.records) and "printf" not in repr(kept.records)
    assert "nobody else" in repr(asked.records) and "printf" in repr(asked.records)
