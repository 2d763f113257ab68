"""What an actor is doing at this moment, in memory that it shares with the referee and that outlives it.

Always true: an actor tells before it begins a thing, so what is read after its death is what it held.
"""

import mmap
from dataclasses import dataclass
from enum import IntEnum, auto
from pathlib import Path
from struct import Struct

SLOT = Struct("<qqqqq")
SLOTS = 2
# What it does by itself, and what it has on its way to an API.
MAKING, SENDING = range(SLOTS)


class Phase(IntEnum):
    """The steps of a producer, which makes and sends at the same time, and of the consumer."""

    STARTING = 0
    IDLE = auto()
    ENCODING = auto()
    SPOOLING = auto()
    POSTING = auto()
    AWAY = auto()
    RESUMING = auto()
    LEASING = auto()
    READING = auto()
    TRAINING = auto()
    RECORDING = auto()
    ACKNOWLEDGING = auto()
    SETTING_VERSION = auto()


# A lease may wait for groups that are not there, so it counts as idle here, as does waiting for the API to come back.
WORK = frozenset(
    {
        Phase.ENCODING,
        Phase.SPOOLING,
        Phase.POSTING,
        Phase.READING,
        Phase.TRAINING,
        Phase.RECORDING,
        Phase.ACKNOWLEDGING,
        Phase.SETTING_VERSION,
    }
)
# What an API has to do with at that moment.
ASKING = frozenset({Phase.POSTING, Phase.READING, Phase.ACKNOWLEDGING, Phase.SETTING_VERSION})


@dataclass(frozen=True, slots=True)
class Doing:
    """One thing an actor does: to which group or batch, how far it is, and which API has to do with it."""

    phase: Phase
    number: int = -1
    done: int = 0
    total: int = 0
    port: int = 0

    @property
    def in_a_body(self) -> bool:
        """Some of a posted body was sent, and some was not."""
        return self.phase is Phase.POSTING and 0 < self.done < self.total

    def __str__(self) -> str:
        if self.in_a_body:
            return "posting, in the middle of the body"
        if self.phase is Phase.READING and self.done:
            return "reading, in the middle of the batch"
        if self.phase is Phase.AWAY:
            return "waiting for the API to come back"
        return self.phase.name.lower().replace("_", " ")


class Board:
    """The shared file of one actor, with a slot for each thing it does at a time."""

    def __init__(self, path: Path) -> None:
        with path.open("a+b") as file:
            file.truncate(SLOT.size * SLOTS)
            self._memory = mmap.mmap(file.fileno(), SLOT.size * SLOTS)

    def tell(self, slot: int, phase: Phase, number: int = -1, done: int = 0, total: int = 0, port: int = 0) -> None:
        SLOT.pack_into(self._memory, slot * SLOT.size, phase, number, done, total, port)

    def clear(self) -> None:
        for slot in range(SLOTS):
            self.tell(slot, Phase.STARTING)

    def read(self) -> tuple[Doing, ...]:
        return tuple(Doing(Phase(phase), *rest) for phase, *rest in SLOT.iter_unpack(self._memory[:]))
