"""The items of an open environment, and what can be told about them without a rollout."""

import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from hermes_rl.environment.base import HermesAgentBaseEnv
from hermes_rl.environment.items import content_id
from hermes_rl.environment.validation.report import Finding, Severity, listed, shown
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.messages import Message
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.watchdog import is_authors

# Calls of get_next_item, and the seconds they may take; of train_items all are looked at.
DRAWS, DRAWING_SECONDS = 50, 5.0
# Items whose prompts are compared.
PROMPTS = 500


class HookError(Exception):
    """A method of the author's raised; the text says which, what and where."""


@contextmanager
def asking(hook: str) -> Iterator[None]:
    try:
        yield
    except (ConfigError, HookError):
        raise
    except HermesRLError as error:
        raise HookError(f"{hook}: {error}") from error
    except Exception as error:
        raise HookError(f"{hook} raised {type(error).__name__}: {error}{place_of(error)}") from error


@dataclass(frozen=True, slots=True)
class Item:
    value: Any
    id: str
    content: str
    split: str
    messages: Sequence[Message]

    @property
    def prompt(self) -> str:
        """The author's prompt, which is the last message."""
        return str(self.messages[-1].get("content") or "") if self.messages else ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """`train` are all training items, or the first draws when they come from get_next_item."""

    train: Sequence[Item] = ()
    held_out: Sequence[Item] = ()
    random_access: bool = False
    first: Sequence[Item] = field(default_factory=list)
    """The first different items that training would draw."""

    def chosen(self, count: int) -> list[Item]:
        """The items to try: three of training to two held out, as far as there are any."""
        held_out = _different(self.held_out)
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
    """What another instance of the environment must have in the same way: ids in their order, prompts by id."""

    train: list[str]
    held_out: list[str]
    prompts: dict[str, str]


async def take_inventory(env: HermesAgentBaseEnv) -> Inventory:
    """HookError when a method of the author's raises."""
    with asking("train_items"):
        given = env.train_items()
    with asking("eval_items"):
        held_out = _items(env, env.eval_items(), "eval")
    if given is None:
        train = _items(env, await _draws(env), "train")
        return Inventory(train, held_out, random_access=False, first=_different(train))
    train = _items(env, given, "train")
    if not train:
        raise HookError("train_items gave no items")
    ids = [item.id for item in train]
    with asking("sampler"):
        sampler = env.sampler()
        places = [sampler.choose(number, ids, env.pass_rates, env.config.seed) for number in range(DRAWS)]
    # Made anew: one beyond the first PROMPTS has no prompt in `train`.
    first = _different(_items(env, [train[place].value for place in places], "train"))
    return Inventory(train, held_out, random_access=True, first=first)


async def _draws(env: HermesAgentBaseEnv) -> list[Any]:
    drawn: list[Any] = []
    until = time.monotonic() + DRAWING_SECONDS
    with asking("get_next_item"), env.running():
        while len(drawn) < DRAWS and time.monotonic() < until:
            item = await bridged(env.get_next_item())
            if item is None:
                break
            drawn.append(item)
    if not drawn:
        raise HookError("get_next_item gave None at once: there are no training items")
    return drawn


def _items(env: HermesAgentBaseEnv, values: Sequence[Any], split: str) -> list[Item]:
    items = []
    for place, value in enumerate(values):
        with asking("item_id"):
            item_id = env.item_id(value)
        messages: Sequence[Message] = ()
        if place < PROMPTS:
            with asking("format_prompt"):
                messages = env.initial_messages(value)
        items.append(Item(value, item_id, content_id(value), split, messages))
    return items


def _different(items: Sequence[Item]) -> list[Item]:
    """The first of each id."""
    first: dict[str, Item] = {}
    for item in items:
        first.setdefault(item.id, item)
    return list(first.values())


# --- what is wrong with them ---


def item_findings(env: HermesAgentBaseEnv, inventory: Inventory) -> Iterator[Finding]:
    yield from _overlap(inventory)
    yield from _ids(inventory)
    yield from _json(inventory)
    with asking("format_prompt"):
        again = {item.id: list(env.initial_messages(item.value)) for item in inventory.chosen(DRAWS)}
    changed = [item.id for item in inventory.chosen(DRAWS) if again[item.id] != item.messages]
    if changed:
        yield Finding(
            Severity.ERROR,
            "prompt_changes",
            f"the prompt of item {listed(changed)} is not the same when it is made a second time",
            "let format_prompt and initial_messages depend on the item alone; put what is random into the item",
        )
    if not inventory.held_out:
        yield Finding(
            Severity.WARNING,
            "no_eval_items",
            "there are no items for evaluation",
            "define eval_items(), or fill self._eval_items in setup, with items that training never draws",
        )


