"""`serve`: make groups as a trajectory API grants them, and deliver them to it."""
