"""What an inference server counts beside its requests, and the text that Prometheus reads."""

from collections import Counter

from hermes_rl.api.measures import Requests, histogram, labels, process_lines, series
from hermes_rl.store.database.intake import Histogram
from hermes_rl.training.coalescing import Coalesced

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKENS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0)


class Tally:
    """Tokens in and out, the seconds that calls waited for them, how many failed and why, and how many wait now."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.completions = 0
        self.seconds = 0.0
        self.waiting = 0
        self.latency = Histogram(SECONDS)
        self.lengths = Histogram(TOKENS)
        self.failures: Counter[str] = Counter()


def exposition(requests: Requests, tally: Tally, policy: Coalesced) -> str:
    lines = [] if policy.version is None else series("policy_version", "gauge", "The weights.", {"": policy.version})
    figures = (
        ("prompt_tokens_total", "Tokens of prompts.", tally.prompt_tokens),
        ("completion_tokens_total", "Tokens sampled.", tally.completion_tokens),
        ("completions_total", "Completions sampled.", tally.completions),
        ("sampling_seconds_total", "Seconds that requests waited for their samples.", tally.seconds),
        ("sampling_requests_total", "Requests for samples.", policy.requests),
        ("sampling_calls_total", "Calls of the sampler for them; fewer where requests were joined.", policy.calls),
    )
    for name, about, value in figures:
        lines += series(name, "counter", about, {"": value})
    failures = {labels(cause=cause): count for cause, count in tally.failures.items()}
    lines += series("sampling_failures_total", "counter", "Requests for samples that failed, by cause.", failures)
    lines += histogram("sampling_latency_seconds", "How long requests waited for their samples.", {"": tally.latency})
    lines += histogram("completion_length_tokens", "Tokens of one completion.", {"": tally.lengths})
    lines += series("sampling_waiting", "gauge", "Requests that wait for samples now.", {"": tally.waiting})
    return "\n".join(lines + process_lines(requests)) + "\n"
