"""Terminal output shared by all commands.

Displays go to standard error, so `--json` has standard output to itself. Without a terminal, displays become lines.
"""
