#!/usr/bin/env bash
# archive.sh DIR NAME FILE: packs NAME in the directory DIR into FILE. The same contents give the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."

mtime=@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tar --sort=name --mtime="$mtime" --owner=0 --group=0 --numeric-owner -C "$1" -cf - "$2" | xz -T0 >"$3"
