#!/bin/bash
# What the program makes of tables that the agent never saw. Runs beside what the agent left; all it prints is data.
for table in "$(dirname "$0")"/*.csv; do
    timeout 10 python3 convert.py < "$table" 2>/dev/null | head -c 100000
    printf '\n--- end of %s\n' "$(basename "$table")"
done
