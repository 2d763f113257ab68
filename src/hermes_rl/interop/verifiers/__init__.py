"""Packages written for verifiers, v0 and v1, played by our loop and scored by their own code in their own process."""
