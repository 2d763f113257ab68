"""What is said of whole sources: their list, one of them, how a run learns, two of them compared.

Always true: sums are over all that is indexed, and are made again only when that has changed.
"""

import time
from collections.abc import Mapping
from threading import Lock
from typing import Any

from hermes_rl.errors import HermesRLError
from hermes_rl.version import __version__
from hermes_rl.viewer.answers import evaluations, rollout, runs
from hermes_rl.viewer.catalog import Catalog, NotThereError
from hermes_rl.viewer.index import asking, summing
from hermes_rl.viewer.keeping import Indexes, Open, Progress
from hermes_rl.viewer.reading import ChangedError, Readers
from hermes_rl.viewer.sources.source import Kind, Runs, Source

SUMMED_SECONDS = 3.0
FOLLOWED_AT_ONCE = 5


class Overviews:
    def __init__(self, catalog: Catalog, indexes: Indexes, readers: Readers, known_runs: Runs) -> None:
        self._catalog = catalog
        self._indexes = indexes
        self._readers = readers
        self._runs = known_runs
        self._lock = Lock()
        self._problems: dict[str, str] = {}
        self._summaries: dict[str, tuple[tuple[Any, ...], float, dict[str, Any]]] = {}

    def home(self) -> dict[str, Any]:
        found = self._catalog.sources()
        if len(found) <= FOLLOWED_AT_ONCE:
            for source in found:
                self._follow(source)
        return {"version": __version__, "sources": [self._glanced(source) for source in found]}

    def source(self, name: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        report = evaluations.read_report(source.folder) if source.kind is Kind.EVALUATION else {}
        with self._indexes.reading(source) as index:
            answer = self._told(source, index.facts, index.progress) | self._summary(index)
            answer["provenance"] = self._provenance(source, index)
        answer["config"] = rollout.cut(self._config(source, report))
        answer["model"] = answer["model"] or report.get("model")
        return answer

    def curve(self, name: str) -> dict[str, Any]:
        folder = self._catalog.source(name).folder
        if folder is None:
            raise NotThereError("only a run has a curve")
        return runs.curve(runs.steps_of(folder / "metrics.jsonl", self._runs.steps))

    def live(self, name: str) -> dict[str, Any]:
        source = self._catalog.source(name)
        if source.run_id is None or source.folder is None:
            raise NotThereError("only a run is live")
        steps = runs.steps_of(source.folder / "metrics.jsonl", self._runs.steps)
        return runs.live(self._runs.status(source.run_id), steps.rows, self._waiting(source))

    def metrics(self, name: str) -> dict[str, Any]:
        return evaluations.metrics_answer(evaluations.read_report(self._catalog.source(name).folder))

    def compare(self, first: str, second: str) -> dict[str, Any]:
        sides = (self._catalog.source(first), self._catalog.source(second))
        scores: list[dict[str, list[float]]] = []
        told: list[dict[str, Any]] = []
        for source in sides:
            with self._indexes.reading(source) as index:
                scores.append(summing.scores_by_item(index.connection))
                told.append(self._told(source, index.facts, index.progress))
        reports = (evaluations.read_report(sides[0].folder), evaluations.read_report(sides[1].folder))
        answer = evaluations.comparison((scores[0], scores[1]), reports)
        with self._indexes.reading(sides[0]) as index:
            titles = summing.titles_of(index.connection, [item["item_id"] for item in answer["items"]])
        for item in answer["items"]:
            item["title"] = titles.get(item["item_id"], "")
        return {"a": told[0], "b": told[1], **answer}

    def _follow(self, source: Source) -> None:
        self._problems.pop(source.id, None)
        try:
            with self._indexes.reading(source):
                pass
        except HermesRLError as error:
            self._problems[source.id] = str(error)

    def _told(self, source: Source, facts: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        return self._catalog.told(
            source, facts, progress, self._problems.get(source.id) or self._indexes.problem(source)
        )

    def _glanced(self, source: Source) -> dict[str, Any]:
        facts, progress = self._indexes.glance(source)
        return self._told(source, facts, progress)

    def _summary(self, index: Open) -> dict[str, Any]:
        key = index.generation[0]
        with self._lock:
            kept = self._summaries.get(key)
        recent = kept and index.progress is not None and time.monotonic() - kept[1] < SUMMED_SECONDS
        if kept and (kept[0] == index.generation or recent):
            return kept[2]
        made = summing.summary(index.connection)
        with self._lock:
            self._summaries[key] = (index.generation, time.monotonic(), made)
        return made

    def _provenance(self, source: Source, index: Open) -> Any:
        first = asking.list_groups(index.connection, sort="n", after=None, limit=1).rows
        try:
            return rollout.cut(self._readers.about(source, first[0]).get("provenance")) if first else None
        except (ChangedError, HermesRLError):
            return None

    def _config(self, source: Source, report: Mapping[str, Any]) -> Any:
        if source.run_id is not None:
            return self._runs.config(source.run_id)
        return report.get("settings")

    def _waiting(self, source: Source) -> int | None:
        try:
            return self._readers.of(source.store).waiting() if source.store and source.there else None
        except HermesRLError:
            return None
