#!/usr/bin/env bash
# Runs a test program in an environment that is the same on every machine: default signal
# dispositions, LANG=C.UTF-8, a home directory of its own, and the PATH in
# SSHOAL_TEST_PATH. Of the caller's variables only those of cargo and of the tests are kept.
# `scripts/test.sh` has cargo start each test program through this script.
set -euo pipefail

kept=()
while IFS= read -r -d '' variable; do
    case $variable in
        CARGO* | RUST_* | PROPTEST_* | SOAK_* | SSHOAL_*) kept+=("$variable") ;;
    esac
done < <(env -0)

# Most of its tests wait: for links that break, for limits of time.
case ${1##*/} in e2e-*) kept+=("RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) * 2))}") ;; esac

user=$(id -un)
exec env -i --default-signal \
    PATH="$SSHOAL_TEST_PATH" HOME="$SSHOAL_TEST_HOME" TMPDIR="$TMPDIR" LANG=C.UTF-8 \
    USER="$user" LOGNAME="$user" SHELL=/bin/sh "${kept[@]}" "$@"
