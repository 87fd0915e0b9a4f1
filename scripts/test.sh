#!/usr/bin/env bash
# Runs all tests in a temporary directory of their own, and fails if they leave a mount or a
# process behind. Arguments go to cargo test (default: --workspace). All tests run, whichever fail.
#
# The tests find only the programs of the packages that `scripts/setup.sh` declares, and of those
# that every Debian system has: a program that a test needs and that is not declared is missing
# on every machine alike. `scripts/test-run.sh` sets the rest of their environment.
set -euo pipefail
cd "$(dirname "$0")/.."

# Tests as another user run these programs, too.
umask 022

# Everything that a test makes has this path in its name: mount points, keys, configuration.
dir=$(mktemp -d "${TMPDIR:-/tmp}/sshoal-test.XXXXXX")
# Numbers of inodes do not last on overlayfs, which a container has. Tests need them.
if [ "$(stat -f -c %T "$dir")" = overlayfs ] && ! mount -t tmpfs sshoal-test "$dir"; then
    echo "test: $dir is on overlayfs, where tests of inode numbers fail: set TMPDIR" >&2
fi
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

# Prints the files of the declared packages, and of those that are on every Debian system, below
# /usr where / is merged with it.
declared_files() {
    local packages
    mapfile -t packages < <(
        scripts/setup.sh --declared
        dpkg-query -W -f '${Package} ${Essential} ${Priority}\n' |
            awk '$2 == "yes" || $3 == "required" { print $1 }'
    )
    # A package that is not installed has no files: its programs are missing for the tests.
    { dpkg -L "${packages[@]}" 2>/dev/null || true; } | sed 's#^/\(s\?bin\)/#/usr/\1/#' | sort -u
}

# link_programs DIR: fills DIR with links to the programs of declared_files, and to those that
# Debian's alternatives give another name: /usr/bin/cc is a link to gcc.
link_programs() {
    {
        declared_files
        find /etc/alternatives /usr/bin /usr/sbin -mindepth 1 -maxdepth 1 ! -type d \
            -printf '%p\t%l\n'
    } | awk -F '\t' '
        NF == 1 { declared[$1]; next }
        { target[$1] = $2 }
        $1 ~ "^/usr/" && ($1 in declared || target[$2] in declared) { print $1 }
    ' | xargs -r ln -sft "$1"
}

export SSHOAL_TEST_PATH=$PATH SSHOAL_TEST_HOME=$dir/home
mkdir -m 700 "$SSHOAL_TEST_HOME"
if command -v dpkg-query >/dev/null; then
    SSHOAL_TEST_PATH=$dir/bin
    mkdir "$SSHOAL_TEST_PATH"
    link_programs "$SSHOAL_TEST_PATH"
else
    echo "test: no dpkg here: the tests find every program of this machine" >&2
fi

status=0
TMPDIR=$dir cargo test --config "target.'cfg(all())'.runner = ['$PWD/scripts/test-run.sh']" \
    --no-fail-fast "${@:---workspace}" || status=$?

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
if mountpoint -q "$dir"; then umount "$dir"; fi
rm -rf --one-file-system -- "$dir"
exit "$status"
