"""Secrets in traces: what is removed, and what stays."""

import pytest

from hermes_rl.core.redaction import has_password
from hermes_rl.interop.traces.secrets import SecretReport, redact, redact_text
from hermes_rl.orchestration.secret_settings import looks_like_key

LONG = "a1B2c3D4e5F6g7H8i9J0"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"key sk-{LONG}.", "key [redacted OpenAI-style key]."),
        (f"export GITHUB_TOKEN=ghp_{LONG}", "export GITHUB_TOKEN=[redacted GitHub token]"),
        (f"eyJhbGciOiJIUzI1NiJ9.{LONG}.{LONG}", "[redacted JSON web token]"),
        ("postgres://me:pa55@host/db", "postgres://[redacted password in a URL]@host/db"),
        (f"Authorization: Bearer {LONG}", "Authorization: Bearer [redacted authorization header]"),
        ('{"api_key": "abc123def456"}', '{"api_key": "[redacted named secret]"}'),
        (r"{\"password\": \"hunter2!\"}", r"{\"password\": \"[redacted named secret]\"}"),
        ("DB_PASSWORD=tr0ub4dor&3", "DB_PASSWORD=[redacted named secret]&3"),
        (f"-----BEGIN RSA PRIVATE KEY-----\n{LONG}\n-----END RSA PRIVATE KEY-----\nok", "[redacted private key]\nok"),
    ],
)
def test_a_secret_is_replaced_by_its_kind(text: str, clean: str) -> None:
    assert redact_text(text)[0] == clean


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens: 12345678",
        "token = get_next_token(stream)",
        "api_key=$OPENAI_API_KEY",
        "api_key: env:OPENAI_API_KEY2",
        "https://example.com/a@b",
        "git@github.com:me/it.git",
        "the secret of the sauce: mustard",
        "basic understanding",
    ],
)
def test_what_only_resembles_a_secret_stays(text: str) -> None:
    assert redact_text(text) == (text, ())


@pytest.mark.parametrize("prefix", "sk- tml- hf_ ghp_ github_pat_ xai- tvly- gsk_ AKIA".split())
def test_what_settings_take_for_a_key_is_removed(prefix: str) -> None:
    assert looks_like_key(f"{prefix}{LONG}")
    assert not looks_like_key(redact_text(f"{prefix}{LONG}")[0])


def test_a_password_in_a_url_is_gone() -> None:
    assert not has_password(redact_text("http://a:b@c/d")[0])


def test_a_field_with_a_telling_name_is_removed_and_its_role_noted() -> None:
    report = SecretReport()
    message = {"role": "tool", "content": {"access_token": "abc123def456", "n": 1}}
    clean, had = redact({"messages": [message]}, "a:1", report)
    assert had
    assert clean == {"messages": [{"role": "tool", "content": {"access_token": "[redacted named secret]", "n": 1}}]}
    assert report.as_dict()["named secret"]["where"] == {"tool results": 1}


def test_one_secret_in_two_places_is_counted_once_as_distinct() -> None:
    report = SecretReport()
    redact([f"sk-{LONG}", f"again sk-{LONG}"], "a:1", report)
    found = report.as_dict()["OpenAI-style key"]
    assert (found["distinct"], found["occurrences"]) == (1, 2)
