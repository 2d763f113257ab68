"""What a chaos came to: the kills by victim and by what was under way, and the figures of the whole."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.chaos.trajectory.referee import Kill, Record
from tests.chaos.trajectory.verdict import Evidence

LEAST_IN_PROGRESS = 0.7
KILLED = ("api", "producer", "consumer")


def share_in_progress(kills: Sequence[Kill]) -> float:
    return sum(kill.in_progress for kill in kills) / len(kills) if kills else 1.0


def told(
    record: Record,
    evidence: Evidence,
    producers: Mapping[str, Sequence[Mapping[str, Any]]],
    consumer: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    killed = [kill for kill in record.kills if kill.victim in KILLED]
    posts = [line for lines in producers.values() for line in lines]
    leased = {line["leased"] for line in consumer if "leased" in line}
    released = [batch for line in consumer for batch in line.get("released", ())]
    victims = sorted({kill.victim for kill in record.kills})
    return {
        "kills": {victim: sum(kill.victim == victim for kill in record.kills) for victim in victims},
        "in_progress": round(share_in_progress(killed), 3),
        "in_progress_by_victim": {
            victim: round(share_in_progress([kill for kill in record.kills if kill.victim == victim]), 3)
            for victim in victims
        },
        "groups": len(evidence.stored),
        "batches": len(evidence.trained),
        "posts_answered": sum("answered" in line for line in posts),
        "posts_answered_as_known": sum(line.get("new") is False for line in posts),
        "posts_unanswered_by_status": dict(Counter(str(line["status"]) for line in posts if "status" in line)),
        "batches_given_back": len(released),
        "batches_leased_and_never_told": len(set(released) - leased),
        "disk_full": record.disk,
        "seconds": round(record.seconds, 1),
        "groups_a_second": round(len(evidence.stored) / record.seconds, 1) if record.seconds else None,
        "held": [asdict(kill) for kill in record.kills],
    }


def table(kills: Sequence[Kill]) -> str:
    """A row for each victim and what was under way, the frequent ones first."""
    counts = Counter((kill.victim, kill.in_progress, kill.doing) for kill in kills)
    rows = ["| killed | at work | under way | times |", "|---|---|---|---|"]
    for (victim, at_work, doing), count in sorted(counts.items(), key=lambda row: (row[0][0], not row[0][1], -row[1])):
        rows.append(f"| {victim} | {'yes' if at_work else 'no'} | {doing} | {count} |")
    return "\n".join(rows)
