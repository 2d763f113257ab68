"""Exit codes with a meaning of their own. 0 is success, and 1 any other failure."""

BAD_CONFIGURATION = 2
LIMIT_REACHED = 3
"""A limit of tokens, cost or time ended the command; it can be resumed."""
