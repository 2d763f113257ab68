"""What an inference server counts beside its requests, and the text that Prometheus reads."""

from hermes_rl.api.measures import Requests, process_lines, series
from hermes_rl.training.coalescing import Coalesced


class Tally:
    """Tokens in and out, the seconds that calls waited for them, and how many wait now."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.completions = 0
        self.seconds = 0.0
        self.waiting = 0


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
    lines += series("sampling_waiting", "gauge", "Requests that wait for samples now.", {"": tally.waiting})
    return "\n".join(lines + process_lines(requests)) + "\n"
