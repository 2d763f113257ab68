"""Runs as MCP resources: `hermes-rl://runs`, and the configuration, curve and log tails of each run."""

import base64
import json
import re
from typing import TYPE_CHECKING

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.status.curve import curve_png
from hermes_rl.orchestration.status.logs import log_lines, log_parts
from hermes_rl.orchestration.status.run_list import list_runs

if TYPE_CHECKING:
    import mcp_types as types

RUNS = "hermes-rl://runs"
RUN_URI = re.compile(r"hermes-rl://runs/(?P<run>[^/]+)/(?P<what>config|curve|log)(?:/(?P<part>[^/]+))?")
MAX_LISTED_RUNS = 20
LOG_LINES = 1000


def resource_templates() -> "list[types.ResourceTemplate]":
    import mcp_types as types

    return [
        types.ResourceTemplate(
            name="log",
            uri_template=f"{RUNS}/{{run_id}}/log/{{part}}",
            description=f"The last {LOG_LINES} lines of a part's log; part is api, trainer, env, engine or supervisor, "
            "and env-NAME where there are several environments.",
            mime_type="text/plain",
        ),
        types.ResourceTemplate(
            name="curve",
            uri_template=f"{RUNS}/{{run_id}}/curve",
            description="The reward of each step as an image.",
            mime_type="image/png",
        ),
        types.ResourceTemplate(
            name="config",
            uri_template=f"{RUNS}/{{run_id}}/config",
            description="The configuration with which the run was started, with all values.",
            mime_type="application/yaml",
        ),
    ]


def list_resources() -> "list[types.Resource]":
    """The list of runs, and the resources of the newest ones."""
    import mcp_types as types

    found = [types.Resource(name="runs", uri=RUNS, description="All runs, newest first.", mime_type="application/json")]
    for run in list_runs()[:MAX_LISTED_RUNS]:
        run_id = str(run["run_id"])
        kinds = [
            ("config", "config", "configuration", "application/yaml"),
            ("curve", "curve", "curve", "image/png"),
            *((f"log-{part}", f"log/{part}", f"log of {part}", "text/plain") for part in logged_parts(run_id)),
        ]
        found += [
            types.Resource(
                name=f"{name}-{run_id}",
                uri=f"{RUNS}/{run_id}/{path}",
                description=f"The {what} of run {run_id}.",
                mime_type=mime_type,
            )
            for name, path, what, mime_type in kinds
        ]
    return found


def read_resource(uri: str) -> "types.TextResourceContents | types.BlobResourceContents":
    """ConfigError for an unknown URI."""
    import mcp_types as types

    if uri == RUNS:
        text = json.dumps({"runs": list_runs()}, indent=2, ensure_ascii=False, default=str)
        return types.TextResourceContents(uri=uri, text=text, mime_type="application/json")
    address = RUN_URI.fullmatch(uri)
    if address is None or (address["what"] == "log") != (address["part"] is not None):
        raise ConfigError(f"there is no resource {uri}; {RUNS} lists the runs, the resource templates their URIs")
    paths = RunPaths(address["run"])
    if not paths.folder.is_dir():
        raise ConfigError(f"there is no run {address['run']!r}; {RUNS} lists the runs")
    match address["what"]:
        case "config":
            return types.TextResourceContents(uri=uri, text=paths.file.read_text(), mime_type="application/yaml")
        case "curve":
            image = base64.b64encode(curve_png(paths.run_id).read_bytes()).decode()
            return types.BlobResourceContents(uri=uri, blob=image, mime_type="image/png")
        case _:
            text = log_lines(paths.run_id, address["part"], LOG_LINES)
            return types.TextResourceContents(uri=uri, text=text, mime_type="text/plain")


def logged_parts(run_id: str) -> list[str]:
    paths = RunPaths(run_id)
    return [part for part in log_parts(paths, []) if paths.log(part).exists()]
