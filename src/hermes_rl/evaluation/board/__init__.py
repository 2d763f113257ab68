"""The board: evaluations in a folder over time, each compared with the one before it on their shared items."""
