"""Runs as resources: `hermes-rl://runs`, and of each run its configuration, its curve and the end of its logs."""

import base64
import json
import re
from typing import TYPE_CHECKING

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.watching.curve import curve_png
from hermes_rl.runs.watching.listing import list_runs
from hermes_rl.runs.watching.logs import log_lines, log_parts

if TYPE_CHECKING:
    import mcp_types as types

RUNS = "hermes-rl://runs"
ADDRESS = re.compile(r"hermes-rl://runs/(?P<run>[^/]+)/(?P<what>config|curve|log)(?:/(?P<part>[^/]+))?")
LISTED_RUNS = 20
LOG_LINES = 1000


def templates() -> "list[types.ResourceTemplate]":
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
            description="The reward of each step as a picture.",
            mime_type="image/png",
        ),
        types.ResourceTemplate(
            name="config",
            uri_template=f"{RUNS}/{{run_id}}/config",
            description="The run as it was started, with every value.",
            mime_type="application/yaml",
        ),
    ]


def listed() -> "list[types.Resource]":
    """All runs in one, and what there is of the newest."""
    import mcp_types as types

    found = [types.Resource(name="runs", uri=RUNS, description="All runs, newest first.", mime_type="application/json")]
    for run in list_runs()[:LISTED_RUNS]:
        run_id = str(run["run_id"])
        about = f"of the run {run_id}"
        found.append(
            types.Resource(
                name=f"config-{run_id}",
                uri=f"{RUNS}/{run_id}/config",
                description=f"The configuration {about}.",
                mime_type="application/yaml",
            )
        )
        found.append(
            types.Resource(
                name=f"curve-{run_id}",
                uri=f"{RUNS}/{run_id}/curve",
                description=f"The curve {about}.",
                mime_type="image/png",
            )
        )
        found += [
            types.Resource(
                name=f"log-{part}-{run_id}",
                uri=f"{RUNS}/{run_id}/log/{part}",
                description=f"The log of {part} {about}.",
                mime_type="text/plain",
            )
            for part in logged_parts(run_id)
        ]
    return found


def read(uri: str) -> "types.TextResourceContents | types.BlobResourceContents":
    """ConfigError for an address that leads to nothing."""
    import mcp_types as types

    if uri == RUNS:
        text = json.dumps({"runs": list_runs()}, indent=2, ensure_ascii=False, default=str)
        return types.TextResourceContents(uri=uri, text=text, mime_type="application/json")
    address = ADDRESS.fullmatch(uri)
    if address is None or (address["what"] == "log") != (address["part"] is not None):
        raise ConfigError(f"there is no resource {uri}; {RUNS} lists the runs, and the templates say the rest")
    places = RunPlaces(address["run"])
    if not places.folder.is_dir():
        raise ConfigError(f"there is no run {address['run']!r}; {RUNS} lists the runs")
    match address["what"]:
        case "config":
            return types.TextResourceContents(uri=uri, text=places.file.read_text(), mime_type="application/yaml")
        case "curve":
            picture = base64.b64encode(curve_png(places.run_id).read_bytes()).decode()
            return types.BlobResourceContents(uri=uri, blob=picture, mime_type="image/png")
        case _:
            text = log_lines(places.run_id, address["part"], LOG_LINES)
            return types.TextResourceContents(uri=uri, text=text, mime_type="text/plain")


def logged_parts(run_id: str) -> list[str]:
    """The parts that have a log."""
    places = RunPlaces(run_id)
    return [part for part in log_parts(places, []) if places.log(part).exists()]
