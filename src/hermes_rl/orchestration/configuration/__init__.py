"""Configure a run: environments with their actual settings, a preset, validated edits, and the dry run."""
