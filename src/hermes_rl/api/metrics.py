"""Prometheus metrics of the trajectory API."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from hermes_rl.http.prometheus import format_labels, histogram_lines, metric_lines, process_lines
from hermes_rl.http.request_metrics import Requests
from hermes_rl.store.database.ingest_stats import IngestStats
from hermes_rl.store.database.views import OutcomeTally, Status

MAX_STALENESS_LABEL = 16


def render_metrics(
    requests: Requests,
    status: Status,
    tallies: Sequence[OutcomeTally],
    names: Mapping[int, str],
    *,
    intake: IngestStats,
    versions: Mapping[int, int],
) -> str:
    def environment(number: int, **kinds: str) -> str:
        return format_labels(environment=names.get(number, ""), number=str(number), **kinds)

    lines = metric_lines("policy_version", "gauge", "The policy's version.", {"": status.version})
    if status.capacity is not None:
        about = "Rollouts that may start without becoming too stale."
        lines += metric_lines("capacity_rollouts", "gauge", about, {"": status.capacity})
    queued = {
        environment(number, state=state): count
        for number, part in status.backlog.items()
        for state, count in (("waiting", part.waiting), ("leased", part.leased))
    }
    lines += metric_lines("queued_rollouts", "gauge", "Rollouts in the queue.", queued)
    groups = {
        environment(number, state=state): count
        for number, part in status.backlog.items()
        for state, count in (("waiting", part.waiting_groups), ("leased", part.leased_groups))
    }
    lines += metric_lines("queued_groups", "gauge", "Groups in the queue.", groups)
    behind: Counter[str] = Counter()
    for version, count in versions.items():
        late = max(0, status.version - version)
        behind[format_labels(behind=str(late) if late < MAX_STALENESS_LABEL else f"{MAX_STALENESS_LABEL}+")] += count
    about = "Queued rollouts by staleness: versions between the policy and their oldest token."
    lines += metric_lines("queued_staleness_rollouts", "gauge", about, behind)
    running = {environment(number): count for number, count in status.running.items()}
    lines += metric_lines("running_rollouts", "gauge", "Rollouts in progress, as reported by environments.", running)
    wanted = {environment(number): count for number, count in status.wanted.items()}
    lines += metric_lines("wanted_rollouts", "gauge", "Rollouts requested by environments and not granted.", wanted)
    for name, about in (("rollouts", "Rollouts that left the queue."), ("groups", "Groups that left the queue.")):
        ended = {
            environment(tally.environment, outcome=tally.outcome, cause=tally.cause): getattr(tally, name)
            for tally in tallies
        }
        lines += metric_lines(f"ended_{name}_total", "counter", about, ended)
    return "\n".join(lines + _received(intake, environment) + process_lines(requests)) + "\n"


def _received(intake: IngestStats, environment: Callable[..., str]) -> list[str]:
    """Metrics of groups received by this process since it started."""
    lines = []
    for name, about, counts in (
        ("received_groups_total", "Groups received, without duplicates.", intake.groups),
        ("received_bytes_total", "Bytes of received groups.", intake.bytes),
        ("received_completion_tokens_total", "Completion tokens of received rollouts.", intake.tokens),
    ):
        lines += metric_lines(name, "counter", about, {environment(number): count for number, count in counts.items()})
    failures = {
        environment(number, whose=whose, cause=cause): count
        for (number, whose, cause), count in intake.failures.items()
    }
    lines += metric_lines(
        "failed_rollouts_total", "counter", "Rollouts without a score, by failure source and cause.", failures
    )
    about = "Seconds from the start of a rollout to its score."
    lines += histogram_lines(
        "rollout_seconds", about, {environment(n): histogram for n, histogram in intake.seconds.items()}
    )
    about = "Scores of rollouts."
    lines += histogram_lines(
        "rollout_score", about, {environment(n): histogram for n, histogram in intake.scores.items()}
    )
    return lines
