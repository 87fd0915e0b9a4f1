#!/usr/bin/env bash
# licenses.sh: prints the licences of all crates that are linked into the programs, from the crates' own
# files. A text that several crates have is printed once.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/texts"

host=$(rustc -vV | sed -n 's/^host: //p')
cargo metadata --locked --filter-platform "$host" --format-version 1 |
    grep -o '"manifest_path":"[^"]*"' | cut -d'"' -f4 >"$dir/manifests"
cargo tree --locked -p sshoal -e normal --prefix none --format '{p}|{l}|{r}' |
    grep -v '(/' | sed 's/ (\*)//; s/ (proc-macro)//; s/ v/|/' | sort -u >"$dir/crates"

while IFS='|' read -r name version licence repository; do
    crate="$name $version ($licence)"
    manifest=$(grep -m 1 -e "/$name-$version/Cargo.toml$" "$dir/manifests")
    found=no
    for file in "${manifest%/*}"/*; do
        case ${file##*/} in [Ll][Ii][Cc][Ee][Nn]* | COPY* | NOTICE* | UNLICENSE*) ;; *) continue ;; esac
        [ -f "$file" ] || continue
        found=yes
        text=$(sha256sum <"$file" | cut -c1-64)
        echo "$crate" >>"$dir/texts/$text.crates"
        cp "$file" "$dir/texts/$text"
    done
    [ $found = yes ] || echo "$crate: no file in the crate; see $repository" >>"$dir/without"
done <"$dir/crates"

if [ -s "$dir/without" ]; then
    cat "$dir/without"
    echo
fi
for crates in "$dir"/texts/*.crates; do
    printf '%s\n' "------------------------------------------------------------------------"
    cat "$crates"
    echo
    cat "${crates%.crates}"
    echo
done
