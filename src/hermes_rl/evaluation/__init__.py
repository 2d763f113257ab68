"""Evaluation: run or resume item by item, report metrics with confidence intervals, compare, replay and rescore."""
