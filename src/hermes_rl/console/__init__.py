"""What all commands share at the terminal: options, exit codes, progress panels.

Displays go to standard error, so `--json` has standard output to itself. Without a terminal, displays become lines.
"""
