"""`serve`: groups made as a trajectory API asks for them, and delivered to it."""
