"""The text of metrics, read by Prometheus' own client."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from hermes_rl.core.histogram import Histogram
from hermes_rl.http.prometheus import format_labels, histogram_lines, metric_lines, process_lines
from hermes_rl.http.request_metrics import Requests


def samples(lines: list[str]) -> dict[tuple[str, str], float]:
    """The value of each sample by its name and the value of its last label."""
    return {
        (sample.name, next(reversed(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families("\n".join(lines) + "\n")
        for sample in family.samples
    }


def test_a_large_sum_keeps_its_seconds() -> None:
    histogram = Histogram([1.0])
    histogram.observe(1_234_567)
    histogram.observe(3)
    assert "hermes_rl_x_sum 1234570" in histogram_lines("x", "About x.", {"": histogram})


@given(st.text())
def test_a_label_is_read_back_as_it_was(value: str) -> None:
    [family] = text_string_to_metric_families(
        "\n".join(metric_lines("x", "gauge", "About x.", {format_labels(name=value): 1})) + "\n"
    )
    assert [sample.labels for sample in family.samples] == [{"name": value}]


def test_buckets_are_cumulative() -> None:
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.5, 9.0):
        histogram.observe(value)
    found = samples(histogram_lines("x", "About x.", {format_labels(route="/a"): histogram}))
    buckets = [found["hermes_rl_x_bucket", bound] for bound in ("1.0", "2.0", "+Inf")]
    assert buckets == [1, 2, 3]
    assert (found["hermes_rl_x_sum", "/a"], found["hermes_rl_x_count", "/a"]) == (11, 3)


def test_requests_are_counted_by_route_and_status() -> None:
    requests = Requests()
    requests.record("GET", "/a", 200, 0.5)
    requests.record("GET", "/a", 404, 0.5)
    found = samples(process_lines(requests))
    assert [found["hermes_rl_requests_total", status] for status in ("200", "404")] == [1, 1]
    assert found["hermes_rl_request_seconds_count", "/a"] == 2
    assert found["hermes_rl_peak_memory_bytes", ""] > 0
