#!/usr/bin/env bash
# lint-packages.sh PROGRAMS: checks what packagers of other systems get, with the tools that Debian has for it:
# lints the spec file, the PKGBUILD, the flake and the scripts, and makes the packages of the first two
# with the programs in the directory PROGRAMS in place of a build. `scripts/setup.sh --packaging` installs
# the tools.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$(realpath "$1")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
name=sshoal-$version
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
say() { echo "lint-packages: $*"; }

say "scripts"
shellcheck .ci/run scripts/*.sh packaging/completions/sshoal.bash packaging/PKGBUILD

say "versions"
grep -x "Version: *$version" packaging/sshoal.spec >/dev/null
grep -x "pkgver=$version" packaging/PKGBUILD >/dev/null
grep -F "version = \"$version\";" packaging/flake.nix >/dev/null

say "the flake"
# Without a store, which it would create in /nix.
NIX_REMOTE=dummy:// nix-instantiate --parse packaging/flake.nix >/dev/null

say "the spec file"
# The tag is of rpm before 4.10; the archive has no address yet.
echo 'Filters = ["no-buildroot-tag", "invalid-url Source0"]' >"$dir/rpmlint.toml"
rpmlint --strict --config "$dir/rpmlint.toml" packaging/sshoal.spec
rpmspec --parse packaging/sshoal.spec >/dev/null

# The sources after `make build`.
mkdir -p "$dir/rpm/BUILD/$name/target/release" "$dir/arch/src"
git ls-files -z | tar --null -T - -c | tar -x -C "$dir/rpm/BUILD/$name"
for program in sshoal sshoal-bench; do
    strip -o "$dir/rpm/BUILD/$name/target/release/$program" "$programs/$program"
done
cp LICENSE "$dir/rpm/BUILD/$name/target/licenses.txt"
cp -a "$dir/rpm/BUILD/$name" "$dir/arch/src"

# Fails if a file is not in the list of the spec file, or is missing.
rpmbuild --quiet -bi --short-circuit --nodeps --define "_topdir $dir/rpm" packaging/sshoal.spec >"$dir/log" 2>&1 ||
    { cat "$dir/log" >&2; exit 1; }

say "the manual"
mandoc -Tlint "$dir"/rpm/BUILDROOT/*/usr/share/man/man1/sshoal*.1

say "the PKGBUILD"
cp packaging/PKGBUILD "$dir/arch"
touch "$dir/arch/$name.tar.xz"
user=()
if [ "$(id -u)" = 0 ]; then
    # makepkg does not run as root.
    chmod 755 "$dir"
    chown -R nobody "$dir/arch"
    user=(setpriv --reuid nobody --clear-groups)
fi
# It needs pacman only to install dependencies.
(cd "$dir/arch" && HOME=$dir/arch PACMAN=true PKGEXT=.pkg.tar \
    "${user[@]}" makepkg --repackage --nodeps --skipinteg) >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
bsdtar -tf "$dir/arch/$name"-1-*.pkg.tar >"$dir/files"
for file in bin/sshoal bin/sshoal-bench bin/mount.sshoal bin/mount.fuse.sshoal share/man/man1/sshoal.1.gz \
    share/licenses/sshoal/LICENSE; do
    grep -x "usr/$file" "$dir/files" >/dev/null || { say "the package has no /usr/$file" >&2; exit 1; }
done
say "passed"
