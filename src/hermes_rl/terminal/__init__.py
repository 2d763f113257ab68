"""The one look of every command that takes a while: where it is drawn, and what a look holds.

Always true: all of it goes to standard error, so that `--json` leaves standard output to programs; without a terminal
nothing is drawn, and a line now and then is said.
"""
