"""Whose draft a call is about.

Always true: two clients never share a draft unless both name it. A program over stdio is one client. Over HTTP a client
of the older protocol has a session; one of the newer has none and says which draft it means.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.calling import RlTool
from hermes_rl.runs.rl_tools.drafts import checked_session

PREFIX = "mcp-"
DRAFT = "draft"
DRAFT_SCHEMA = {
    "type": "string",
    "description": "The draft to work on, as rl_select_environment named it. Needed when the connection has no "
    "session. rl_select_environment without it begins a new draft.",
}


@dataclass(frozen=True, slots=True)
class Choice:
    """The draft of a call, and the other arguments. `told` is of a draft that the caller must name from now on."""

    session: str
    arguments: dict[str, Any]
    told: bool = False


def fresh_session() -> str:
    return f"{PREFIX}{uuid.uuid4().hex[:16]}"


def session_of(transport_session: str) -> str:
    """Not the session's own id, which is a secret of the client."""
    return f"{PREFIX}{hashlib.sha256(transport_session.encode()).hexdigest()[:16]}"


def chosen(tool: RlTool, arguments: Mapping[str, Any], own: str | None) -> Choice:
    """`own` is the session of the connection, None when it has none."""
    given = dict(arguments)
    if not tool.drafts:
        return Choice(own or "default", given)
    named = given.pop(DRAFT, None)
    if named is not None:
        return Choice(checked_session(str(named)), given, told=own is None)
    if own is not None:
        return Choice(own, given)
    if tool.tool.name == "rl_select_environment" and not given.get("add"):
        return Choice(fresh_session(), given, told=True)
    if tool.tool.name == "rl_start_training" and given.get("resume"):
        return Choice("default", given)
    raise RefusalError(
        f"this connection keeps no session, so {tool.tool.name} needs to be told the draft it is about",
        f"{tool.tool.name} with draft=NAME, the draft that rl_select_environment answered with",
    )


def with_draft(answer: dict[str, Any], choice: Choice) -> dict[str, Any]:
    """The answer with the draft that the caller is to name in the calls that follow."""
    if not choice.told:
        return answer
    following = f"{answer['next']}; each with draft={choice.session!r}" if "next" in answer else None
    return {**answer, DRAFT: choice.session, **({"next": following} if following else {})}
