"""Imports traces as groups: read, redacted, joined to conversations, grouped by task, split by hash.

Always true: memory holds one conversation and one group at a time, the rest is in a temporary database; secrets are
removed before anything is written there; a record that cannot be read is counted and named, and the others are
imported; the output is complete or absent.
"""

import hashlib
import os
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.messages import tools_used
from hermes_rl.core.trajectory import Group, Provenance, Rollout
from hermes_rl.interop import atif
from hermes_rl.interop.traces.formats import FORMATS, detect
from hermes_rl.interop.traces.records import Record, read_records, trace_files
from hermes_rl.interop.traces.secrets import SecretReport, redact
from hermes_rl.interop.traces.trace import Trace, lookup, mapping, text
from hermes_rl.rollout.sampler import content_id
from hermes_rl.store.records import RecordWriter, group_to_record, rollout_from_record, rollout_to_record
from hermes_rl.version import __version__

ENVIRONMENT = "imported"
BY_PROMPT, BY_TRACE = "prompt", "trace"
SCORES = ("score", "reward", "scores.score", "scores.reward")
DETECTED_IN = 50
MAX_ERRORS = 20
_HASH_RANGE = 2**64
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_TABLES = """
CREATE TABLE events (conversation TEXT, sort TEXT, place TEXT, content BLOB);
CREATE TABLE rollouts (key TEXT, content BLOB);
"""
Progress = Callable[[int, str], object]


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """`group_by` is `prompt`, `trace` or a field of the traces; `score` a field, by default one of SCORES."""

    format: str | None = None
    group_by: str = BY_PROMPT
    score: str | None = None
    eval_share: float = 0.0
    keep_secrets: bool = False


@dataclass(slots=True)
class ImportReport:
    """What was read and written."""

    files: Counter[str] = field(default_factory=Counter)
    """How many of each format."""
    not_recognized: list[str] = field(default_factory=list)
    records: int = 0
    skipped: int = 0
    """Records without messages, such as spans of tools."""
    malformed: int = 0
    errors: list[str] = field(default_factory=list)
    traces: int = 0
    groups: int = 0
    eval_groups: int = 0
    scored: int = 0
    without_key: int = 0
    """Traces without the field to group by, which are grouped by their prompt."""
    without_tokens: int = 0
    """Documents whose token ids were dropped, because they had a secret."""
    secrets: SecretReport = field(default_factory=SecretReport)

    def fail(self, where: str, error: object) -> None:
        self.malformed += 1
        if len(self.errors) < MAX_ERRORS:
            self.errors.append(f"{where}: {error}")

    def as_dict(self) -> dict[str, Any]:
        return {
            "files": dict(self.files),
            "not_recognized": self.not_recognized,
            "records": self.records,
            "skipped": self.skipped,
            "malformed": self.malformed,
            "errors": self.errors,
            "traces": self.traces,
            "groups": self.groups,
            "eval_groups": self.eval_groups,
            "scored": self.scored,
            "without_key": self.without_key,
            "without_tokens": self.without_tokens,
            "secrets": self.secrets.as_dict(),
        }


def import_groups(
    paths: Sequence[Path],
    out: Path,
    options: ImportOptions | None = None,
    *,
    overwrite: bool = False,
    on_progress: Progress = lambda _done, _state: None,
) -> ImportReport:
    """Write the traces of files and folders as a file of groups. ConfigError if none could be read."""
    if out.exists() and (not overwrite or any(out.samefile(path) for path in paths)):
        raise ConfigError(f"{out} exists; pass --overwrite to replace it, or choose another with --out")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    with tempfile.TemporaryDirectory(prefix="hermes-rl-import-") as folder:
        database = sqlite3.connect(Path(folder) / "traces.db", isolation_level=None)
        try:
            database.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN; {_TABLES}")
            importer = _Importer(database, options or ImportOptions(), on_progress)
            importer.read(trace_files(paths))
            importer.join()
            with RecordWriter(draft) as writer:
                for group in importer.groups():
                    writer.write(group_to_record(group))
            if not importer.report.traces:
                raise ConfigError(_nothing(importer.report, paths))
            draft.replace(out)
        finally:
            database.close()
            draft.unlink(missing_ok=True)
    return importer.report


