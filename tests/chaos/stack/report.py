"""What a chaos came to: its parts added up, as one JSON object and as a page of Markdown.

Always true: it adds nothing to what the parts wrote; a part that was cut off and begun again is told.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEAST_IN_PROGRESS = 0.7
LEAST_STRUCK = 0.9
PROMISES = {
    "incomplete": "runs that did not complete by themselves",
    "lost": "lost",
    "doubled": "doubled",
    "leaked": "leaked sandboxes and processes",
    "scored_faults": "infrastructure faults scored",
}


def summed(parts: Sequence[Mapping[str, Any]], cut_off: int = 0) -> dict[str, Any]:
    """One object for all parts. `cut_off` counts beginnings of parts that came to no end of their own."""
    faults = [fault | {"part": part["part"]} for part in parts for fault in part["faults"]]
    struck = [fault for fault in faults if fault["missed"] is None]
    times = sorted(fault["recovered"] for fault in struck if fault["recovered"] is not None)
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    breaches = {name: [text for part in parts for text in part["breaches"][name]] for name in PROMISES}
    return {
        "seeds": sorted({part["seed"] for part in parts}),
        "parts": len(parts),
        "cut_off": cut_off,
        "minutes": round(sum(part["seconds"] for part in parts) / 60, 1),
        "planned": sum(part["planned"] for part in parts),
        "struck": len(struck),
        "missed": len(faults) - len(struck),
        "kinds": len({fault["kind"] for fault in struck}),
        "forms": len({fault["form"] for fault in struck}),
        "in_progress": in_progress(struck),
        "recovery": {
            "median": _at(times, 0.5),
            "nine_of_ten": _at(times, 0.9),
            "longest": _at(times, 1.0),
            "never": sum(fault["recovered"] is None for fault in struck),
        },
        "counts": dict(counts),
        "promises": {name: len(texts) for name, texts in breaches.items()},
        "breaches": breaches,
        "faults": faults,
    }


def in_progress(struck: Sequence[Mapping[str, Any]]) -> float:
    """The share of faults whose victim held work."""
    return round(sum(fault["held"] is not None for fault in struck) / len(struck), 3) if struck else 0.0


def broken(told: Mapping[str, Any]) -> list[str]:
    """Why a chaos failed; nothing when it held."""
    found = [f"{PROMISES[name]}: {text}" for name, texts in told["breaches"].items() for text in texts]
    if told["in_progress"] < LEAST_IN_PROGRESS:
        found.append(f"only {told['in_progress']:.0%} of the faults hit work in progress")
    if told["struck"] < LEAST_STRUCK * told["planned"]:
        found.append(f"only {told['struck']} of {told['planned']} faults were struck")
    return found


def page(told: Mapping[str, Any]) -> str:
    recovery, promises = told["recovery"], told["promises"]
    lines = [
        f"# Whole-stack chaos, seed {', '.join(map(str, told['seeds']))}",
        "",
        f"{told['minutes']} minutes in {told['parts']} whole runs; {told['cut_off']} were cut off and begun again.",
        f"{told['struck']} faults of {told['kinds']} kinds and {told['forms']} forms; {told['missed']} found nobody.",
        f"{told['in_progress']:.0%} hit work in progress.",
        "",
        "| promise | breaches |",
        "|---|---|",
        *(f"| {words} | {promises[name]} |" for name, words in PROMISES.items()),
        "",
        f"Whole again after the fault's end: median {recovery['median']} s, nine of ten within",
        f"{recovery['nine_of_ten']} s, longest {recovery['longest']} s, never {recovery['never']}.",
        "",
        "| counted independently | |",
        "|---|---|",
        *(f"| {name.replace('_', ' ')} | {count} |" for name, count in told["counts"].items()),
        "",
        *_by_kind(told["faults"]),
        "",
        "| part | at, s | step | fault | lasted, s | held | whole again, s |",
        "|---|---|---|---|---|---|---|",
        *(_row(fault) for fault in told["faults"]),
    ]
    for text in broken(told):
        lines += ["", f"**Breach**: {text}"]
    return "\n".join(lines) + "\n"


def _by_kind(faults: Iterable[Mapping[str, Any]]) -> list[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for fault in faults:
        groups.setdefault(fault["kind"], []).append(fault)
    rows = ["| fault | times | held work | whole again, median s |", "|---|---|---|---|"]
    for kind, some in sorted(groups.items()):
        times = sorted(fault["recovered"] for fault in some if fault["recovered"] is not None)
        held = sum(fault["held"] is not None for fault in some)
        rows.append(f"| {kind} | {len(some)} | {held} | {_at(times, 0.5)} |")
    return rows


def _row(fault: Mapping[str, Any]) -> str:
    held = fault["missed"] or fault["held"] or "nothing"
    amount = f" ({fault['amount']:+g})" if fault["amount"] else ""
    words = (fault["part"], fault["at"], fault["step"], fault["kind"] + amount, fault["seconds"], held)
    return f"| {' | '.join(map(str, words))} | {fault['recovered']} |"


def _at(times: Sequence[float], share: float) -> float | None:
    return times[min(len(times) - 1, int(share * len(times)))] if times else None
