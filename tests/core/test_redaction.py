"""Passwords in URLs are hidden, and nothing else is."""

import pytest

from hermes_rl.core.errors import ConfigError, EndpointError, failure_of
from hermes_rl.core.redaction import has_password, redact_urls

PASSWORD = "hunter2"
URL = f"http://me:{PASSWORD}@127.0.0.1:1/v1"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (URL, "http://**********@127.0.0.1:1/v1"),
        (f"postgresql://me:{PASSWORD}@db/x", "postgresql://**********@db/x"),
        (f"https://me:a@{PASSWORD}@host/", "https://**********@host/"),
        (f"https://{PASSWORD}@host", "https://**********@host"),
        (f"two: {URL} and {URL}.", "two: http://**********@127.0.0.1:1/v1 and http://**********@127.0.0.1:1/v1."),
        ("http://host/a@b?c@d#e@f", "http://host/a@b?c@d#e@f"),
        ("http://host:80, mail me@host", "http://host:80, mail me@host"),
        ('{"a": "http://host", "b": "x@y"}', '{"a": "http://host", "b": "x@y"}'),
        ("no address: a:b@c", "no address: a:b@c"),
    ],
)
def test_only_what_precedes_the_host_is_hidden(text: str, shown: str) -> None:
    assert redact_urls(text) == shown


def test_a_user_alone_is_no_password() -> None:
    assert has_password(URL) and not has_password("postgresql://me@db:5432/x") and not has_password("http://host:80/")


def test_no_message_of_an_error_has_the_password() -> None:
    for error in (ConfigError(f"no {URL}"), EndpointError("down", f"{URL} is down"), ValueError(URL)):
        assert PASSWORD not in failure_of(error).message
        assert PASSWORD not in str(error) or isinstance(error, ValueError)
