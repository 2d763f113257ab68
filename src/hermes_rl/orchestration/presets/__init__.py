"""Presets of a run: the bundled YAML files and their reader, `preset.py`."""
