"""Checks of hermes-rl's own files: keys, the engine's environment and runs."""

from hermes_rl.core.key_file import permission_problem, read_keys
from hermes_rl.core.keys import KEY_FILE, VARIABLE, key_file, lookup_key
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.doctor.finding import DoctorFinding, FindingState
from hermes_rl.orchestration.keys import key_names, mask_value
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.derive import LivePhase, StatusFacts, live_phase
from hermes_rl.orchestration.status.inspect import gather_facts, run_folders

_SHOWN = 5


def key_file_permissions() -> list[DoctorFinding]:
    file = key_file()
    try:
        problem = permission_problem(file, file.stat())
    except FileNotFoundError:
        what = f"{file} does not exist: no key is set"
        return [DoctorFinding("key file", FindingState.ABSENT, what, "hermes-rl config set NAME")]
    if problem:
        return [DoctorFinding("key file", FindingState.MISSING, f"{problem[0]}, so runs reject it", problem[1])]
    read_keys(file)
    return [DoctorFinding("key file", FindingState.OK, f"{file} is readable only by you")]


def known_keys() -> list[DoctorFinding]:
    return [_key(name, purpose) for name, purpose in key_names().items()]


def engine_environment() -> list[DoctorFinding]:
    home = rl_home() / "engines"
    complete = sorted(marker.parent for marker in home.glob("skyrl-*/complete"))
    if complete:
        return [
            DoctorFinding("engine", FindingState.OK, f"the self-hosted engine's environment is ready: {complete[-1]}")
        ]
    what = "no environment for a self-hosted engine yet; the first start creates it: 1.1 GB, about two minutes"
    return [DoctorFinding("engine", FindingState.ABSENT, what, "hermes-rl engine start --model MODEL")]


def runs() -> list[DoctorFinding]:
    """Interrupted runs, and ended runs that left processes behind."""
    findings = [finding for run_id in _run_ids() if (finding := _run(run_id))]
    if not findings:
        return [DoctorFinding("runs", FindingState.OK, "no interrupted runs and no leftover processes")]
    more = len(findings) - _SHOWN
    rest = [DoctorFinding("runs", FindingState.WARN, f"and {more} more", "hermes-rl run list")] if more > 0 else []
    return [*findings[:_SHOWN], *rest]


def _key(name: str, purpose: str) -> DoctorFinding:
    found = lookup_key(name)
    if found is None:
        return DoctorFinding(
            f"key {name}", FindingState.ABSENT, f"not set; for {purpose}", f"hermes-rl config set {name}"
        )
    where = {VARIABLE: "in a variable", KEY_FILE: "in the key file"}.get(found.source, f"in {found.source}")
    return DoctorFinding(f"key {name}", FindingState.OK, f"{mask_value(found.value)} {where}; for {purpose}")


def _run_ids() -> list[str]:
    """Newest first."""
    return sorted(run_folders(), key=lambda run_id: RunPaths(run_id).folder.stat().st_mtime, reverse=True)


def _run(run_id: str) -> DoctorFinding | None:
    check, facts = f"run {run_id}", gather_facts(run_id)
    if facts.unreadable:
        return DoctorFinding(check, FindingState.WARN, facts.unreadable, f"hermes-rl run status {run_id}")
    phase = live_phase(facts)
    if phase is LivePhase.INTERRUPTED:
        return DoctorFinding(
            check, FindingState.WARN, "interrupted: its processes are gone", f"hermes-rl run resume {run_id}"
        )
    leftover = _leftover_pids(facts)
    if phase.ended and leftover:
        pids = " ".join(map(str, leftover))
        return DoctorFinding(
            check, FindingState.WARN, f"{phase}, but some of its processes still run: {pids}", f"kill {pids}"
        )
    return None


def _leftover_pids(facts: StatusFacts) -> list[int]:
    parts = facts.state.parts.values() if facts.state else ()
    return [process.pid for part in parts for process in (part.keeper, part.process) if process and process.alive()]
