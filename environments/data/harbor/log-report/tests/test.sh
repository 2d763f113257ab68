#!/bin/bash
# hermes-rl runs run/run.sh in a sandbox of its own and names its output; elsewhere it is run here.
tests=$(cd "$(dirname "$0")" && pwd)
logs=${VERIFIER_DIR:-/logs/verifier}
if [ -z "$RUN_OUTPUT" ]; then
    RUN_OUTPUT=$(mktemp)
    bash "$tests/run/run.sh" > "$RUN_OUTPUT"
fi
mkdir -p "$logs"
if diff "$RUN_OUTPUT" "$tests/expected.txt" >&2; then echo 1; else echo 0; fi > "$logs/reward.txt"
