#!/usr/bin/env bash
# package-source.sh OUT: makes an archive of the last commit's sources with all crates, in the directory OUT,
# and prints its path.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "$1"
name=sshoal-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
file=$(realpath "$1")/$name.tar.xz
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
umask 022

git archive --prefix="$name/" HEAD | tar -x -C "$dir"
mkdir "$dir/$name/.cargo"
# With --quiet it would not print the configuration.
(cd "$dir/$name" && cargo vendor --locked --versioned-dirs vendor >.cargo/config.toml 2>"$dir/log") ||
    { cat "$dir/log" >&2; exit 1; }
scripts/archive.sh "$dir" "$name" "$file"
echo "$file"
