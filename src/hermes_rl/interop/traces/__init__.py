"""Logged conversations of other software as groups: one reader per format, and what they share."""
