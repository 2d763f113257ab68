"""The Prometheus text format, version 0.0.4, and the metrics that every server has."""

import resource
import sys
from collections.abc import Mapping

from starlette.responses import PlainTextResponse

from hermes_rl.core.histogram import Histogram
from hermes_rl.http.request_metrics import Requests

# The unit of `ru_maxrss` in bytes.
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class MetricsResponse(PlainTextResponse):
    media_type = "text/plain; version=0.0.4"


def metric_lines(name: str, kind: str, about: str, values: Mapping[str, float]) -> list[str]:
    """The lines of one metric; `values` is keyed by formatted labels."""
    return [
        f"# HELP hermes_rl_{name} {about}",
        f"# TYPE hermes_rl_{name} {kind}",
        *(f"hermes_rl_{name}{label} {value:.15g}" for label, value in values.items()),
    ]


def process_lines(requests: Requests) -> list[str]:
    """The metrics of every server: requests, latencies and memory."""
    answered = {
        format_labels(method=method, route=route, status=str(code)): count
        for (method, route, code), count in requests.answered.items()
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT
    return [
        *metric_lines("requests_total", "counter", "Requests by method, route and status.", answered),
        *histogram_lines(
            "request_seconds",
            "Time from a request to the end of its answer.",
            {format_labels(route=route): seconds for route, seconds in requests.seconds.items()},
        ),
        *metric_lines("peak_memory_bytes", "gauge", "Peak resident memory.", {"": peak}),
    ]


def histogram_lines(name: str, about: str, by_label: Mapping[str, Histogram]) -> list[str]:
    """The lines of a histogram; `by_label` is keyed by formatted labels."""
    lines = [f"# HELP hermes_rl_{name} {about}", f"# TYPE hermes_rl_{name} histogram"]
    for label, histogram in by_label.items():
        total, opening = 0, f"{label[:-1]}," if label else "{"
        for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f'hermes_rl_{name}_bucket{opening}le="{bound}"}} {total}')
        lines.append(f"hermes_rl_{name}_sum{label} {histogram.sum:.15g}")
        lines.append(f"hermes_rl_{name}_count{label} {total}")
    return lines


def format_labels(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
