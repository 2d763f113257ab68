from datetime import UTC, datetime

import pytest

from hermes_rl.core.backoff import backoff_seconds, parse_retry_after


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("-1", 0.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str, seconds: float | None) -> None:
    assert parse_retry_after(header, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_a_pause_after_any_number_of_tries_is_within_its_bound() -> None:
    assert all(5.0 <= backoff_seconds(attempt, initial=0.1, maximum=10.0) <= 10.0 for attempt in (7, 64, 10**9))