class _Importer:
    """Each step reads what the step before left in the database."""

    def __init__(self, database: sqlite3.Connection, options: ImportOptions, on_progress: Progress) -> None:
        self.report = ImportReport()
        self._database, self._options, self._on_progress = database, options, on_progress

    def read(self, files: Sequence[Path]) -> None:
        """Keep the events of every file, without their secrets."""
        for path in files:
            records = read_records(path)
            head = list(islice(records, DETECTED_IN))
            found = (
                FORMATS[self._options.format]
                if self._options.format
                else detect(record for _, record in head if isinstance(record, Mapping))
            )
            if found is None:
                self.report.not_recognized.append(str(path))
                self.report.malformed += sum(isinstance(record, ValueError) for _, record in head)
            else:
                self.report.files[found.name] += 1
                for record in chain(head, records):
                    self._read_record(found.name, record)
        self._database.execute("CREATE INDEX by_conversation ON events (conversation, sort)")

    def _read_record(self, name: str, placed: Record) -> None:
        place, record = placed
        self.report.records += 1
        self._on_progress(self.report.records, f"{place}")
        if isinstance(record, ValueError):
            self.report.fail(str(place), record)
            return
        try:
            events = list(FORMATS[name].events(record, place))
        except _UNREADABLE as error:
            self.report.fail(str(place), _message(error))
            return
        self.report.skipped += not events
        for event in events:
            content = event.content
            if not self._options.keep_secrets:
                content, had_secrets = redact(content, str(place), self.report.secrets)
                if had_secrets and "document" in content and atif.without_tokens(content["document"]):
                    self.report.without_tokens += 1
            self._database.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?)",
                (f"{name}/{event.conversation}", event.order, str(place), fast_json.dumps(content)),
            )

    def join(self) -> None:
        """Make the rollouts of each conversation, in the order in which the conversations were read."""
        conversations = self._database.execute(
            "SELECT conversation, min(rowid) AS first, place FROM events GROUP BY conversation ORDER BY first"
        )
        for done, (conversation, _, place) in enumerate(conversations, 1):
            self._on_progress(self.report.records + done, "joining conversations")
            rows = self._database.execute(
                "SELECT content FROM events WHERE conversation = ? ORDER BY sort, rowid", (conversation,)
            )
            name = conversation.partition("/")[0]
            try:
                for trace in FORMATS[name].traces([fast_json.loads(content) for (content,) in rows]):
                    self._keep(trace, name, place)
            except _UNREADABLE as error:
                self.report.fail(place, _message(error))
        self._database.execute("CREATE INDEX by_key ON rollouts (key)")

    def _keep(self, trace: Trace, name: str, place: str) -> None:
        key, item_id, kept = self._keyed(trace)
        if trace.document is None:
            kept["rollout"] = rollout_to_record(self._rollout(trace, name, place, item_id))
        self._database.execute("INSERT INTO rollouts VALUES (?, ?)", (key, fast_json.dumps(kept)))
        self.report.traces += 1

    def _keyed(self, trace: Trace) -> tuple[str, str, dict[str, Any]]:
        """The key of the trace's group, the id of its item, and what the group is made from."""
        if trace.document is not None:
            about = trace.document["extra"][atif.OURS]["group"]
            return content_id(about), about["item_id"], {"document": trace.document}
        prompt = trace.messages[: trace.prompt_length]
        item_id = content_id(prompt)
        by = self._options.group_by
        key = item_id
        if by == BY_TRACE:
            key = f"{item_id}/{self.report.traces}"
        elif by != BY_PROMPT:
            value = lookup(trace.fields, by)
            if value is None or value == "":
                self.report.without_key += 1
            else:
                key = item_id = value if isinstance(value, str) else content_id(value)
        kept = {"item_id": item_id, "prompt": prompt, "tools": trace.tools, "model": trace.model, "time": trace.time}
        return key, item_id, kept

    def _rollout(self, trace: Trace, name: str, place: str, item_id: str) -> Rollout:
        fields = [self._options.score] if self._options.score else SCORES
        score = next((found for one in fields if (found := _score(lookup(trace.fields, one))) is not None), None)
        length = trace.prompt_length
        rollout = trace.rollout or Rollout(
            item_id=item_id,
            index=0,
            seed=0,
            messages=trace.messages,
            failure=atif.UNSCORED,
            turns_used=sum(message.get("role") == "assistant" for message in trace.messages[length:]),
            tool_uses=atif.tool_uses(trace.messages, length),
            usage=trace.usage,
        )
        source = {"format": name, "place": place, "model": trace.model, "time": trace.time, **trace.fields}
        return replace(
            rollout,
            item_id=item_id,
            score=score,
            failure=atif.UNSCORED if score is None else None,
            stop_reason=trace.stop_reason or rollout.stop_reason or atif.stop_reason(trace.messages),
            metadata={"prompt_length": length, **rollout.metadata, "trace": source},
        )

    def groups(self) -> Iterator[Group]:
        """The groups, in the order of their first rollouts."""
        keys = self._database.execute("SELECT key, min(rowid) AS first FROM rollouts GROUP BY key ORDER BY first")
        for draw, (key, _) in enumerate(keys):
            rows = self._database.execute("SELECT content FROM rollouts WHERE key = ? ORDER BY rowid", (key,))
            kept = [fast_json.loads(content) for (content,) in rows]
            group = (
                atif.read_group([one["document"] for one in kept])
                if "document" in kept[0]
                else self._group(key, draw, kept)
            )
            self.report.groups += 1
            self.report.eval_groups += group.split == "eval"
            self.report.scored += len(group.scored)
            self._on_progress(self.report.records, f"{self.report.groups:,} groups")
            yield group

    def _group(self, key: str, draw: int, kept: Sequence[Mapping[str, Any]]) -> Group:
        rollouts = tuple(replace(rollout_from_record(one["rollout"]), index=index) for index, one in enumerate(kept))
        schemas = max((one["tools"] for one in kept), key=len)
        described = [mapping(mapping(schema).get("function")).get("name") for schema in schemas]
        used = [name for rollout in rollouts for name in tools_used(rollout.messages)]
        models = Counter(one["model"] for one in kept)
        first = kept[0]
        return Group(
            item_id=first["item_id"],
            item={"messages": first["prompt"]},
            rollouts=rollouts,
            provenance=Provenance(ENVIRONMENT, "", models.most_common(1)[0][0], {"hermes-rl": __version__}),
            tools=tuple(dict.fromkeys(text(name) for name in [*described, *used] if name)),
            split="eval" if _hash_share(first["item_id"]) < self._options.eval_share else "train",
            id=content_id([ENVIRONMENT, key]),
            draw=draw,
            tool_schemas=tuple(schemas),
            created_at=first["time"],
        )


def _score(value: Any) -> float | None:
    return float(value) if isinstance(value, bool) else atif.number(value)


def _hash_share(item_id: str) -> float:
    """A number from 0 to 1 that depends only on the item, so that a second import splits the same way."""
    return int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:8], "big") / _HASH_RANGE


def _message(error: BaseException) -> str:
    return str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"


def _nothing(report: ImportReport, paths: Sequence[Path]) -> str:
    names = ", ".join(map(str, paths))
    if not report.files:
        return f"no format was recognized in {names}; pass one with --format ({', '.join(FORMATS)})"
    first = f"; the first error: {report.errors[0]}" if report.errors else ""
    return f"no trace in {names}: {report.malformed:,} of {report.records:,} records are malformed, {report.skipped:,} have no messages{first}"  # noqa: E501 - one message
