#!/usr/bin/env bash
# test-source.sh ARCHIVE: unpacks the source archive of make dist in an empty directory, and has the compiler
# check the programs there, without a network and without crates of this machine.
set -euo pipefail

archive=$(realpath "$1")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/sources" "$dir/cargo"
tar -xf "$archive" -C "$dir/sources"
cd "$dir"/sources/*

# rustup finds the compiler without CARGO_HOME.
export CARGO_HOME=$dir/cargo RUSTUP_HOME=${RUSTUP_HOME:-$HOME/.rustup}
unset CARGO_TARGET_DIR
isolated=(unshare --net)
[ "$(id -u)" = 0 ] || isolated+=(--map-root-user)
# What packagers run, but for the time that the compiler takes to optimize.
"${isolated[@]}" cargo check --quiet --offline --locked -p sshoal
"${isolated[@]}" make -s target/licenses.txt
[ -s target/licenses.txt ]
echo "test-source: passed"
