"""An attack: what a policy under training could try, as the script it would run in its sandbox."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.redteam.judges import PYTEST, Judge
from tests.redteam.world import Harm, Traces, World


@dataclass(frozen=True, slots=True)
class Attack:
    """`undefended` plays it where nothing stands in its way. `limit` names the limit of a sandbox that must hold it.

    `first` is a command of its own before the script.
    """

    name: str
    what: str
    harm: Harm
    script: str = field(repr=False)
    undefended: "Callable[[Attack, World], Traces]" = field(repr=False)
    judge: Judge = field(default=PYTEST, repr=False)
    timeout: float = 10.0
    limit: str | None = None
    first: str = field(default="true", repr=False)
