"""The checks before a run is started from a draft."""

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.configuration.build import build_run_file, needed_keys
from hermes_rl.orchestration.configuration.draft import Draft
from hermes_rl.orchestration.requirements import missing_for
from hermes_rl.orchestration.run_file import RunFile

HOSTED_KEY = "TINKER_API_KEY"


class MissingRequirementError(ConfigError):
    """A package or key is missing; the message has the commands that fix it."""


def prepare_run_file(draft: Draft, *, stored: bool = False) -> RunFile:
    """ConfigError for an invalid draft, MissingRequirementError for a missing package or key."""
    run_file = build_run_file(draft, stored=stored)
    hosted = run_file.engine is None and not run_file.tinker.get("base_url")
    keys = dict.fromkeys([*([HOSTED_KEY] if hosted else []), *needed_keys(draft)])
    missing_requirements = missing_for(keys)
    if missing_requirements:
        what = "; ".join(f"{missing.name} is missing, run `{missing.fix}`" for missing in missing_requirements)
        hint = ". The presets laptop and self-hosted need no key" if hosted else ""
        raise MissingRequirementError(f"a run of the preset {run_file.preset!r} cannot start: {what}{hint}")
    return run_file
