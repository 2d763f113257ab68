"""The truth about runs, at any time and from any shell: from their files and from the processes that live.

Always true: reading changes nothing of a run and waits for nobody.
"""

from hermes_rl.runs.watching.curve import curve_png
from hermes_rl.runs.watching.listing import list_runs
from hermes_rl.runs.watching.live import gather
from hermes_rl.runs.watching.logs import log_lines
from hermes_rl.runs.watching.results import results
from hermes_rl.runs.watching.standing import Facts, LivePhase, Standing, live_phase, standing_of
from hermes_rl.runs.watching.status import status

__all__ = [
    "Facts",
    "LivePhase",
    "Standing",
    "curve_png",
    "gather",
    "list_runs",
    "live_phase",
    "log_lines",
    "results",
    "standing_of",
    "status",
]
