"""The tables of docs/reports/peers.md, made from the raw results and from nothing else."""

import json
from pathlib import Path
from typing import Any

from benchmarks.peers.measures import PEERS
from benchmarks.peers.work import FAULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reports" / "peers.md"
BEGIN, END = "<!-- begin of what benchmarks/peers/run.py writes -->", "<!-- end -->"
COLUMNS = (
    *("framework", "turns/s", "CPU ms a turn", "KB a rollout"),
    *("ms between turns, p50 / p99", "succeeded", "connections", "model's core"),
)
FAULT_WORDS = {
    "fine": "nothing",
    "500": "the model answers 500",
    "hangup": "the model hangs up",
    "stall": "the model never answers",
    "garbage": "the model answers with what is no JSON",
    "tool": "the tool raises",
    "reward": "the reward raises",
}


def write(results: dict[str, Any]) -> None:
    """Put the raw results beside the page, and the tables into it."""
    PAGE.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{told(results)}\n\n{END}{after}")


def told(results: dict[str, Any]) -> str:
    machine = results["machine"]
    where = f"{machine['cores']} cores ({machine['cpu']}), {machine['memory_gb']} GB, Linux {machine['kernel']}"
    parts = [f"Measured on {results['date']}, size {results['size']}: {where}, Python {machine['python']}."]
    for name, measure in results["measures"].items():
        parts.append(fault_table(measure) if name == "faults" else cost_table(name, measure))
    parts.append(settings(results))
    return "\n\n".join(parts)


def cost_table(name: str, measure: dict[str, Any]) -> str:
    asked, rows = measure["asked"], []
    for peer, runs in measure["runs"].items():
        figures = measure["figures"].get(peer)
        if figures is None:
            rows.append(f"| {PEERS[peer].title} | failed: {runs[0]['error'][:60] if runs else 'not run'} {'| ' * 7}|")
            continue
        success = f"{figures['succeeded']:.1%}" if figures["finished"] else "stopped by the limit"
        rows.append(
            f"| {PEERS[peer].title} | {figures['turns_per_second']:,.0f} | {figures['cpu_ms_per_turn']:.2f} "
            f"| {figures['kb_per_rollout']:,.0f} | {figures['gap_p50_ms']:,.1f} / {figures['gap_p99_ms']:,.1f} "
            f"| {success} | {figures['most_connections']:,.0f} | {figures['model_cpu_share']:.0%} |"
        )
    work = "the null work" if asked["recording"] == "null" else "the recorded work"
    delay = "answers at once" if not asked["delay"] else f"takes {asked['delay']:g} s"
    return "\n".join(
        [
            f"### {name}: {asked['in_flight']:,} in flight, {work}, a model that {delay}",
            "",
            f"{asked['rollouts']:,} rollouts; medians of {asked['repeats']}.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---" * len(COLUMNS) + "|",
            *rows,
        ]
    )


def fault_table(measure: dict[str, Any]) -> str:
    asked, peers = measure["asked"], [peer for peer, runs in measure["runs"].items() if runs and "error" not in runs[0]]
    each = asked["rollouts"] // (len(FAULTS) + 1)
    lines = [
        f"### faults: {asked['rollouts']} rollouts, {each} of each kind, {asked['patience']:g} s of patience a request",
        "",
        "| what happens | " + " | ".join(PEERS[peer].title for peer in peers) + " |",
        "|---" * (len(peers) + 1) + "|",
    ]
    for kind in ("fine", *FAULTS):
        word = FAULT_WORDS[kind.removesuffix("_once")] + (", once" if kind.endswith("_once") else "")
        word += ", again and again" if f"{kind}_once" in FAULTS else ""
        lines.append(f"| {word} | " + " | ".join(outcome(measure["runs"][peer][0], kind) for peer in peers) + " |")
    open_ = (str(measure["runs"][peer][0]["open_sandboxes"]) for peer in peers)
    lines.append("| **sandboxes still open at the end** | " + " | ".join(open_) + " |")
    seconds = (f"{measure['runs'][peer][0]['seconds']:.0f}" for peer in peers)
    lines.append("| seconds until all was told | " + " | ".join(seconds) + " |")
    return "\n".join(lines)


def outcome(run: dict[str, Any], kind: str) -> str:
    """What became of the rollouts of a kind; a score that the fault made is what must not be."""
    if run["outcomes"] is None:
        return "stopped by the limit"
    counts = dict(run["outcomes"].get(kind, {}), lost=run["lost"][kind])
    words = {"right": "scored right", "wrong": "**scored wrong**", "unscored": "kept, no score", "lost": "**lost**"}
    return ", ".join(f"{counts[one]} {word}" for one, word in words.items() if counts.get(one)) or "none"


def settings(results: dict[str, Any]) -> str:
    lines = ["### versions and settings", "", "| framework | version | settings |", "|---|---|---|"]
    for peer, of in PEERS.items():
        runs = [run for one in results["measures"].values() for run in one["runs"].get(peer, ()) if "error" not in run]
        if runs:
            lines.append(f"| {of.title} | {runs[0]['version']} | {runs[0]['settings']} |")
    return "\n".join(lines)
