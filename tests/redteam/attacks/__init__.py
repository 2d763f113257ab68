"""The catalogue of attacks.

Each names the harm it means to do and the undefended set-up in which it does it. A script that has gained what it
should not prints GAINED; the variables it uses are in `World.variables`.
"""

from tests.redteam.attacks.attack import Attack
from tests.redteam.attacks.escaping import ESCAPING
from tests.redteam.attacks.files import FILES
from tests.redteam.attacks.processes import PROCESSES
from tests.redteam.attacks.reaching import REACHING
from tests.redteam.attacks.reading import READING
from tests.redteam.attacks.resources import RESOURCES
from tests.redteam.attacks.scores import SCORES

__all__ = ["ATTACKS", "BY_NAME", "Attack"]

ATTACKS = RESOURCES + READING + REACHING + ESCAPING + PROCESSES + SCORES + FILES
BY_NAME = {attack.name: attack for attack in ATTACKS}
