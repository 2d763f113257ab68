#!/bin/bash
# The five clients with the most server errors.
grep ' 5' "$1" | cut -d' ' -f1 | uniq -c | sort | head -n 5
