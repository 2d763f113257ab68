#!/bin/bash
cat > report.sh <<'REPORT'
#!/bin/bash
# The five clients with the most server errors.
export LC_ALL=C
awk -F'"' '{ split($3, after, " "); if (after[1] ~ /^5[0-9][0-9]$/) { split($1, before, " "); print before[1] } }' "$1" |
    sort | uniq -c | awk '{ print $1, $2 }' | sort -k1,1nr -k2,2 | head -n 5
REPORT
