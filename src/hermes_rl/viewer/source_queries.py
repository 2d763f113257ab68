"""Queries about whole sources: the list, one source, a run's curve and status, the comparison of two.

Always true: aggregates cover everything indexed, and are recomputed only when that changed.
"""

import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.version import __version__
from hermes_rl.viewer import lenient_json
from hermes_rl.viewer.catalog import Catalog, NotFoundError
from hermes_rl.viewer.index import aggregates, queries
from hermes_rl.viewer.index_cache import IndexCache, IndexProgress, OpenIndex
from hermes_rl.viewer.record_reader import RecordReader, SourceChangedError
from hermes_rl.viewer.responses import evaluations, rollout, runs
from hermes_rl.viewer.sources.source import Command, RecordSource, RunAccess, SourceKind

SUMMARY_SECONDS = 3.0
MAX_FOLLOWED = 5
MAX_LOG = 400_000


class SourceQueries:
    def __init__(self, catalog: Catalog, indexes: IndexCache, reader: RecordReader, known_runs: RunAccess) -> None:
        self._catalog = catalog
        self._indexes = indexes
        self._reader = reader
        self._runs = known_runs
        self._lock = Lock()
        self._problems: dict[str, str] = {}
        self._summaries: dict[str, tuple[tuple[Any, ...], float, dict[str, Any]]] = {}

    def home(self) -> dict[str, Any]:
        found = self._catalog.sources()
        if len(found) <= MAX_FOLLOWED:
            for source in found:
                self._follow(source)
        return {"version": __version__, "sources": [self._peek(source) for source in found]}

    def source(self, name: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        report = evaluations.read_report(source.folder) if source.kind is SourceKind.EVALUATION else {}
        with self._indexes.open_index(source) as index:
            answer = self._describe(source, index.facts, index.progress) | self._summary(index)
            answer["provenance"] = self._provenance(source, index)
        answer["config"] = rollout.truncate(self._config(source, report))
        answer["model"] = answer["model"] or report.get("model")
        return answer

    def curve(self, name: str) -> dict[str, Any]:
        folder = self._catalog.source(name).folder
        if folder is None:
            raise NotFoundError("only runs have a curve")
        return runs.curve(runs.read_steps(folder / "metrics.jsonl", self._runs.steps))

    def live(self, name: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        if source.run_id is None or source.folder is None:
            raise NotFoundError("only runs have a live status")
        steps = runs.read_steps(source.folder / "metrics.jsonl", self._runs.steps)
        return runs.live(self._runs.status(source.run_id), steps.rows, self._waiting(source))

    def metrics(self, name: str) -> dict[str, Any]:
        return evaluations.metrics_response(evaluations.read_report(self._catalog.source(name).folder))

    def compare(self, first: str, second: str) -> dict[str, Any]:
        sides = (self._catalog.source(first), self._catalog.source(second))
        (about_a, a), (about_b, b) = (self._compared(source) for source in sides)
        answer = evaluations.compare_response(a, b)
        with self._indexes.open_index(sides[0]) as index:
            titles = aggregates.item_titles(index.connection, [item["item_id"] for item in answer["items"]])
        for item in answer["items"]:
            item["title"] = titles.get(item["item_id"], "")
        return {"a": about_a, "b": about_b, **answer}

    def logs(self, name: str, part: str | None, lines: int) -> dict[str, Any]:
        """The last lines of one component of a run, of the first one by default."""
        source = self._catalog.source(name)
        if source.run_id is None:
            raise NotFoundError("only runs have logs")
        parts = self._runs.logs(source.run_id)
        if part is not None and part not in parts:
            raise NotFoundError(f"the run has no log of {part!r}")
        chosen = part or next(iter(parts), None)
        text = self._runs.log(source.run_id, chosen, lines) if chosen else ""
        return {"parts": parts, "part": chosen, "text": text[-MAX_LOG:], "lines": lines}

    def commands(self, name: str) -> dict[str, Any]:
        """Command lines to type next, each with what it does."""
        source = self._catalog.source(name)
        found = self._runs.commands(source.run_id) if source.run_id is not None else list(file_commands(source))
        return {"commands": [{"what": command.what, "line": command.line} for command in found]}

    def _compared(self, source: RecordSource) -> tuple[dict[str, Any], evaluations.ComparedSource]:
        with self._indexes.open_index(source) as index:
            about = self._describe(source, index.facts, index.progress)
            samples, split = aggregates.group_shape(index.connection)
            scores = aggregates.scores_by_item(index.connection)
            provenance = self._provenance(source, index)
            temperature = self._temperature(source, index)
        report = evaluations.read_report(source.folder) if source.kind is SourceKind.EVALUATION else {}
        decoding = lenient_json.as_mapping(report.get("generation_parameters"))
        return about, evaluations.ComparedSource(
            name=source.name,
            report=report,
            provenance=lenient_json.as_mapping(provenance),
            scores=scores,
            unscored=(index.facts.get("rollouts") or 0) - (index.facts.get("scored") or 0),
            samples=samples,
            split=split,
            model=about["model"] or lenient_json.as_str(report.get("model")),
            temperature=lenient_json.as_number(decoding.get("temperature")) if report else temperature,
        )

    def _temperature(self, source: RecordSource, index: OpenIndex) -> float | None:
        """That of the first recorded sequence; None where no tokens were recorded."""
        first = queries.list_groups(index.connection, sort="n", after=None, limit=1).rows
        for group in first:
            for row in queries.group_rollouts(index.connection, group.n, 1):
                try:
                    record = self._reader.rollout(source, group, row, sequences=True)
                except (SourceChangedError, HermesRLError):
                    return None
                sequences = lenient_json.as_list(record.get("sequences"))
                sampling = lenient_json.as_mapping(sequences[0]).get("sampling") if sequences else None
                return lenient_json.as_number(lenient_json.as_mapping(sampling).get("temperature"))
        return None

    def _follow(self, source: RecordSource) -> None:
        self._problems.pop(source.id, None)
        try:
            with self._indexes.open_index(source):
                pass
        except HermesRLError as error:
            self._problems[source.id] = str(error)

    def _describe(
        self, source: RecordSource, facts: Mapping[str, Any], progress: IndexProgress | None
    ) -> dict[str, Any]:
        return self._catalog.describe(
            source, facts, progress, self._problems.get(source.id) or self._indexes.problem(source)
        )

    def _peek(self, source: RecordSource) -> dict[str, Any]:
        facts, progress = self._indexes.peek(source)
        return self._describe(source, facts, progress)

    def _summary(self, index: OpenIndex) -> dict[str, Any]:
        key = index.generation[0]
        with self._lock:
            cached = self._summaries.get(key)
        recent = cached and index.progress is not None and time.monotonic() - cached[1] < SUMMARY_SECONDS
        if cached and (cached[0] == index.generation or recent):
            return cached[2]
        summary = aggregates.summary(index.connection)
        with self._lock:
            self._summaries[key] = (index.generation, time.monotonic(), summary)
        return summary

    def _provenance(self, source: RecordSource, index: OpenIndex) -> Any:
        first = queries.list_groups(index.connection, sort="n", after=None, limit=1).rows
        try:
            return rollout.truncate(self._reader.group_fields(source, first[0]).get("provenance")) if first else None
        except (SourceChangedError, HermesRLError):
            return None

    def _config(self, source: RecordSource, report: Mapping[str, Any]) -> Any:
        if source.run_id is not None:
            return self._runs.config(source.run_id)
        return report.get("settings")

    def _waiting(self, source: RecordSource) -> int | None:
        try:
            return self._reader.store(source.store).waiting() if source.store and source.available else None
        except HermesRLError:
            return None


def file_commands(source: RecordSource) -> Iterator[Command]:
    """What a person is likely to do next with a file of groups or an evaluation."""
    if source.kind is SourceKind.EVALUATION and source.folder is not None:
        yield _command("Compare it with another evaluation", "compare", source.folder, "OTHER")
        yield _command("Write a report to send", "report", source.folder)
    if source.file is None or source.kind is SourceKind.DATABASE:
        return
    if source.kind is SourceKind.GROUPS:
        yield _command("Write a report to send", "report", source.file)
    yield _command("Score it again with the reward as it is now", "rescore", source.file)
    yield _command("Repeat a rollout's tool calls", "replay", source.file)
    if source.kind is SourceKind.GROUPS:
        yield _command("Export it for fine-tuning", "export", "sft", source.file, "-o", "sft.jsonl")


def _command(what: str, *words: str | Path) -> Command:
    return Command(what, shlex.join(["hermes-rl", *map(str, words)]))
