#!/usr/bin/env bash
# split-debug.sh PROGRAM...: moves each program's debug information into PROGRAM.debug, where gdb and
# perf find it by the link that stays. A program is left alone if it is split already.
set -euo pipefail

for program; do
    if [ "$program.debug" -nt "$program" ]; then continue; fi
    objcopy --only-keep-debug "$program" "$program.debug"
    # To another file: cargo keeps a hard link to this one.
    objcopy --strip-all --add-gnu-debuglink="$program.debug" "$program" "$program.split"
    mv "$program.split" "$program"
    touch "$program.debug"
done
