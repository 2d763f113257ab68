#!/bin/bash
cat > convert.py <<'PROGRAM'
import csv
import json
import math
import sys

stations = {}
for row in csv.DictReader(sys.stdin):
    try:
        celsius = float(row["celsius"])
    except (TypeError, ValueError):
        continue
    if math.isfinite(celsius):
        stations.setdefault(row["station"].strip(), []).append((row["time"].strip(), celsius))
summary = {}
for name, readings in stations.items():
    values = [celsius for _, celsius in readings]
    summary[name] = {
        "count": len(values),
        "lowest": min(values),
        "highest": max(values),
        "mean": round(sum(values) / len(values), 2),
        "latest": max(readings)[1],
    }
json.dump(summary, sys.stdout, indent=2)
PROGRAM
