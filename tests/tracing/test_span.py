import asyncio

import pytest

from hermes_rl.core.errors import SandboxError
from hermes_rl.tracing.span import (
    NO_SPAN,
    current_span,
    group_span,
    headers,
    read_traceparent,
    remote_span,
    span,
    use_span,
)
from tests.tracing.keeping import Kept

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_where_no_span_is_current_there_is_nothing() -> None:
    with span("turn", (1,)) as begun:
        begun.set_attributes(any_thing=1)
    assert begun is NO_SPAN and current_span() is None


def test_a_span_is_inside_the_one_that_is_current() -> None:
    kept = Kept()
    with kept.root() as root, span("rollout"), span("turn", (1,)):
        pass
    turn, rollout, process = kept.records
    assert (turn[2], rollout[2], process[1], process[2]) == (rollout[1], root.id, root.id, 0)


def test_rounds_of_a_loop_are_spans_beside_each_other() -> None:
    kept = Kept()
    with kept.root() as root, span("turn", (1,)) as turn:
        with span("chat"):
            pass
        turn.restart((2,))
        with span("chat"):
            pass
    first_chat, first, second_chat, second, _ = kept.records
    assert [first_chat[2], second_chat[2]] == [first[1], second[1]]
    assert (first[2], second[2], first[6], second[6]) == (root.id, root.id, (1,), (2,))


async def test_tasks_that_run_at_once_do_not_see_each_others_spans() -> None:
    kept = Kept()

    async def rollout(number: int) -> None:
        with span("rollout", {"rollout": number}):
            await asyncio.sleep(0)
            with span("turn", (number,)):
                await asyncio.sleep(0)

    with kept.root():
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(rollout(number))
    rollouts = {record[1]: record[6]["rollout"] for record in kept.records if record[3] == "rollout"}
    assert {record[6][0]: rollouts[record[2]] for record in kept.records if record[3] == "turn"} == {
        number: number for number in range(8)
    }


def test_an_exception_is_told_by_its_kind_and_not_by_its_words() -> None:
    kept = Kept()
    with kept.root(), pytest.raises(SandboxError), span("sandbox"):
        raise SandboxError("start_timeout", "the words of somebody's conversation")
    assert kept.records[0][7] == "sandbox/start_timeout"
    assert "words of" not in repr(kept.records)


def test_only_a_span_that_waits_for_another_process_is_told_to_it() -> None:
    kept = Kept()
    with kept.root():
        assert not headers()
        with span("chat") as chat:
            assert chat.on
            assert headers() == {"traceparent": f"00-{chat.trace.id}-{chat.id:016x}-01"}


def test_of_a_share_of_groups_the_others_are_not_traced_at_all() -> None:
    kept = Kept(sample_rate=0.0)
    with kept.root(), group_span({"group": "g"}) as group, span("rollout") as rollout:
        pass
    assert (group, rollout, len(kept.records)) == (NO_SPAN, NO_SPAN, 1)


def test_a_span_that_another_task_began_can_be_made_current() -> None:
    kept = Kept()
    with kept.root() as root:
        pass
    with use_span(root), span("chat"):
        pass
    assert kept.records[1][2] == root.id


def test_a_request_joins_the_trace_of_its_caller() -> None:
    kept = Kept()
    with remote_span(kept, PARENT, "request", {"method": "POST"}):
        pass
    assert kept.records[0][0] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert kept.records[0][2] == 0x00F067AA0BA902B7


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        "00-0-0-01",
        PARENT[:-1],
        PARENT[:-2] + "00",
        PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", "0" * 32),
        "ff" + PARENT[2:],
        "-" * 5000,
    ],
)
def test_a_header_that_names_no_traced_span_is_none(text: str | None) -> None:
    assert read_traceparent(text) is None
