"""samples.jsonl's lines, made from groups.jsonl one group at a time: an evaluation may be larger than memory."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from hermes_rl import jsontext
from hermes_rl.environment.contract import Environment
from hermes_rl.messages import final_response
from hermes_rl.store.records import group_of, rollout_record
from hermes_rl.trajectory import Group


class Samples(Sequence[dict[str, Any]]):
    """A sample for each rollout of these items, in the items' order, whatever order the file has them in."""

    def __init__(
        self, env: Environment, path: Path, items: Mapping[str, Any], places: Sequence[tuple[int, int]]
    ) -> None:
        self._env, self._path, self._items = env, path, items
        self._places = places

    @classmethod
    async def of(cls, env: Environment, path: Path, items: Mapping[str, Any]) -> "Samples":
        """Find where each item's group begins; the event loop has its turn after every line."""
        found: dict[str, tuple[int, int]] = {}
        at = 0
        with path.open("rb") as lines:
            for line in lines:
                record = jsontext.loads(line)
                found[record["item_id"]] = (at, len(record["rollouts"]))
                at += len(line)
                await asyncio.sleep(0)
        return cls(env, path, items, [found[item] for item in items if item in found])

    def __len__(self) -> int:
        return sum(rollouts for _, rollouts in self._places)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with self._path.open("rb") as lines:
            for offset, _ in self._places:
                lines.seek(offset)
                group = group_of(jsontext.loads(lines.readline()))
                yield from samples_of(self._env, group, self._items[group.item_id])

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return list(self)[index]


def samples_of(env: Environment, group: Group, item: Any) -> Iterator[dict[str, Any]]:
    """Lines of samples.jsonl: the prompt, the answer and the reward at a glance, then the whole rollout."""
    for rollout in group.rollouts:
        work = rollout.messages[rollout.metadata.get("prompt_length", 0) :]
        yield {
            "prompt": _prompt(env, item),
            "response": final_response(work),
            "reward": rollout.score,
            "item": group.item,
            **rollout_record(rollout),
        }


def _prompt(env: Environment, item: Any) -> str | None:
    """None where the author's code raises; its rollouts have failed by it and say so."""
    try:
        return env.format_prompt(item)
    except Exception:  # noqa: BLE001
        return None
