#!/usr/bin/env bash
# package-deb.sh PROGRAMS OUT: makes a Debian package of the programs in the directory PROGRAMS, in the
# directory OUT, and prints its path. STRIP and MANUAL_PROGRAMS are for programs of another architecture.
set -euo pipefail
cd "$(dirname "$0")/.."

programs=$1 out=$2
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
read -r _ arch < <(scripts/architecture.sh "$programs/sshoal")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

umask 022
make -s install PROGRAMS="$programs" DESTDIR="$root" PREFIX=/usr SBINDIR=/usr/sbin \
    ZSHDIR=/usr/share/zsh/vendor-completions
"${STRIP:-strip}" --strip-unneeded "$root"/usr/bin/*

doc=$root/usr/share/doc/sshoal
mv "$doc/LICENSE" "$doc/copyright"
printf '\nThe licences of the libraries in the programs are in licenses.txt.gz.\n' >>"$doc/copyright"
gzip -9n "$doc/licenses.txt" "$doc/CHANGELOG.md"
mv "$doc/CHANGELOG.md.gz" "$doc/changelog.gz"
find "$root/usr/share/man" -type f -exec gzip -9n {} +
find "$root/usr/share/man" -type l | while read -r link; do
    ln -s "$(readlink "$link").gz" "$link.gz"
    rm "$link"
done

depends='fuse3, openssh-client'
if readelf -d "$programs/sshoal" | grep -q NEEDED; then
    depends+=", libgcc-s1, libc6 (>= $(getconf GNU_LIBC_VERSION | cut -d' ' -f2))"
fi
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<CONTROL
Package: sshoal
Version: $version
Architecture: $arch
Maintainer: the sshoal project <sshoal@localhost>
Depends: $depends
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Section: net
Priority: optional
Description: network file system that needs nothing but SSH
 sshoal mounts remote directories over SSH, with the command line of sshfs. The
 server needs nothing but sshd. Several hosts can be one mount, files can be
 cached on the local disk, and trees can be copied.
CONTROL
(cd "$root" && find usr -type f -exec md5sum {} + | sort -k 2) >"$root/DEBIAN/md5sums"

mkdir -p "$out"
dpkg-deb --root-owner-group --build "$root" "$out/sshoal_${version}_$arch.deb" >&2
echo "$out/sshoal_${version}_$arch.deb"
