"""Configuring a run: environments with their real settings, a preset, edits checked at once, and the dry run."""
