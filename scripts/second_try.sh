# Sourced by scripts/check and .ci/run. Two cores with several streams of tests make one of thousands late now and then. What failed
# beside others is tried once more without them: what passes then is named and fails nothing, what fails twice fails.

# More than these are no accident.
ACCIDENTS=5

# second_try CACHE ARGUMENT…: the tests that failed in the run of pytest that had this cache folder and these arguments.
second_try() {
    local cache=$1 failed
    shift
    failed=$(python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$cache/v/cache/lastfailed") || return 1
    if [ "$(wc -l <<<"$failed")" -gt "$ACCIDENTS" ]; then
        echo "More than $ACCIDENTS tests failed: no second try." >&2
        return 1
    fi
    printf '\nA second try for:\n%s\n' "$failed"
    python -m pytest -o cache_dir="$cache" --last-failed "$@" || return
    sed 's/^/PASSED ONLY AT THE SECOND TRY: /' <<<"$failed"
}
