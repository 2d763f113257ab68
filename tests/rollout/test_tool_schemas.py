"""The tools that external agents offered: once for the group, and with a rollout only where they differ."""

from collections import Counter
from typing import Any

from hermes_rl.core.trajectory import Group, Provenance, Rollout, StopReason, merge_schemas
from hermes_rl.store.export import Sft


def schema(name: str, about: str = "") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": {}}}


def rollout(*schemas: dict[str, Any], index: int = 0) -> Rollout:
    metadata: dict[str, Any] = {"prompt_length": 1, **({"tool_schemas": list(schemas)} if schemas else {})}
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return Rollout(
        item_id="i",
        index=index,
        seed=0,
        messages=messages,
        score=1.0,
        stop_reason=StopReason.NATURAL,
        metadata=metadata,
    )


def test_equal_tools_are_kept_once() -> None:
    schemas, rollouts = merge_schemas([], [rollout(schema("a"), schema("b")), rollout(schema("a"), schema("b"))])
    assert schemas == [schema("a"), schema("b")]
    assert ["tool_schemas" in one.metadata for one in rollouts] == [False, False]


def test_a_rollout_with_other_tools_keeps_them() -> None:
    other = rollout(schema("a", "changed"), schema("c"))
    schemas, rollouts = merge_schemas([], [rollout(schema("a")), other])
    assert schemas == [schema("a"), schema("c")]
    assert rollouts[1] == other


def test_tools_of_our_loop_are_left_as_they_are() -> None:
    ours = [rollout()]
    assert merge_schemas([schema("a")], ours) == ([schema("a")], ours)


def test_an_exported_row_has_the_tools_of_its_rollout() -> None:
    schemas, rollouts = merge_schemas([], [rollout(schema("a")), rollout(schema("c"), index=1)])
    provenance = Provenance("e", "h", "m", {})
    group = Group(item_id="i", item=1, rollouts=tuple(rollouts), provenance=provenance, tool_schemas=tuple(schemas))
    assert [row["tools"] for row in Sft().rows(group, Counter())] == [[schema("a")], [schema("c")]]
