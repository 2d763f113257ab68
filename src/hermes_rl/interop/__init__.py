"""Formats and trainers of other projects, one module each."""
