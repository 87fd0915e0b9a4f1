#!/usr/bin/env bash
# architecture.sh PROGRAM: prints for which architecture PROGRAM is, by the names of uname(1) and of Debian.
set -euo pipefail

case $(LC_ALL=C readelf -h "$1" | sed -n 's/^ *Machine: *//p') in
*X86-64) echo x86_64 amd64 ;;
AArch64) echo aarch64 arm64 ;;
*) echo "$(uname -m) $(dpkg --print-architecture 2>/dev/null || uname -m)" ;;
esac
