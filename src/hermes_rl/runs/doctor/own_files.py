"""What hermes-rl keeps in its home: the keys, the engine's environment, the runs."""

from hermes_rl.home import rl_home
from hermes_rl.runs.doctor.finding import Finding, State
from hermes_rl.runs.key_file import mode_fault, read_keys
from hermes_rl.runs.keys import found_key, key_file, key_names, masked
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.watching.live import gather, run_folders
from hermes_rl.runs.watching.standing import Facts, LivePhase, live_phase

_SHOWN = 5


def key_file_is_closed() -> list[Finding]:
    file = key_file()
    try:
        fault = mode_fault(file, file.stat())
    except FileNotFoundError:
        return [Finding("key file", State.ABSENT, f"{file} is not there: no key was set", "hermes-rl config set NAME")]
    if fault:
        return [Finding("key file", State.MISSING, f"{fault[0]}, so runs refuse it", fault[1])]
    read_keys(file)
    return [Finding("key file", State.OK, f"{file} is readable by you alone")]


def known_keys() -> list[Finding]:
    return [_key(name, purpose) for name, purpose in key_names().items()]


def engine_environment() -> list[Finding]:
    home = rl_home() / "engines"
    made = sorted(place.parent for place in home.glob("skyrl-*/complete"))
    if made:
        return [Finding("engine", State.OK, f"the environment of a self-hosted engine is made: {made[-1]}")]
    what = "no environment of a self-hosted engine yet; the first start makes it: 1.1 GB, about two minutes"
    return [Finding("engine", State.ABSENT, what, "hermes-rl engine start --model MODEL")]


def runs() -> list[Finding]:
    """Those that ended without anybody's wish, and those that ended while a process of theirs did not."""
    findings = [finding for run_id in _run_ids() if (finding := _run(run_id))]
    if not findings:
        return [Finding("runs", State.OK, "none is interrupted, and none left a process")]
    more = len(findings) - _SHOWN
    rest = [Finding("runs", State.WARN, f"and {more} more", "hermes-rl run list")] if more > 0 else []
    return [*findings[:_SHOWN], *rest]


def _key(name: str, purpose: str) -> Finding:
    found = found_key(name)
    if found is None:
        return Finding(f"key {name}", State.ABSENT, f"not set; for {purpose}", f"hermes-rl config set {name}")
    where = "in a variable" if found.source == "variable" else "in the key file"
    return Finding(f"key {name}", State.OK, f"{masked(found.value)} {where}; for {purpose}")


def _run_ids() -> list[str]:
    """The newest first."""
    return sorted(run_folders(), key=lambda run_id: RunPlaces(run_id).folder.stat().st_mtime, reverse=True)


def _run(run_id: str) -> Finding | None:
    check, facts = f"run {run_id}", gather(run_id)
    if facts.unreadable:
        return Finding(check, State.WARN, facts.unreadable, f"hermes-rl run status {run_id}")
    phase = live_phase(facts)
    if phase is LivePhase.INTERRUPTED:
        return Finding(check, State.WARN, "interrupted: its processes are gone", f"hermes-rl run resume {run_id}")
    left = _left(facts)
    if phase.ended and left:
        numbers = " ".join(map(str, left))
        return Finding(check, State.WARN, f"{phase}, yet processes of its are there: {numbers}", f"kill {numbers}")
    return None


def _left(facts: Facts) -> list[int]:
    parts = facts.state.parts.values() if facts.state else ()
    return [process.pid for part in parts for process in (part.keeper, part.process) if process and process.alive()]
