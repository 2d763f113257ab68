"""Whether sandboxes leave when their owner is dead, while a chaos goes on: decided from what is seen at moments.

Always true: a sandbox belongs to the environment that lived when it was first seen; only one that is still there well
after that owner's death has overstayed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hermes_rl.core.process_identity import ProcessIdentity

# A warden reads the end of its input at once; a machine with much else to do may take seconds.
GRACE = 10.0


@dataclass
class Tenancy:
    """`overstayed` are the sandboxes that outlived their owner, each told once."""

    overstayed: set[ProcessIdentity] = field(default_factory=set)
    _owners: dict[ProcessIdentity, ProcessIdentity] = field(default_factory=dict)
    _died: dict[ProcessIdentity, float] = field(default_factory=dict)
    _last: ProcessIdentity = field(default_factory=lambda: ProcessIdentity(0, ""))

    def see(self, now: float, owner: ProcessIdentity, sandboxes: Iterable[ProcessIdentity], *, alive: bool) -> None:
        """`owner` is the environment's present or last life."""
        if self._last != owner:
            self._died.setdefault(self._last, now)
            self._last = owner
        if not alive:
            self._died.setdefault(owner, now)
        there = {one: self._owners.get(one, owner) for one in sandboxes}
        self._owners = there
        for sandbox, its_owner in there.items():
            if now - self._died.get(its_owner, now) > GRACE:
                self.overstayed.add(sandbox)
