#!/usr/bin/env bash
# dist.sh PROGRAMS OUT: makes what is published from the programs in the directory PROGRAMS: an archive of
# them, a Debian package, the sources with all crates, and checksums, in the new directory OUT. STRIP and
# MANUAL_PROGRAMS are for programs of another architecture.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(realpath "$1") out=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=sshoal-$version
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
umask 022

export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

rm -rf "$out"
mkdir -p "$out"
out=$(realpath "$out")

read -r arch _ < <(scripts/architecture.sh "$programs/sshoal")
kind=static
if readelf -d "$programs/sshoal" | grep -q NEEDED; then kind=glibc; fi
make -s install PROGRAMS="$programs" DESTDIR="$dir/$name" PREFIX= SBINDIR=/sbin
# The links of mount(8)'s helpers depend on the directory into which the archive is unpacked.
rm -r "$dir/$name/sbin"
"${STRIP:-strip}" --strip-unneeded "$dir/$name"/bin/*
scripts/archive.sh "$dir" "$name" "$out/$name-$arch-linux-$kind.tar.xz"

scripts/package-deb.sh "$programs" "$out"
scripts/package-source.sh "$out"

cd "$out"
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
