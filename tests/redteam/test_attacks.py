"""Every attack succeeds where nothing is defended, and is contained and worth nothing on each isolating backend."""

import json
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.redteam.arena import Arena, Outcome
from tests.redteam.attacks import ATTACKS, Attack
from tests.redteam.setups import BUBBLEWRAP, DEADLY, WORTHLESS
from tests.redteam.world import Harm, World

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners of both kinds can only be had by root")

each_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
on_bubblewrap = pytest.mark.parametrize("arena", [pytest.param(BUBBLEWRAP, id=BUBBLEWRAP.name)], indirect=True)
# The policy's own code decides what the process that imports it ends with.
IMPORTED = ("exit at import", "equal to everything")


@pytest.mark.long
@each_attack
def test_it_succeeds_where_nothing_is_defended(
    attack: Attack, world: World, record_property: Callable[[str, object], None]
) -> None:
    traces = world.after(attack.undefended(attack, world))
    assert attack.harm in traces.harms(world.secret), traces
    record_property("undefended", json.dumps({"attack": attack.name, "where": attack.undefended.__doc__}))


@pytest.mark.long
@pytest.mark.parametrize("set_up", sorted({attack.undefended.__name__ for attack in ATTACKS}))
def test_without_an_attack_the_undefended_are_well(set_up: str, world: World) -> None:
    attack = next(attack for attack in ATTACKS if attack.undefended.__name__ == set_up)
    # Long enough for a machine that has much to do; only the harm of being late is the set-up's own.
    idle = replace(attack, script="true", first="true", timeout=10)
    assert world.after(attack.undefended(idle, world)).harms(world.secret) == set()


@each_attack
def test_it_is_contained_and_scores_nothing(
    attack: Attack, arena: Arena, record_property: Callable[[str, object], None]
) -> None:
    outcome = arena.play(attack.name)
    harms = outcome.traces.harms(arena.world.secret)
    record_property("contained", json.dumps(_told(attack, arena, outcome, harms)))
    if outcome.unheld or (arena.plan.settings.get("runtime"), attack.name) in WORTHLESS:
        harms -= {attack.harm}
    if outcome.died and (arena.plan.backend, arena.plan.user, attack.name) in DEADLY:
        harms -= {Harm.ESCAPE}
    assert harms == set(), outcome
    assert outcome.traces.score == 0 or outcome.died


def test_honest_work_is_scored(arena: Arena) -> None:
    outcome = arena.play("honest")
    assert outcome.traces.harms(arena.world.secret) == {Harm.FORGE}, outcome
    assert (outcome.traces.score, outcome.shared) == (1, 1)


@on_bubblewrap
@pytest.mark.parametrize("name", IMPORTED)
def test_a_judge_that_imports_the_policys_code_is_forged_even_in_a_fresh_sandbox(arena: Arena, name: str) -> None:
    outcome = arena.play(name, by_import=True)
    assert (outcome.by_import, outcome.traces.score) == (1, 0)


@on_bubblewrap
@pytest.mark.parametrize(
    "name", ["conftest.py", "wrappers on PATH", "forged result file", "link to the expected answer"]
)
def test_plain_shared_verification_is_forged(arena: Arena, name: str) -> None:
    outcome = arena.play(name)
    assert (outcome.shared, outcome.traces.score) == (1, 0)


@on_bubblewrap
def test_a_writer_left_behind_is_dead_before_shared_verification_too(arena: Arena) -> None:
    assert arena.play("writer left behind").shared == 0


def _told(attack: Attack, arena: Arena, outcome: Outcome, harms: set[Harm]) -> dict[str, object]:
    plan = arena.plan
    backend = plan.settings.get("runtime") or plan.backend
    return {
        "attack": attack.name,
        "backend": backend,
        "worthless": WORTHLESS.get((backend, attack.name)) if attack.harm in harms else None,
        "user": plan.user,
        "owner": plan.uid,
        "harms": sorted(harms),
        "unheld": outcome.unheld,
        "died": outcome.died,
        "score": outcome.traces.score,
        "shared": outcome.shared,
    }
