"""Sampling metrics of the inference server, and their Prometheus text."""

from collections import Counter

from hermes_rl.core.histogram import Histogram
from hermes_rl.http.prometheus import format_labels, histogram_lines, metric_lines, process_lines
from hermes_rl.http.request_metrics import Requests
from hermes_rl.training.request_batching import CoalescingPolicy

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0)


class TokenCounts:
    """Token counts, waiting times, failures by cause, and requests waiting now."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.completions = 0
        self.seconds = 0.0
        self.waiting = 0
        self.latency = Histogram(SECONDS)
        self.lengths = Histogram(TOKENS)
        self.failures: Counter[str] = Counter()


def prometheus_text(requests: Requests, counts: TokenCounts, policy: CoalescingPolicy) -> str:
    lines = (
        []
        if policy.version is None
        else metric_lines("policy_version", "gauge", "Policy version.", {"": policy.version})
    )
    counters = (
        ("prompt_tokens_total", "Prompt tokens.", counts.prompt_tokens),
        ("completion_tokens_total", "Tokens sampled.", counts.completion_tokens),
        ("completions_total", "Completions sampled.", counts.completions),
        ("sampling_seconds_total", "Seconds that requests waited for samples.", counts.seconds),
        ("sampling_requests_total", "Sampling requests.", policy.requests),
        ("sampling_calls_total", "Sampler calls; fewer than requests if requests were merged.", policy.calls),
    )
    for name, description, value in counters:
        lines += metric_lines(name, "counter", description, {"": value})
    failures = {format_labels(cause=cause): count for cause, count in counts.failures.items()}
    lines += metric_lines("sampling_failures_total", "counter", "Failed sampling requests, by cause.", failures)
    lines += histogram_lines(
        "sampling_latency_seconds", "Seconds a request waited for its samples.", {"": counts.latency}
    )
    lines += histogram_lines("completion_length_tokens", "Tokens per completion.", {"": counts.lengths})
    lines += metric_lines("sampling_waiting", "gauge", "Requests waiting for samples.", {"": counts.waiting})
    return "\n".join(lines + process_lines(requests)) + "\n"
