#!/usr/bin/env bash
# split-debug.sh PROGRAM...: moves each program's debug information into PROGRAM.debug, where gdb and
# perf find it by the link that stays. A program is left alone if it is split already. OBJCOPY is for
# programs of another architecture.
set -euo pipefail

objcopy=${OBJCOPY:-objcopy}

for program; do
    # Not by the times: each build of cargo puts its own file back, with the time at which it was
    # linked. `-c`, so that grep reads to the end.
    if readelf -SW "$program" | grep -c gnu_debuglink >/dev/null; then continue; fi
    "$objcopy" --only-keep-debug "$program" "$program.debug"
    # To another file: cargo keeps a hard link to this one.
    "$objcopy" --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.split"
    mv "$program.split" "$program"
done
