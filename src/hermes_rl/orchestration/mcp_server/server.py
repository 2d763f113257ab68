"""The MCP server: the ten tools and `rl_fork` with schemas and hints, progress reports, and the resources.

Always true: a failed tool call returns the tool's answer with `isError`; only an unknown resource is a protocol error.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hermes_rl.core.errors import HermesRLError
from hermes_rl.orchestration.discovery.allowed_files import AllowedFiles
from hermes_rl.orchestration.mcp_server import resources
from hermes_rl.orchestration.mcp_server.draft_choice import DRAFT, DRAFT_SCHEMA, choose_draft, with_draft
from hermes_rl.orchestration.rl_tools.answer_text import answer_text
from hermes_rl.orchestration.rl_tools.context import CallerContext, RunFunctions
from hermes_rl.orchestration.rl_tools.dispatch import MCP_TOOLS, RlTool, call_rl_tool
from hermes_rl.orchestration.rl_tools.errors import RefusalError
from hermes_rl.version import __version__

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext

INSTRUCTIONS = (
    "Train a language model with reinforcement learning. Workflow: rl_list_environments, rl_select_environment, "
    "rl_get_current_config, rl_edit_config, rl_test_inference (to test the environment on models first), "
    'rl_start_training, rl_check_status until the run has ended, rl_get_results. Every answer is JSON; "error" says '
    'what is wrong and "next" which call to make. Runs continue when you leave; rl_list_runs finds them again. rl_fork '
    "continues a recorded rollout from one of its turns."
)


def rl_server(
    session_of_call: "Callable[[ServerRequestContext[Any]], str | None]",
    runs: RunFunctions | None = None,
    *,
    names_drafts: bool = False,
    allowed_files: AllowedFiles | None = None,
) -> "Server[Any]":
    """`names_drafts`: clients may have no session, so tools that use a draft take its name as an argument.

    `allowed_files`: the files that clients may have loaded; None for any.
    """
    import mcp_types as types
    from mcp.server import Server
    from mcp.shared.exceptions import MCPError

    caller = CallerContext(runs=runs or RunFunctions(), allowed_files=allowed_files)

    async def list_tools(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[mcp_tool(rl_tool, names_drafts=names_drafts) for rl_tool in MCP_TOOLS.values()]
        )

    async def call_tool(
        context: "ServerRequestContext[Any]", params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        answer = await _call(params.name, params.arguments or {}, session_of_call(context), caller, context)
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=answer_text(answer))],
            structured_content=answer,
            is_error="error" in answer and "run_id" not in answer,
        )

    async def list_resources(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(resources=await asyncio.to_thread(resources.list_resources))

    async def list_templates(
        _context: "ServerRequestContext[Any]", _params: "types.PaginatedRequestParams | None"
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=resources.resource_templates())

    async def read_resource(
        _context: "ServerRequestContext[Any]", params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            content = await asyncio.to_thread(resources.read_resource, str(params.uri))
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


def mcp_tool(rl_tool: RlTool, *, names_drafts: bool) -> "types.Tool":
    import mcp_types as types

    schema = dict(rl_tool.tool.parameters)
    if names_drafts and rl_tool.uses_draft:
        schema["properties"] = {**schema.get("properties", {}), DRAFT: DRAFT_SCHEMA}
    return types.Tool(
        name=rl_tool.tool.name,
        title=rl_tool.title,
        description=rl_tool.tool.description,
        input_schema=schema,
        annotations=types.ToolAnnotations(
            title=rl_tool.title,
            read_only_hint=rl_tool.read_only,
            destructive_hint=rl_tool.destructive,
            idempotent_hint=rl_tool.idempotent,
            open_world_hint=rl_tool.open_world,
        ),
    )


async def _call(
    name: str,
    arguments: dict[str, Any],
    session: str | None,
    caller: CallerContext,
    context: "ServerRequestContext[Any]",
) -> dict[str, Any]:
    async def report(done: float, total: float, message: str) -> None:
        await context.session.report_progress(done, total, message)

    tool = MCP_TOOLS.get(name)
    if tool is None:
        return await call_rl_tool(caller, name)
    try:
        choice = choose_draft(tool, arguments, session)
    except RefusalError as error:
        return error.answer
    except HermesRLError as error:
        return {"error": str(error), "next": "rl_select_environment without draft starts a new one"}
    return with_draft(
        await call_rl_tool(replace(caller, session=choice.session), name, choice.arguments, report), choice
    )
