"""Configuring a run: environments with their real settings, a preset, edits checked at once, and the dry run."""

from hermes_rl.runs.configuration.draft import ChosenEnvironment, Draft
from hermes_rl.runs.configuration.editing import edited, new_draft, with_environment
from hermes_rl.runs.configuration.making import needed_keys, run_file_of
from hermes_rl.runs.configuration.sessions import load_draft, save_draft
from hermes_rl.runs.configuration.showing import shown

__all__ = [
    "ChosenEnvironment",
    "Draft",
    "edited",
    "load_draft",
    "needed_keys",
    "new_draft",
    "run_file_of",
    "save_draft",
    "shown",
    "with_environment",
]
