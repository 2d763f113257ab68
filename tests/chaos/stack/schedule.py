"""What befalls a run and when: from a seed and a number of minutes to a list of faults, without a clock or a process.

Always true: the same seed gives the same faults; every form comes before any comes twice, and every kind before any
comes twice, as far as there is time; no part is ended more often than its supervisor bears; times only rise.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PARTS = ("engine", "api", "trainer", "env")
# The supervisor bears five failures of a part within a quarter of an hour; two are left for what follows from others.
MOST_ENDS, WINDOW = 3, 900.0
MOST_FILLS = 2
SPACING = 30.0
LEAST = 14
# Beyond this a keeper takes the supervisor for frozen, ends it and starts another.
FROZEN = 36.0
# A pause as long as that has no place in a short run.
LONG_RUN = 10.0


class Form(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    CUT = "cut the network of"
    LOSS = "lose packets of"
    DELAY = "delay the network of"
    FULL_DISK = "fill the disk of"
    FORWARD = "set forward the clock of"
    BACK = "set back the clock of"


@dataclass(frozen=True, slots=True)
class Kind:
    form: Form
    target: str

    def __str__(self) -> str:
        return f"{self.form} {self.target}"

    @property
    def ends(self) -> str | None:
        """The part whose life it ends, in the supervisor's books."""
        if self.form is not Form.KILL:
            return None
        return next((part for part in PARTS if part in self.target.split()), None)


@dataclass(frozen=True, slots=True)
class Fault:
    """`at` counts in seconds from the first moment of RUNNING; `seconds` is how long it lasts, 0 for a kill.

    `amount` is the share of packets that is lost, or the seconds by which a clock is wrong.
    """

    number: int
    at: float
    kind: Kind
    seconds: float = 0.0
    amount: float = 0.0


LIVING = (
    "supervisor",
    *(f"{what} {part}" for part in PARTS for what in ("keeper", "guard")),
    *PARTS,
    "engine server",
    "engine worker",
    "sandbox",
)
LISTENING = ("engine", "api", "trainer")
WITH_A_CLOCK = ("supervisor", *PARTS)
KINDS = (
    *(Kind(Form.KILL, target) for target in LIVING),
    *(Kind(Form.PAUSE, target) for target in LIVING),
    *(Kind(Form.CUT, target) for target in LISTENING),
    *(Kind(Form.LOSS, target) for target in LISTENING),
    *(Kind(Form.DELAY, target) for target in LISTENING),
    Kind(Form.FULL_DISK, "everything"),
    *(Kind(Form.FORWARD, target) for target in WITH_A_CLOCK),
    *(Kind(Form.BACK, target) for target in WITH_A_CLOCK),
)


def planned(seed: int, minutes: float, part: int = 0) -> tuple[Fault, ...]:
    """The faults of one part of a chaos, each with a seed of its own."""
    draw = random.Random(f"{seed}/{part}")
    number = max(LEAST, round(minutes * 60 / SPACING))
    gap = minutes * 60 / number
    faults: list[Fault] = []
    pool: list[Kind] = []
    for place in range(number):
        at = round((place + draw.uniform(0.1, 0.9)) * gap, 1)
        if not (fitting := _fitting(pool, faults, at)):
            pool += _shuffled(draw)
            fitting = _fitting(pool, faults, at)
        kind = fitting[0]
        pool.remove(kind)
        faults.append(Fault(place, at, kind, *_measure(kind, draw, minutes)))
    return tuple(faults)


def _shuffled(draw: random.Random) -> list[Kind]:
    """All kinds: first one of each form, then the rest."""
    kinds = list(KINDS)
    draw.shuffle(kinds)
    first = list({kind.form: kind for kind in kinds}.values())
    draw.shuffle(first)
    return first + [kind for kind in kinds if kind not in first]


def _fitting(pool: Sequence[Kind], faults: Sequence[Fault], at: float) -> list[Kind]:
    recent = [fault.kind for fault in faults if at - fault.at < WINDOW]
    ended = [kind.ends for kind in recent]
    fills = sum(kind.form is Form.FULL_DISK for kind in recent)
    return [
        kind
        for kind in pool
        if (kind.ends is None or ended.count(kind.ends) < MOST_ENDS)
        and (kind.form is not Form.FULL_DISK or fills < MOST_FILLS)
    ]


def _measure(kind: Kind, draw: random.Random, minutes: float) -> tuple[float, float]:  # noqa: PLR0911 (a case a line)
    """How long, and how much."""
    match kind.form:
        case Form.KILL:
            return 0.0, 0.0
        case Form.PAUSE if kind.target == "supervisor" and minutes >= LONG_RUN:
            return draw.choice((round(draw.uniform(2, 8), 1), FROZEN)), 0.0
        case Form.PAUSE | Form.CUT:
            return round(draw.uniform(2, 8), 1), 0.0
        case Form.LOSS:
            return round(draw.uniform(4, 10), 1), round(draw.uniform(0.1, 0.4), 2)
        case Form.DELAY:
            return round(draw.uniform(4, 10), 1), 0.0
        case Form.FULL_DISK:
            return round(draw.uniform(3, 6), 1), 0.0
        case Form.FORWARD:
            return round(draw.uniform(4, 10), 1), float(draw.choice((90, 3600, 86400)))
        case Form.BACK:
            return round(draw.uniform(4, 10), 1), -float(draw.choice((90, 3600, 86400)))
