"""Fuzzes every surface that takes bytes from outside: `python -m scripts.fuzz [SURFACE…] --minutes N`."""
