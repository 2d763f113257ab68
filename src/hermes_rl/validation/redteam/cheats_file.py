"""The found cheats as a Python file: `found_cheats(item)`, to call from an environment's `cheats(item)`.

Always true: the file needs only hermes-rl, and building it changes no cheat: where a value of the item stands in a
step, the file reads it from the item it is given; a cheat that works only on the item it was found on says so.
"""

import pprint
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.validation.redteam.minimize import PlainScript, PlainStep

HEADER = '''"""Ways to score in {environment} without the work, found by `hermes-rl redteam` on {date} with {model}.

Each passed compute_reward and failed audit_reward. Call it from your environment, and `hermes-rl validate` tries them:

    from {module} import found_cheats

    def cheats(self, item):
        return found_cheats(item)
"""

from hermes_rl.rollout.sampler import content_id


def value(item, *path):
    """A value of the item as text."""
    for key in path:
        item = item[key]
    return str(item)


def found_cheats(item):
    cheats = {{}}
'''
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FoundCheat:
    """A cheat for the file. `content` is the content id of its item for one that works nowhere else."""

    name: str
    script: PlainScript
    values: Mapping[str, Path]
    content: str | None = None


def cheats_file(cheats: Sequence[FoundCheat], *, environment: str, date: str, model: str, module: str) -> str:
    """The text of the file."""
    blocks = [_block(cheat) for cheat in cheats]
    header = HEADER.format(environment=_plain(environment), date=date, model=_plain(model), module=module)
    return header + "".join(blocks) + "    return cheats\n"


def item_values(item: Any, path: Path = ()) -> Iterator[tuple[str, Path]]:
    """The texts and numbers of an item with their paths, each text once."""
    if isinstance(item, Mapping):
        for key, part in item.items():
            if isinstance(key, str):
                yield from item_values(part, (*path, key))
    elif isinstance(item, list | tuple):
        for index, part in enumerate(item):
            yield from item_values(part, (*path, index))
    elif isinstance(item, str | int | float) and not isinstance(item, bool):
        yield str(item), path


def values_in(script: Sequence[PlainStep], item: Any, min_length: int = 1) -> dict[str, Path]:
    """The values of the item that stand in a script as words of their own."""
    text = "\n".join(_texts(list(script)))
    found: dict[str, Path] = {}
    for value, path in item_values(item):
        if len(value) >= min_length and value not in found and _pattern([value]).search(text):
            found[value] = path
    return found


def filled(script: Sequence[PlainStep], values: Mapping[str, Path], item: Any) -> PlainScript:
    """The script with the values of another item; KeyError, IndexError or TypeError for one without them."""
    return replaced(script, {value: str(_at(item, path)) for value, path in values.items()})


def replaced(script: Sequence[PlainStep], replacements: Mapping[str, str]) -> PlainScript:
    """The script with other words in place of these."""
    return [_replaced(step, replacements) for step in script]


def _at(item: Any, path: Path) -> Any:
    for key in path:
        item = item[key]
    return item


def _replaced(part: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(part, str):
        return _pattern(replacements).sub(lambda match: replacements[match.group()], part) if replacements else part
    if isinstance(part, Mapping):
        return {key: _replaced(value, replacements) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_replaced(value, replacements) for value in part)
    if isinstance(part, list):
        return [_replaced(value, replacements) for value in part]
    return part


def _pattern(values: Any) -> re.Pattern[str]:
    """Any of the values where it stands alone; longer ones first."""
    longest = sorted(values, key=len, reverse=True)
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)")


def _texts(part: Any) -> Iterator[str]:
    if isinstance(part, str):
        yield part
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _texts(value)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _texts(value)


def _block(cheat: FoundCheat) -> str:
    indent, lines = "    ", []
    if cheat.content is not None:
        lines.append(f"    if content_id(item) == {cheat.content!r}:  # it worked on this item only\n")
        indent += "    "
    body = _expression(cheat.script, cheat.values)
    lines.append(f"{indent}cheats[{cheat.name!r}] = {body}\n")
    return "".join(lines)


def _expression(part: Any, values: Mapping[str, Path]) -> str:
    """Python that evaluates to the part, with item values read from `item`."""
    if isinstance(part, str):
        return _text_expression(part, values)
    if isinstance(part, dict):
        pairs = (f"{key!r}: {_expression(value, values)}" for key, value in part.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(part, tuple):
        return "(" + ", ".join(_expression(value, values) for value in part) + ")"
    if isinstance(part, list):
        return "[" + ", ".join(_expression(value, values) for value in part) + "]"
    return pprint.pformat(part)


def _text_expression(text: str, values: Mapping[str, Path]) -> str:
    if not values:
        return repr(text)
    pieces, end = [], 0
    for match in _pattern(values).finditer(text):
        if match.start() > end:
            pieces.append(repr(text[end : match.start()]))
        pieces.append(f"value(item, {', '.join(map(repr, values[match.group()]))})")
        end = match.end()
    if end < len(text) or not pieces:
        pieces.append(repr(text[end:]))
    return " + ".join(pieces)


def _plain(text: str) -> str:
    """Without what would end the file's docstring."""
    return text.replace("\\", "/").replace('"', "'")
