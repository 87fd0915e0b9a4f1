#!/usr/bin/env bash
# Runs all tests in a temporary directory of their own, and fails if they leave a mount or a
# process behind. Arguments go to cargo test (default: --workspace). All tests run, whichever fail.
set -euo pipefail
cd "$(dirname "$0")/.."

# Everything that a test makes has this path in its name: mount points, keys, configuration.
dir=$(mktemp -d "${TMPDIR:-/tmp}/sshoal-test.XXXXXX")
# Tests as another user work in it, too.
chmod 1777 "$dir"

mounts() {
    local at
    # The fifth field is the mount point, with blanks as \040.
    while read -r _ _ _ _ at _; do
        case $at in "$dir"/*) echo "a mount: $at" ;; esac
    done </proc/self/mountinfo
}

processes() {
    local proc command
    for proc in /proc/[0-9]*; do
        [ "${proc#/proc/}" != $$ ] || continue
        # A process may end while it is looked at.
        command=$({ tr '\0' ' ' <"$proc/cmdline"; } 2>/dev/null) || continue
        if [[ $command == *"$dir"* || $(readlink "$proc/cwd" 2>/dev/null) == "$dir"* ]]; then
            echo "a process: ${proc#/proc/} $command"
        fi
    done
}

status=0
TMPDIR=$dir cargo test --no-fail-fast "${@:---workspace}" || status=$?

# What was told to end may need a moment: five seconds.
deadline=$((SECONDS + 5))
while left=$(mounts && processes) && [ -n "$left" ] && [ $SECONDS -lt $deadline ]; do
    sleep 0.1
done
if [ -n "$left" ]; then
    echo "test: the tests left behind:" >&2
    echo "$left" >&2
    exit 1
fi
# Only now: nothing is mounted below it any more.
rm -rf --one-file-system -- "$dir"
exit "$status"
