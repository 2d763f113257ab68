"""Which draft a call uses.

Always true: two clients never share a draft unless both name it. A stdio connection is one client. Over HTTP, a client
of the older protocol has a session; a client of the newer one has none and names the draft.
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hermes_rl.orchestration.rl_tools.dispatch import RlTool
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.orchestration.rl_tools.session_draft import validate_session

PREFIX = "mcp-"
DRAFT = "draft"
DRAFT_SCHEMA = {
    "type": "string",
    "description": "The draft to use, as returned by rl_select_environment. Required when the connection has no "
    "session. rl_select_environment without it starts a new draft.",
}


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """The draft of a call, and the other arguments. `report_draft`: the caller must name the draft from now on."""

    session: str
    arguments: dict[str, Any]
    report_draft: bool = False


def new_session() -> str:
    return f"{PREFIX}{uuid.uuid4().hex[:16]}"


def hashed_session(transport_session: str) -> str:
    """Hashed, since the transport's session id is a secret of the client."""
    return f"{PREFIX}{hashlib.sha256(transport_session.encode()).hexdigest()[:16]}"


def choose_draft(tool: RlTool, arguments: Mapping[str, Any], connection_session: str | None) -> DraftChoice:
    """`connection_session` is None for a connection without a session."""
    remaining = dict(arguments)
    if not tool.uses_draft:
        return DraftChoice(connection_session or "default", remaining)
    name = remaining.pop(DRAFT, None)
    if name is not None:
        return DraftChoice(validate_session(str(name)), remaining, report_draft=connection_session is None)
    if connection_session is not None:
        return DraftChoice(connection_session, remaining)
    if tool.tool.name == "rl_select_environment" and not remaining.get("add"):
        return DraftChoice(new_session(), remaining, report_draft=True)
    if tool.tool.name == "rl_start_training" and remaining.get("resume"):
        return DraftChoice("default", remaining)
    raise RefusalError(
        f"this connection has no session, so {tool.tool.name} needs the name of a draft",
        f"{tool.tool.name} with draft=NAME, the draft that rl_select_environment returned",
    )


def with_draft(answer: dict[str, Any], choice: DraftChoice) -> dict[str, Any]:
    """The answer, with the draft's name when the caller must pass it in later calls."""
    if not choice.report_draft:
        return answer
    following = f"{answer['next']}; each with draft={choice.session!r}" if "next" in answer else None
    return {**answer, DRAFT: choice.session, **({"next": following} if following else {})}
