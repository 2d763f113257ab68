"""Evaluation: run, kept and resumed item by item, measured with intervals, shown, and compared with another."""
