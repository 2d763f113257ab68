# Sourced by scripts/check and .ci/run: named, timed steps; the first that fails ends the script and is named.

_steps_started=$(date +%s.%N)
_steps_taken=()

_seconds_since() { awk -v from="$1" -v to="$(date +%s.%N)" 'BEGIN { printf "%.1f", to - from }'; }

# step NAME COMMAND [ARGUMENT…]
step() {
    local name=$1 started status=0
    shift
    printf '\n==> %s\n' "$name"
    started=$(date +%s.%N)
    # Not in an `if` or `||`: bash would ignore `set -e` in everything the step calls.
    set +e
    ( set -e; "$@" )
    status=$?
    set -e
    local line
    line=$(printf '%7ss  %s' "$(_seconds_since "$started")" "$name")
    if [ "$status" -ne 0 ]; then
        printf '\n%s: FAILED at step "%s" (exit status %s)\n' "$STEPS_OF" "$name" "$status" >&2
        steps_summary "$line  FAILED"
        exit "$status"
    fi
    printf '<== %s: ok\n' "$line"
    _steps_taken+=("$line")
}

steps_summary() {
    printf '\n%s: time of each step\n' "$STEPS_OF"
    printf '%s\n' "${_steps_taken[@]}" "$@"
    printf '%7ss  total\n' "$(_seconds_since "$_steps_started")"
}
