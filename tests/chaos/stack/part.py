"""One part of a chaos: a whole run from its start to its end, with the faults of a schedule on the way.

    python -m tests.chaos.stack.part FOLDER SEED MINUTES PART MODEL ENGINE

Started in namespaces of its own, by `grounds.inside`. Always true: what was struck is on disk at once, in FOLDER's
faults.jsonl; its result.json is written only when the part is over.
"""

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hermes_rl.orchestration.run_state import RunState
from hermes_rl.orchestration.supervision.process_tags import lock_is_free
from tests.chaos.stack.evidence import control_groups, gathered
from tests.chaos.stack.grounds import mount, others, small_disk
from tests.chaos.stack.pacing import steps_for
from tests.chaos.stack.referee import Referee
from tests.chaos.stack.scene import Scene
from tests.chaos.stack.schedule import planned
from tests.chaos.stack.verdict import Evidence, judged
from tests.chaos.stack.witness import Witness

# What a run that has ended may take until the last of its processes has.
LEFT = 30.0
KEPT_OF_A_FAILURE = ("rl/runs", "logs")


def main(folder: Path, seed: int, minutes: float, number: int, model: Path, engine: Path) -> None:
    faults = planned(seed, minutes, number)
    place = folder / "ground"
    aside = folder / "aside"
    aside.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", Path("/dev/shm"), "mode=1777")
    disk = small_disk(place)
    os.environ |= {
        "HERMES_HOME": str(place / "home"),
        "HF_HUB_OFFLINE": "1",
        "JAX_COMPILATION_CACHE_DIR": str(engine / "compiled"),
    }
    scene, began = Scene(aside, model, engine), time.monotonic()
    steps = steps_for(minutes)
    scene.begin(steps, seed)
    referee = Referee(folder, scene, faults, minutes, steps)
    try:
        with Witness(scene.spool) as witness:
            referee.carry_out(disk, seed)
            state = _over(scene)
            living = others()
        evidence = gathered(
            scene.places.folder,
            state,
            steps,
            seen=witness.draws,
            spool=scene.spool,
            processes=living,
            overstayed=[f"of process {one.pid}" for one in referee.tenancy.overstayed],
            control_groups=[path for path in control_groups() if Path(path).name in referee.sandbox_names],
        )
    except BaseException:
        _keep(place / "home", folder / "kept")
        raise
    verdict = judged(evidence)
    if verdict.breaches:
        _keep(place / "home", folder / "kept")
    result = {
        "part": number,
        "seed": seed,
        "minutes": minutes,
        "seconds": round(time.monotonic() - began),
        "planned": len(faults),
        "phase": evidence.phase,
        "reason": state.reason,
        "counts": counted(evidence, len(referee.sandbox_names)),
        "breaches": asdict(verdict),
        "faults": [asdict(struck) for struck in referee.struck],
    }
    aside_file = folder / "result.part"
    aside_file.write_text(json.dumps(result, indent=1) + "\n")
    aside_file.replace(folder / "result.json")


def counted(evidence: Evidence, sandboxes: int) -> dict[str, Any]:
    """What there was to lose, to double and to leak."""
    outcomes = list(evidence.outcomes.values())
    failed = [one for one in evidence.rollouts if one.score is None]
    return {
        "steps": evidence.steps,
        "groups_stored": len(evidence.draws),
        "groups_seen_by_the_witness": len(evidence.seen),
        "groups_trained": outcomes.count("trained"),
        **{f"groups_dropped_{cause}": evidence.causes.count(cause) for cause in sorted(set(evidence.causes))},
        "groups_queued_at_the_end": len(evidence.queued),
        "batches_leased": len(evidence.batches),
        "batches_learned": len(evidence.learned),
        "rollouts_scored": len(evidence.rollouts) - len(failed),
        "rollouts_without_a_score": len(failed),
        "sandboxes_seen": sandboxes,
    }


def _over(scene: Scene) -> RunState:
    """The state of a run that has ended, when its processes have too, or had the time to."""
    end = time.monotonic() + LEFT
    while time.monotonic() < end and (others() or not lock_is_free(scene.places.lock)):
        time.sleep(0.2)
    state = scene.state
    assert state is not None
    return state


def _keep(home: Path, folder: Path) -> None:
    """What shows why, of a run that broke a promise; the disk that it lies on goes with us."""
    for name in KEPT_OF_A_FAILURE:
        with suppress(shutil.Error, OSError):
            shutil.copytree(home / name, folder / name, dirs_exist_ok=True)
    for log in home.glob("rl/engines/*/engine.log"):
        shutil.copy(log, folder / "logs" / "engine.log")


if __name__ == "__main__":
    words = sys.argv[1:]
    main(Path(words[0]), int(words[1]), float(words[2]), int(words[3]), Path(words[4]), Path(words[5]))
