"""The status of runs, derived from their files and their live processes.

Always true: reading changes nothing and never blocks. `inspect` reads files and processes, `derive` turns them into a
status (pure), `metrics` reads the metrics files. Built on these: `status` (one run), `results` (its metrics, curve
and weights), `run_list` (all runs), `summary` (for the live display) and `logs`. `status_cache` belongs to `status`;
`curve`, `chart`, `png_canvas` and `stroke_font` draw the learning curve for `results`.
"""
