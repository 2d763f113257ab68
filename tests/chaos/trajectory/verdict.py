"""Whether the promise was kept: each answered group delivered, acknowledged exactly once and in order per environment.

Always true: the verdict is made of ledgers and of the store's own rows alone, by a function that starts nothing, so
that a test can hand it any history and see the breach named.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hermes_rl.store.database.store import open_engine
from hermes_rl.store.database.transactions import Row, execute
from tests.chaos.trajectory.lots import Lot, lot_of

SHOWN = 5


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is left after a chaos. `outcomes` are (group, outcome, batch); `trained` is the consumer's lineage."""

    finished: Mapping[str, Sequence[int]] = field(default_factory=dict)
    answered: Mapping[str, Sequence[int]] = field(default_factory=dict)
    trained: Sequence[tuple[int, Sequence[str]]] = ()
    changed: Sequence[str] = ()
    versions: Sequence[int] = ()
    stored: Sequence[str] = ()
    outcomes: Sequence[tuple[str, str, int | None]] = ()
    waiting: int = 0
    on_loan: int = 0
    store_version: int = 0
    left_in_spools: int = 0


def breaches(evidence: Evidence) -> list[str]:
    """What is wrong, in words; nothing when the promise was kept."""
    return [*_lost(evidence), *_not_once(evidence), *_invented(evidence), *_order(evidence), *_left(evidence)]


def _lost(evidence: Evidence) -> Iterator[str]:
    stored = set(evidence.stored)
    trained = {group for group, outcome, _ in evidence.outcomes if outcome == "trained"}
    read = {group for _, groups in evidence.trained for group in groups}
    for what, ledger in (("answered", evidence.answered), ("finished", evidence.finished)):
        groups = {Lot(name, number).id for name, numbers in ledger.items() for number in numbers}
        yield from _told(f"{what} but not in the store", groups - stored)
        yield from _told(f"{what} but not acknowledged", groups - trained)
        yield from _told(f"{what} but never trained on", groups - read)


def _not_once(evidence: Evidence) -> Iterator[str]:
    lineage = [(group, batch) for batch, groups in evidence.trained for group in groups]
    yield from _told("trained on more than once", _doubled(group for group, _ in lineage))
    yield from _told("in the store more than once", _doubled(evidence.stored))
    yield from _told("with more than one outcome", _doubled(group for group, _, _ in evidence.outcomes))
    acknowledged = {(group, batch) for group, outcome, batch in evidence.outcomes if outcome == "trained"}
    yield from _told("trained on in one batch and acknowledged in another", _names(set(lineage) ^ acknowledged))
    yield from _told("dropped", (group for group, outcome, _ in evidence.outcomes if outcome != "trained"))


def _invented(evidence: Evidence) -> Iterator[str]:
    known = {Lot(name, number).id for name, numbers in evidence.answered.items() for number in numbers}
    yield from _told("in the store but posted by nobody", set(evidence.stored) - known)
    yield from _told("trained on but posted by nobody", {g for _, groups in evidence.trained for g in groups} - known)
    yield from _told("changed on its way", evidence.changed)
    if evidence.versions and max(evidence.versions) != evidence.store_version:
        yield f"the policy's version is {evidence.store_version}, and {max(evidence.versions)} was set last"


def _order(evidence: Evidence) -> Iterator[str]:
    numbers: dict[str, list[int]] = {}
    for _, groups in evidence.trained:
        for lot in map(lot_of, groups):
            numbers.setdefault(lot.producer, []).append(lot.number)
    for name, order in sorted(numbers.items()):
        yield from _told(
            "out of its order",
            (f"{name}/{after} after {before}" for before, after in pairwise(order) if after < before),
        )
        yield from _told("left out", (Lot(name, gap).id for gap in sorted(set(range(max(order) + 1)) - set(order))))


def _left(evidence: Evidence) -> Iterator[str]:
    if evidence.waiting or evidence.on_loan:
        yield f"{evidence.waiting} groups still wait and {evidence.on_loan} batches are on loan after the end"
    if evidence.left_in_spools:
        yield f"{evidence.left_in_spools} groups are left in spools"


def _doubled(groups: Iterable[str]) -> list[str]:
    return [group for group, count in Counter(groups).items() if count > 1]


def _names(pairs: Iterable[tuple[str, int | None]]) -> set[str]:
    return {group for group, _ in pairs}


def _told(what: str, groups: Iterable[str]) -> Iterator[str]:
    found = sorted(groups)
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        yield f"{what}: {', '.join(found[:SHOWN])}{more}"


async def gathered(
    address: str,
    producers: Mapping[str, Sequence[Mapping[str, Any]]],
    consumer: Sequence[Mapping[str, Any]],
    spools: Path,
) -> Evidence:
    """The evidence of the ledgers' lines, of the store and of what lies in `*/spool` below a directory."""
    async with open_engine(address) as engine:

        async def rows(sql: str) -> list[Row]:
            return await engine.read(lambda: execute(sql))

        [(waiting,)] = await rows("SELECT COUNT(*) FROM queue")
        [(on_loan,)] = await rows("SELECT COUNT(*) FROM batches WHERE state = 'leased'")
        [(version,)] = await rows("SELECT COALESCE(MAX(version), 0) FROM versions")
        return Evidence(
            finished=_by_producer(producers, "finished"),
            answered=_by_producer(producers, "answered"),
            trained=[(line["trained"], line["groups"]) for line in consumer if "trained" in line],
            changed=[line["changed"] for line in consumer if "changed" in line],
            versions=[line["version_set"] for line in consumer if "version_set" in line],
            stored=[group for (group,) in await rows("SELECT id FROM groups ORDER BY place")],
            outcomes=[
                (group, outcome, batch)
                for group, outcome, batch in await rows(
                    "SELECT g.id, o.outcome, o.batch FROM outcomes o JOIN groups g ON g.place = o.place"
                )
            ],
            waiting=waiting,
            on_loan=on_loan,
            store_version=version,
            left_in_spools=len(list(spools.glob("*/spool/**/*.group"))),
        )


def _by_producer(ledgers: Mapping[str, Sequence[Mapping[str, Any]]], word: str) -> dict[str, list[int]]:
    return {name: [line[word] for line in lines if word in line] for name, lines in ledgers.items()}
