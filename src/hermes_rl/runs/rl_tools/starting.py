"""A draft on its way to a run: what must be there before one is started, whoever starts it."""

from hermes_rl.errors import ConfigError
from hermes_rl.runs.configuration.draft import Draft
from hermes_rl.runs.configuration.making import needed_keys, run_file_of
from hermes_rl.runs.requirements import missing_for
from hermes_rl.runs.run_file import RunFile

HOSTED_KEY = "TINKER_API_KEY"


class LackingError(ConfigError):
    """Something outside the draft is not there; the message has the lines that mend it."""


def startable(draft: Draft) -> RunFile:
    """The run of a draft; ConfigError for what is wrong with it, LackingError for a package or key that it needs."""
    run_file = run_file_of(draft)
    hosted = run_file.engine is None and not run_file.tinker.get("base_url")
    keys = dict.fromkeys([*([HOSTED_KEY] if hosted else []), *needed_keys(draft)])
    lacking = missing_for(keys)
    if lacking:
        what = "; ".join(f"{one.name} is not there, run `{one.mend}`" for one in lacking)
        elsewhere = ". The presets laptop and self-hosted need no key" if hosted else ""
        raise LackingError(f"a run of the preset {run_file.preset!r} cannot start: {what}{elsewhere}")
    return run_file
