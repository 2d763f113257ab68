"""The MCP server: the ten tools with their schemas and hints, progress while they work, and the resources.

Always true: a wrong call is answered as the tools answer it, with `isError`; only an unknown resource is an error of
the protocol.
"""

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hermes_rl.errors import HermesRLError
from hermes_rl.runs.mcp_server import resources
from hermes_rl.runs.mcp_server.sessions import DRAFT, DRAFT_SCHEMA, chosen, with_draft
from hermes_rl.runs.rl_tools.answers import RefusalError
from hermes_rl.runs.rl_tools.calling import RL_TOOLS, RlTool, called
from hermes_rl.runs.rl_tools.desk import Desk, RunFunctions
from hermes_rl.version import __version__

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext

INSTRUCTIONS = (
    "Train a language model with reinforcement learning. The way of it: rl_list_environments, rl_select_environment, "
    "rl_get_current_config, rl_edit_config, rl_test_inference (to try the environment on models first), "
    'rl_start_training, rl_check_status until the run has ended, rl_get_results. Every answer is JSON; "error" says '
    'what is wrong and "next" which call to make. Runs go on when you leave; rl_list_runs finds them again.'
)


def rl_server(
    session_of_call: "Callable[[ServerRequestContext[Any]], str | None]",
    runs: RunFunctions | None = None,
    *,
    names_drafts: bool = False,
) -> "Server[Any]":
    """`names_drafts` where a client may have no session, and the tools of a draft take its name."""
    import mcp_types as types
    from mcp.server import Server
    from mcp.shared.exceptions import MCPError

    functions = runs or RunFunctions()

    async def list_tools(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[described(one, names_drafts=names_drafts) for one in RL_TOOLS.values()])

    async def call_tool(
        context: "ServerRequestContext[Any]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        answer = await _answered(params.name, params.arguments or {}, session_of_call(context), functions, context)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=json.dumps(answer, indent=2, ensure_ascii=False))],
            structured_content=answer,
            is_error="error" in answer and "run_id" not in answer,
        )

    async def list_resources(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await asyncio.to_thread(resources.listed))

    async def list_templates(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=resources.templates())

    async def read_resource(
        _context: "ServerRequestContext[Any]", params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            content = await asyncio.to_thread(resources.read, str(params.uri))
        except (HermesRLError, OSError) as error:
            raise MCPError(types.INVALID_PARAMS, str(error), {"uri": str(params.uri)}) from None
        return types.ReadResourceResult(contents=[content])

    return Server(
        "hermes-rl",
        version=__version__,
        title="hermes-rl: reinforcement learning runs",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def described(one: RlTool, *, names_drafts: bool) -> "types.Tool":
    import mcp_types as types

    schema = dict(one.tool.parameters)
    if names_drafts and one.drafts:
        schema["properties"] = {**schema.get("properties", {}), DRAFT: DRAFT_SCHEMA}
    return types.Tool(
        name=one.tool.name,
        title=one.title,
        description=one.tool.description,
        input_schema=schema,
        annotations=types.ToolAnnotations(
            title=one.title,
            read_only_hint=one.read_only,
            destructive_hint=one.destructive,
            idempotent_hint=one.idempotent,
            open_world_hint=one.open_world,
        ),
    )


async def _answered(
    name: str,
    arguments: dict[str, Any],
    session: str | None,
    functions: RunFunctions,
    context: "ServerRequestContext[Any]",
) -> dict[str, Any]:
    async def report(done: float, total: float, message: str) -> None:
        await context.session.report_progress(done, total, message)

    tool = RL_TOOLS.get(name)
    if tool is None:
        return await called(Desk(runs=functions), name)
    try:
        choice = chosen(tool, arguments, session)
    except RefusalError as error:
        return error.answer
    except HermesRLError as error:
        return {"error": str(error), "next": "rl_select_environment without draft begins a new one"}
    return with_draft(await called(Desk(choice.session, functions), name, choice.arguments, report), choice)