def _overlap(inventory: Inventory) -> Iterator[Finding]:
    held_out = {item.id for item in inventory.held_out}
    both = list(dict.fromkeys(item.id for item in inventory.train if item.id in held_out))
    if both:
        yield Finding(
            Severity.ERROR,
            "overlap",
            f"{len(both)} of the training items are held out for evaluation too: {listed(both)}",
            "split the items once, in setup, and give each to train_items or eval_items; else the evaluation measures "
            "memory, and training stops at such an item",
        )
    prompts = {str(item.messages) for item in inventory.held_out if item.messages}
    same = [item.id for item in inventory.train if str(item.messages) in prompts and item.id not in held_out]
    if same:
        yield Finding(
            Severity.WARNING,
            "same_prompt",
            f"{len(same)} training items have the prompt of an evaluation item under another id: {listed(same)}",
            "remove duplicates before the split, or let item_id depend on the question alone",
        )


def _ids(inventory: Inventory) -> Iterator[Finding]:
    contents: dict[str, set[str]] = {}
    for item in (*inventory.train, *inventory.held_out):
        contents.setdefault(item.id, set()).add(item.content)
    shared = [item_id for item_id, different in contents.items() if len(different) > 1]
    if shared:
        yield Finding(
            Severity.ERROR,
            "shared_id",
            f"different items have one id: {listed(shared)}",
            "let item_id give each item its own; pass rates, resuming and evaluation tell items apart by it",
        )
    counts = Counter(item.id for item in inventory.train) if inventory.random_access else Counter[str]()
    twice = [item_id for item_id, count in counts.items() if count > 1 and item_id not in shared]
    if twice:
        yield Finding(
            Severity.WARNING,
            "twice",
            f"{len(twice)} items stand more than once in train_items: {listed(twice)}",
            "remove the duplicates, or they are drawn more often than the others",
        )


def _json(inventory: Inventory) -> Iterator[Finding]:
    for item in inventory.chosen(DRAWS):
        try:
            orjson.dumps(item.value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        except TypeError as error:
            yield Finding(
                Severity.WARNING,
                "not_json",
                f"item {item.id} cannot be written as JSON ({error}): {shown(item.value)}",
                "make items of dicts, lists, texts and numbers: rescore and replay read them back from the record",
            )
            return


def repetition_findings(first: Outline, second: Outline) -> Iterator[Finding]:
    """What differs between two instances of one seed."""
    # The time for drawing ends at different places, so only what both have drawn is compared.
    drawn = min(len(first.train), len(second.train))
    for what, hook, one, other in (
        ("training items", "get_next_item or train_items", first.train[:drawn], second.train[:drawn]),
        ("evaluation items", "eval_items", first.held_out, second.held_out),
    ):
        if one == other:
            continue
        shortest = min(len(one), len(other))
        place = next((at for at in range(shortest) if one[at] != other[at]), shortest)
        yield Finding(
            Severity.ERROR,
            "items_change",
            f"a second setup with the same seed gives other {what}: they differ from number {place} on "
            f"({listed(one[place : place + 3], 3) or 'none'} then {listed(other[place : place + 3], 3) or 'none'})",
            f"let {hook} depend on the dataset and on self.config.seed alone: shuffle with the global `random`, "
            "which is seeded around setup, or random.Random(self.config.seed); sort what comes from a set; no times, "
            "counters or hash() in ids",
        )
    changed = [name for name, prompt in first.prompts.items() if second.prompts.get(name, prompt) != prompt]
    if changed:
        yield Finding(
            Severity.ERROR,
            "prompt_changes",
            f"a second instance gives another prompt for item {listed(changed)}",
            "let format_prompt and initial_messages depend on the item alone; put what is random into the item",
        )


def place_of(error: Exception) -> str:
    """Where the author's own code raised: the innermost line that is neither ours nor a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_authors(frame.filename)]
    return f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
