"""What must be true after a chaos, counted from what is there: the store, the weights' lineage, the processes.

Always true: nothing here goes by what a part of the run said of itself; no breach means that every promise was kept.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

SHOWN = 5
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Scored:
    """A rollout in the store. `expected` is the score that what the model said has, counted anew; None without text."""

    rollout: str
    score: float | None
    failure: str | None
    expected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """`seen` are the draws that the witness saw finished; `cursor` is the lowest that the store is said not to have.

    `trainable` and `queued` are places of groups; `outcomes` has trained or dropped, by place, `causes` why some were
    dropped. `batches` has the state of each by number, `learned` those in the lineage of the final weights, in order.
    `overstayed` are sandboxes that outlived their environment, while the run went on.
    """

    phase: str = "finished"
    attempts: int = 1
    steps: int = 0
    lineage_steps: Sequence[int] = ()
    exported: bool = True
    draws: Sequence[int] = ()
    seen: Sequence[int] = ()
    in_spool: Sequence[int] = ()
    refused: Sequence[int] = ()
    cursor: int = 0
    trainable: Sequence[int] = ()
    queued: Sequence[int] = ()
    outcomes: dict[int, str] = field(default_factory=dict)
    causes: Sequence[str] = ()
    batches: dict[int, str] = field(default_factory=dict)
    batch_groups: Sequence[tuple[int, int]] = ()
    learned: Sequence[int] = ()
    rollouts: Sequence[Scored] = ()
    processes: dict[int, str] = field(default_factory=dict)
    overstayed: Sequence[str] = ()
    ledgers: Sequence[str] = ()
    control_groups: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, by promise."""

    incomplete: list[str]
    lost: list[str]
    doubled: list[str]
    leaked: list[str]
    scored_faults: list[str]

    @property
    def breaches(self) -> list[str]:
        return [*self.incomplete, *self.lost, *self.doubled, *self.leaked, *self.scored_faults]


def judged(evidence: Evidence) -> Verdict:
    return Verdict(
        list(_incomplete(evidence)),
        list(_lost(evidence)),
        list(_doubled(evidence)),
        list(_leaked(evidence)),
        list(_scored_faults(evidence)),
    )


def _incomplete(evidence: Evidence) -> Iterable[str]:
    if evidence.phase != "finished":
        yield f"the run is {evidence.phase}"
    if evidence.attempts != 1:
        yield f"the run was begun {evidence.attempts} times"
    if list(evidence.lineage_steps) != list(range(evidence.steps + 1)):
        yield f"the steps are not 0 to {evidence.steps}: {_few(evidence.lineage_steps)}"
    if not evidence.exported:
        yield "the weights are not there"


def _lost(evidence: Evidence) -> Iterable[str]:
    stored, held = set(evidence.draws), {*evidence.draws, *evidence.in_spool}
    yield from _each("finished, and nowhere", set(evidence.seen) - held)
    yield from _each("refused by the API", evidence.refused)
    yield from _each("below the cursor, and not in the store", set(range(evidence.cursor)) - stored)
    settled = {*evidence.outcomes, *evidence.queued}
    yield from _each("in the store with no outcome, and not queued", set(evidence.trainable) - settled)
    acknowledged = {batch for batch, state in evidence.batches.items() if state == "acknowledged"}
    yield from _each("acknowledged, and not learned from: batch", acknowledged - set(evidence.learned))
    trained = {place for place, outcome in evidence.outcomes.items() if outcome == "trained"}
    in_batches = {place for batch, place in evidence.batch_groups if batch in acknowledged}
    yield from _each("said to be trained on, and in no batch", trained - in_batches)


def _doubled(evidence: Evidence) -> Iterable[str]:
    yield from _each("in the store more than once: draw", _repeated(evidence.draws))
    yield from _each("learned from more than once: batch", _repeated(evidence.learned))
    learned = set(evidence.learned)
    places = [place for batch, place in evidence.batch_groups if batch in learned]
    yield from _each("learned from in two batches: group", _repeated(places))
    acknowledged = {batch for batch, state in evidence.batches.items() if state == "acknowledged"}
    yield from _each("learned from, and not acknowledged: batch", learned - acknowledged)
    yield from _each("trained on, and still queued", set(evidence.queued) & set(places))


def _leaked(evidence: Evidence) -> Iterable[str]:
    yield from (f"process {pid} lives: {command[:120]}" for pid, command in evidence.processes.items())
    yield from (f"sandbox {name} outlived its environment" for name in evidence.overstayed)
    yield from (f"sandbox {name} is still in a ledger" for name in evidence.ledgers)
    yield from (f"control group {name} is left" for name in evidence.control_groups)


def _scored_faults(evidence: Evidence) -> Iterable[str]:
    for one in evidence.rollouts:
        if one.score is not None and one.failure is not None:
            yield f"{one.rollout} has a score and a failure ({one.failure})"
        elif one.score is not None and (one.expected is None or abs(one.score - one.expected) > TOLERANCE):
            yield f"{one.rollout} is scored {one.score}, and what was said is worth {one.expected}"


def _repeated(values: Sequence[int]) -> list[int]:
    return [value for value, count in Counter(values).items() if count > 1]


def _each(what: str, values: Iterable[int]) -> Iterable[str]:
    return (f"{what} {value}" for value in sorted(values))


def _few(values: Sequence[int]) -> str:
    return f"{list(values[:SHOWN])} … {list(values[-SHOWN:])}" if len(values) > 2 * SHOWN else str(list(values))
