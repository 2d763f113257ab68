"""Finds and removes secrets in traces: keys by their form, and values that are assigned to a telling name.

Always true: a removed secret is in no output and no report; only its kind, its hash for counting, and where it was are
kept. What `secret_settings.looks_like_key` recognizes is removed.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

MAX_CACHED = 10_000
MAX_PLACES = 5
_PREFIXES = {
    "sk-ant-": "Anthropic key",
    "sk-": "OpenAI-style key",
    "hf_": "Hugging Face token",
    "github_pat_": "GitHub token",
    "ghp_": "GitHub token",
    "gho_": "GitHub token",
    "ghu_": "GitHub token",
    "ghs_": "GitHub token",
    "ghr_": "GitHub token",
    "glpat-": "GitLab token",
    "AKIA": "AWS key id",
    "ASIA": "AWS key id",
    "AIza": "Google key",
    "xoxb-": "Slack token",
    "xoxp-": "Slack token",
    "xoxa-": "Slack token",
    "sk_live_": "Stripe key",
    "rk_live_": "Stripe key",
    "npm_": "npm token",
    "pypi-": "PyPI token",
    "tml-": "Tinker key",
    "xai-": "xAI key",
    "tvly-": "Tavily key",
    "gsk_": "Groq key",
    "nvapi-": "NVIDIA key",
}
_KEY = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, _PREFIXES))})[A-Za-z0-9_-]{{12,}}")
_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:(?!-----END)[\s\S])*(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?"
)
_JWT = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}")
_PASSWORD_IN_URL = re.compile(r"(?<=://)[^/?#\s\"'<>:@]*:[^/?#\s\"'<>]*(?=@)")
_HEADER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)([A-Za-z0-9._~+/=-]{16,})")
_NAME = r"(?:api_?key|access_?key|private_?key|secret|token|passw(?:or)?d)"
# The name, also inside a longer one and in quotes that are escaped, then the value.
_ASSIGNED = re.compile(
    rf"(?i)({_NAME}[a-z0-9_]{{0,30}}\\?[\"']?\s{{0,4}}[:=]\s{{0,4}}\\?[\"']?)([^\s\"'\\,;(){{}}<>\[\]&|]{{8,}})"
)
_TELLING = re.compile(rf"(?i)(?:^|[a-z0-9_-]){_NAME}$|^{_NAME}$|^authorization$")
_REFERENCES = ("$", "env:", "file:", "os.", "process.", "[redacted")
_MARKS = ("key", "secret", "token", "passw")
_ROLES = {
    "system": "system prompts", "user": "user messages", "assistant": "answers", "agent": "answers",
    "tool": "tool results",
}  # fmt: skip
_KEYS = {
    "arguments": "tool arguments", "tool_calls": "tool arguments", "observation": "tool results",
    "tools": "tool schemas", "tool_definitions": "tool schemas", "fields": "metadata", "extra": "metadata",
}  # fmt: skip


class Found(NamedTuple):
    """A secret in a text: its kind, and a hash of it, to count distinct ones."""

    kind: str
    digest: bytes


@dataclass(slots=True)
class SecretReport:
    """What was removed: distinct secrets by kind, how often each kind occurred, and where."""

    distinct: dict[str, set[bytes]] = field(default_factory=dict)
    occurrences: Counter[str] = field(default_factory=Counter)
    where: dict[str, Counter[str]] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, found: Found, where: str, place: str) -> None:
        self.distinct.setdefault(found.kind, set()).add(found.digest)
        self.occurrences[found.kind] += 1
        self.where.setdefault(found.kind, Counter())[where] += 1
        places = self.places.setdefault(found.kind, [])
        if len(places) < MAX_PLACES and place not in places:
            places.append(place)

    def as_dict(self) -> dict[str, Any]:
        return {
            kind: {
                "distinct": len(self.distinct[kind]),
                "occurrences": times,
                "where": dict(self.where[kind].most_common()),
                "for_instance": self.places[kind],
            }
            for kind, times in self.occurrences.most_common()
        }


def redact(value: Any, place: str, report: SecretReport) -> tuple[Any, bool]:
    """The value without secrets, and whether it had any."""
    before = report.occurrences.total()
    return _redact(value, "metadata", place, report), report.occurrences.total() > before


def redact_text(text: str) -> tuple[str, tuple[Found, ...]]:
    """The text without secrets, each replaced by `[redacted KIND]`."""
    return _cached(text) if len(text) <= MAX_CACHED else _search(text)


def _redact(value: Any, where: str, place: str, report: SecretReport) -> Any:
    if isinstance(value, str):
        clean, found = redact_text(value)
        for one in found:
            report.add(one, where, place)
        return clean
    if isinstance(value, list):
        return [_redact(one, where, place, report) for one in value]
    if not isinstance(value, Mapping):
        return value
    where = _ROLES.get(_short(value.get("role") or value.get("source")), where)
    clean_fields: dict[Any, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, str) and isinstance(key, str) and _TELLING.search(key) and _is_secret(inner):
            report.add(_found("named secret", inner), _KEYS.get(key, where), place)
            clean_fields[key] = "[redacted named secret]"
        else:
            clean_fields[key] = _redact(inner, _KEYS.get(_short(key), where), place, report)
    return clean_fields


def _short(value: Any) -> str:
    return value if isinstance(value, str) else ""


@lru_cache(maxsize=4096)
def _cached(text: str) -> tuple[str, tuple[Found, ...]]:
    return _search(text)


def _search(text: str) -> tuple[str, tuple[Found, ...]]:
    found: list[Found] = []

    def hide(kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            found.append(_found(kind, match[0]))
            return f"[redacted {kind}]"

        return replace

    def hide_key(match: re.Match[str]) -> str:
        return hide(_PREFIXES[match[1]])(match)

    def hide_value(kind: str) -> Callable[[re.Match[str]], str]:
        def replace(match: re.Match[str]) -> str:
            if not _is_secret(match[2]):
                return match[0]
            found.append(_found(kind, match[2]))
            return f"{match[1]}[redacted {kind}]"

        return replace

    if "PRIVATE KEY-----" in text:
        text = _PRIVATE_KEY.sub(hide("private key"), text)
    text = _KEY.sub(hide_key, text)
    if "eyJ" in text:
        text = _JWT.sub(hide("JSON web token"), text)
    if "://" in text and "@" in text:
        text = _PASSWORD_IN_URL.sub(hide("password in a URL"), text)
    lower = text.lower()
    if "bearer" in lower or "basic" in lower:
        text = _HEADER.sub(hide_value("authorization header"), text)
    if any(mark in lower for mark in _MARKS):
        text = _ASSIGNED.sub(hide_value("named secret"), text)
    return text, tuple(found)


def _is_secret(value: str) -> bool:
    """Whether an assigned value looks random: code and prose also assign to such names."""
    return (
        len(value) >= 8
        and not value.startswith(_REFERENCES)
        and not any(one.isspace() for one in value)
        and any(one.isdigit() for one in value)
        and any(one.isalpha() for one in value)
    )


def _found(kind: str, secret: str) -> Found:
    return Found(kind, hashlib.sha256(secret.encode("utf-8", "replace")).digest()[:16])
