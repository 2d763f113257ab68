"""Hides passwords in URLs (`http://user:password@host`), wherever text is shown or saved."""

import re

HIDDEN = "**********"
# Up to the last @ of the host part, because a password may contain one.
_CREDENTIALS = re.compile(r"(://)[^/?#\s\"'<>]*@")


def redact_urls(text: str) -> str:
    return _CREDENTIALS.sub(rf"\g<1>{HIDDEN}@", text) if "://" in text else text


def has_password(url: str) -> bool:
    """Whether a URL contains a password."""
    match = _CREDENTIALS.search(url)
    return match is not None and ":" in match[0].removeprefix("://")
