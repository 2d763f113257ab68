"""Collect the items of an open environment, and check them without rollouts."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.messages import Message
from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rollout.rollout import prompt_of
from hermes_rl.rollout.sampler import content_id
from hermes_rl.tools.selection import OWN_TOOLS
from hermes_rl.validation.report import Severity, ValidationFinding, join_names, shorten

# Limits on calls of get_next_item, in number and seconds. Of train_items all items are checked.
DRAWS, DRAW_SECONDS = 50, 5.0
# Maximum items with a prompt.
PROMPTS = 500
# Fields that only tell items apart.
ID_FIELDS = frozenset({"id", "uid", "uuid", "item_id", "task_id"})


class HookError(Exception):
    """A method of the environment raised; the message has its name, the error and the line."""


@contextmanager
def hook_errors(hook: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, HookError):
        raise
    except HermesRLError as error:
        raise HookError(f"{hook}: {error}") from error
    except Exception as error:
        raise HookError(f"{hook} raised {describe_error(error)}") from error


@dataclass(frozen=True, slots=True)
class CheckedItem:
    value: Any
    id: str
    content: str
    split: str
    messages: Sequence[Message]

    @property
    def prompt(self) -> str:
        """The last message, which has the environment's prompt."""
        return str(self.messages[-1].get("content") or "") if self.messages else ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """`train` has all training items, or the first draws from get_next_item."""

    train: Sequence[CheckedItem] = ()
    held_out: Sequence[CheckedItem] = ()
    random_access: bool = False
    first: Sequence[CheckedItem] = field(default_factory=list)
    """The first distinct items that training would draw."""

    def chosen(self, count: int) -> list[CheckedItem]:
        """The items to test: three training items to two held-out ones, if available."""
        held_out = _distinct(self.held_out)
        train = self.first[: count - min(count * 2 // 5, len(held_out))]
        return [*train, *held_out[: count - len(train)]]

    def outline(self) -> "Outline":
        return Outline(
            [item.id for item in (self.first if self.random_access else self.train)],
            [item.id for item in self.held_out],
            {item.id: content_id(item.messages) for item in self.chosen(DRAWS) if item.messages},
        )


@dataclass(frozen=True, slots=True)
class Outline:
    """What must be equal in another instance of the environment: ids in order, prompts by id."""

    train: list[str]
    held_out: list[str]
    prompts: dict[str, str]


async def take_inventory(env: HermesAgentBaseEnv) -> Inventory:
    """HookError when a method of the environment raises."""
    with hook_errors("train_items"):
        given = env.train_items()
    with hook_errors("eval_items"):
        held_out = await _items(env, env.eval_items(), "eval")
    if given is None:
        train = await _items(env, await _draws(env), "train")
        return Inventory(train, held_out, random_access=False, first=_distinct(train))
    train = await _items(env, given, "train")
    if not train:
        raise HookError("train_items returned no items")
    ids = [item.id for item in train]
    with hook_errors("sampler"):
        sampler = env.sampler()
        indices = [sampler.choose(number, ids, env.item_rewards, env.config.seed) for number in range(DRAWS)]
    # Created again, because `train` has prompts only for its first PROMPTS items.
    first = _distinct(await _items(env, [train[index].value for index in indices], "train"))
    return Inventory(train, held_out, random_access=True, first=first)


async def _draws(env: HermesAgentBaseEnv) -> list[Any]:
    drawn: list[Any] = []
    deadline = time.monotonic() + DRAW_SECONDS
    with hook_errors("get_next_item"), env.running():
        while len(drawn) < DRAWS and time.monotonic() < deadline:
            item = await bridged(env.get_next_item())
            if item is None:
                break
            drawn.append(item)
    if not drawn:
        raise HookError("the first get_next_item returned None: there are no training items")
    return drawn


async def _items(env: HermesAgentBaseEnv, values: Sequence[Any], split: str) -> list[CheckedItem]:
    items = []
    for index, value in enumerate(values):
        with hook_errors("item_id"):
            item_id = env.item_id(value)
        messages: Sequence[Message] = ()
        if index < PROMPTS:
            with hook_errors("format_prompt"):
                messages = await prompt_of(env, value)
        items.append(CheckedItem(value, item_id, content_id(value), split, messages))
    return items


def _distinct(items: Sequence[CheckedItem]) -> list[CheckedItem]:
    """The first of each id."""
    first: dict[str, CheckedItem] = {}
    for item in items:
        first.setdefault(item.id, item)
    return list(first.values())


async def item_findings(env: HermesAgentBaseEnv, inventory: Inventory) -> list[ValidationFinding]:
    with hook_errors("format_prompt"):
        again = {item.id: await prompt_of(env, item.value) for item in inventory.chosen(DRAWS)}
    hidden = _has_hidden_state(env)
    return [*_overlap(inventory, hidden=hidden), *_ids(inventory), *_json(inventory), *_prompts(inventory, again)]


def _prompts(inventory: Inventory, again: Mapping[str, Sequence[Message]]) -> Iterator[ValidationFinding]:
    changed = [item.id for item in inventory.chosen(DRAWS) if again[item.id] != item.messages]
    if changed:
        yield ValidationFinding(
            Severity.ERROR,
            "prompt_changes",
            f"the prompt of item {join_names(changed)} changes when it is created again",
            "make format_prompt, initial_messages and initial_state depend only on the item; put randomness into the "
            "item",
        )
    if not inventory.held_out:
        yield ValidationFinding(
            Severity.WARNING,
            "no_eval_items",
            "there are no evaluation items",
            "define eval_items(), or set self._eval_items in setup, with items that training never draws",
        )


def _has_hidden_state(env: HermesAgentBaseEnv) -> bool:
    """Whether more than the prompt can tell two items apart: a state, files, tools that know the item, or a user."""
    own_tools = env.tools.toolsets[OWN_TOOLS].tools
    return bool(own_tools) or has_user_turns(env) or env.overrides("initial_state") or env.overrides("sandbox_spec")


def has_user_turns(env: HermesAgentBaseEnv) -> bool:
    """Whether a user, or a game, may reply to the agent's answers."""
    return env.user is not None or env.overrides("simulated_user") or env.overrides("next_user_message")


def _overlap(inventory: Inventory, *, hidden: bool) -> Iterator[ValidationFinding]:
    held_out = {item.id for item in inventory.held_out}
    both = list(dict.fromkeys(item.id for item in inventory.train if item.id in held_out))
    if both:
        yield ValidationFinding(
            Severity.ERROR,
            "overlap",
            f"{len(both)} training items are also evaluation items: {join_names(both)}",
            "split the items once, in setup, between train_items and eval_items; otherwise the evaluation measures "
            "memorization, and training stops at such an item",
        )
    tasks = {_task(item, hidden=hidden) for item in inventory.held_out if item.messages}
    same = [item.id for item in inventory.train if item.id not in held_out and _task(item, hidden=hidden) in tasks]
    if same:
        yield ValidationFinding(
            Severity.WARNING,
            "same_prompt",
            f"{len(same)} training items have the prompt of an evaluation item under another id: {join_names(same)}",
            "remove duplicates before the split, or make item_id depend only on the question",
        )


def _task(item: CheckedItem, *, hidden: bool) -> str:
    """What makes two items the same task: the prompt, and where the agent can find out more, the rest of the item."""
    value = item.value
    if isinstance(value, Mapping):
        value = {name: part for name, part in value.items() if str(name).lower() not in ID_FIELDS} or value
    return f"{item.messages}{content_id(value) if hidden else ''}"


def _ids(inventory: Inventory) -> Iterator[ValidationFinding]:
    contents: dict[str, set[str]] = {}
    for item in (*inventory.train, *inventory.held_out):
        contents.setdefault(item.id, set()).add(item.content)
    shared = [item_id for item_id, different in contents.items() if len(different) > 1]
    if shared:
        yield ValidationFinding(
            Severity.ERROR,
            "shared_id",
            f"different items share an id: {join_names(shared)}",
            "make item_id unique; pass rates, resuming and evaluation identify items by it",
        )
    counts = Counter(item.id for item in inventory.train) if inventory.random_access else Counter[str]()
    duplicates = [item_id for item_id, count in counts.items() if count > 1 and item_id not in shared]
    if duplicates:
        yield ValidationFinding(
            Severity.WARNING,
            "twice",
            f"{len(duplicates)} items are in train_items more than once: {join_names(duplicates)}",
            "remove the duplicates, or they are drawn more often than the others",
        )


def _json(inventory: Inventory) -> Iterator[ValidationFinding]:
    for item in inventory.chosen(DRAWS):
        try:
            orjson.dumps(item.value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            yield ValidationFinding(
                Severity.WARNING,
                "not_json",
                f"item {item.id} cannot be written as JSON ({error}): {shorten(item.value)}",
                "use dicts, lists, strings and numbers for items: rescore and replay read them back from the record",
            )
            return


def repetition_findings(first: Outline, second: Outline) -> Iterator[ValidationFinding]:
    """Differences between two instances with the same seed."""
    # Draws stop after a time limit, so only those that both have are compared.
    drawn = min(len(first.train), len(second.train))
    for what, hook, before, after in (
        ("training items", "get_next_item or train_items", first.train[:drawn], second.train[:drawn]),
        ("evaluation items", "eval_items", first.held_out, second.held_out),
    ):
        if before == after:
            continue
        shortest = min(len(before), len(after))
        start = next((index for index in range(shortest) if before[index] != after[index]), shortest)
        old, new = (join_names(ids[start : start + 3], 3) or "none" for ids in (before, after))
        yield ValidationFinding(
            Severity.ERROR,
            "items_change",
            f"a second setup with the same seed gives different {what}, from number {start} on ({old} then {new})",
            f"make {hook} depend only on the dataset and self.config.seed: shuffle with the global `random`, which is "
            "seeded around setup, or random.Random(self.config.seed); sort values from a set; no times, counters or "
            "hash() in ids",
        )
    changed = [name for name, prompt in first.prompts.items() if second.prompts.get(name, prompt) != prompt]
    if changed:
        yield ValidationFinding(
            Severity.ERROR,
            "prompt_changes",
            f"a second instance gives a different prompt for item {join_names(changed)}",
            "make format_prompt and initial_messages depend only on the item; put randomness into the item",
        )
