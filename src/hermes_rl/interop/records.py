"""Recorded rollouts as typed rows, and as a table of pandas or Arrow.

A row is one rollout, scored or not; its fields up to `components` are the columns of a table, in that order. `rollout`
holds the rest: the whole conversation, tool calls, timings and tokens. Everything that is loaded is in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, overload

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import content_text, final_response
from hermes_rl.core.trajectory import Group, Rollout, Span
from hermes_rl.store.records import read_groups, rollout_from_record

COMPONENT = "component/"


@dataclass(frozen=True, slots=True)
class Record:
    """One rollout and the group it belongs to. The fields of the group are None in a row of `samples.jsonl`.

    `withheld` is why the rollout, or else its group, is excluded from training. Times are in seconds, and counted
    over the whole rollout.
    """

    environment: str | None
    model: str | None
    split: str | None
    group: str | None
    draw: int | None
    created_at: str | None
    item_id: str
    item: Any
    index: int
    seed: int
    prompt: str | None
    response: str
    score: float | None
    stop_reason: str | None
    failure: str | None
    failure_message: str | None
    withheld: str | None
    turns: int
    tool_calls: int
    tool_errors: int
    prompt_tokens: int | None
    completion_tokens: int | None
    seconds: float
    model_seconds: float
    tool_seconds: float
    sandbox_seconds: float
    verifier_seconds: float
    seat: str | None
    components: dict[str, float]
    rollout: Rollout


class Records(Sequence[Record]):
    """The rows of a file, in its order."""

    def __init__(self, rows: Sequence[Record]) -> None:
        self._rows = tuple(rows)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> "Records": ...
    def __getitem__(self, index: int | slice) -> "Record | Records":
        return Records(self._rows[index]) if isinstance(index, slice) else self._rows[index]

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each rollout; each named part of the score is a column `component/NAME`."""
        return _package("pandas", "a DataFrame").DataFrame(self._columns())

    def to_arrow(self) -> Any:
        """A pyarrow.Table with the same columns; `item` is JSON text."""
        pyarrow = _package("pyarrow", "an Arrow table")
        types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
        columns = self._columns()
        columns["item"] = [fast_json.dumps(item).decode() for item in columns["item"]]
        schema = [(name, types[_column_type(name)]) for name in columns]
        return pyarrow.table(columns, schema=pyarrow.schema(schema))

    def _columns(self) -> dict[str, list[Any]]:
        names = [field.name for field in fields(Record) if field.name not in ("components", "rollout")]
        columns = {name: [getattr(row, name) for row in self._rows] for name in names}
        for part in sorted({part for row in self._rows for part in row.components}):
            columns[COMPONENT + part] = [row.components.get(part) for row in self._rows]
        return columns


def load_records(path: str | Path) -> Records:
    """Load the rollouts of a file of groups, a `samples.jsonl`, or the folder of an evaluation.

    ConfigError for anything else, with the line that cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in ("groups.jsonl", "samples.jsonl") if (path / name).is_file()]
        if not found:
            raise ConfigError(f"{path} has neither groups.jsonl nor samples.jsonl; name a file of `hermes-rl process`")
        path = found[0]
    elif not path.is_file():
        raise ConfigError(f"{path} does not exist")
    rows = _samples(path) if path.name == "samples.jsonl" else _groups(path)
    return Records(list(rows))


def _groups(path: Path) -> Iterator[Record]:
    for group in read_groups(path):
        for rollout in group.rollouts:
            yield _record(rollout, group.item, group)


def _samples(path: Path) -> Iterator[Record]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            try:
                sample = fast_json.loads(line)
                record = _record(rollout_from_record(sample), sample["item"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{path}, line {number} is not a sample of an evaluation: {error!r}") from error
            yield record


def _record(rollout: Rollout, item: Any, group: Group | None = None) -> Record:
    begin = rollout.metadata.get("prompt_length", 0)
    asked = [message for message in rollout.messages[:begin] if message["role"] == "user"]
    times = dict.fromkeys(Span, 0.0)
    for timing in rollout.timings:
        times[timing.span] += timing.seconds
    return Record(
        environment=group.provenance.environment if group else None,
        model=group.provenance.model if group else None,
        split=group.split if group else None,
        group=group.id if group else None,
        draw=group.draw if group else None,
        created_at=group.created_at if group else None,
        item_id=rollout.item_id,
        item=item,
        index=rollout.index,
        seed=rollout.seed,
        prompt=content_text(asked[-1].get("content")) if asked else None,
        response=final_response(rollout.messages[begin:]),
        score=rollout.score,
        stop_reason=str(rollout.stop_reason) if rollout.stop_reason else None,
        failure=f"{rollout.failure.whose}/{rollout.failure.cause}" if rollout.failure else None,
        failure_message=rollout.failure.message if rollout.failure else None,
        withheld=rollout.withheld or (group.withheld if group else None),
        turns=rollout.turns_used,
        tool_calls=len(rollout.tool_uses),
        tool_errors=sum(use.error is not None for use in rollout.tool_uses),
        prompt_tokens=rollout.usage.prompt_tokens,
        completion_tokens=rollout.usage.completion_tokens,
        seconds=rollout.seconds,
        model_seconds=times[Span.MODEL],
        tool_seconds=times[Span.TOOL],
        sandbox_seconds=times[Span.SANDBOX],
        verifier_seconds=times[Span.VERIFIER],
        seat=rollout.seat,
        components=dict(rollout.components),
        rollout=rollout,
    )


def _column_type(name: str) -> type:
    """What a column holds where it has a value."""
    if name.startswith(COMPONENT):
        return float
    declared = str(next(field.type for field in fields(Record) if field.name == name))
    return next((kind for kind in (int, float) if kind.__name__ in declared), str)


def _package(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(f"{what} needs {name}: pip install {name}") from error
