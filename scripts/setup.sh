#!/usr/bin/env bash
# Installs what building, testing and demonstrating sshoal needs and what is not there yet, on
# Debian and its kin. It may be run again at any time: what is there stays as it is.
#
#   scripts/setup.sh            installs, and says each thing that it does
#   scripts/setup.sh --check    only says what is missing, and fails if something is
#   scripts/setup.sh --big      also the kernel's sources (130 MB), a large tree for the demo
#   scripts/setup.sh --bench    also all peers that `sshoal bench --peers all` compares with
#   scripts/setup.sh --packaging  also what `make test-package` and `make lint-packages` need
#   scripts/setup.sh --declared prints the Debian packages that it would make sure of, and stops
#
# It never touches ~/.ssh, and leaves no ssh server running that was not running before.
set -euo pipefail

check=no
big=no
bench=no
packaging=no
declared=no
for arg in "$@"; do
    case $arg in
        --check) check=yes ;;
        --big) big=yes ;;
        --bench) bench=yes ;;
        --packaging) packaging=yes ;;
        --declared) declared=yes ;;
        *)
            echo "usage: $0 [--check] [--big] [--bench] [--packaging] [--declared]" >&2
            exit 2
            ;;
    esac
done

say() { echo "setup: $*"; }

# What needs root is run by it, or by sudo.
privileged() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        say "as root: $*"
        sudo -- "$@"
    else
        say "this needs root, and there is no sudo: $*" >&2
        return 1
    fi
}

missing=()

# want FILE-OR-COMMAND PACKAGE REASON: notes the package if the file or command is not there.
want() {
    if [ "$declared" = yes ]; then
        echo "$2"
        return
    fi
    case $1 in
        /*) [ -e "$1" ] && return ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null && return ;;
    esac
    say "$2 is missing: $3"
    missing+=("$2")
}

want gcc gcc "links Rust programs"
# gcc only recommends it.
want /usr/include/stdio.h libc6-dev "links Rust programs, and has the headers for C"
want ld binutils "links Rust programs"
want make make "runs the Makefile"
want ssh openssh-client "is what carries every mount"
want sshd openssh-server "the tests and the demo start a private one"
want /usr/lib/openssh/sftp-server openssh-sftp-server "serves the files to it"
want fusermount3 fuse3 "mounts for users who are not root"
want setfattr attr "tests of extended attributes"
want setfacl acl "tests of access lists"
want pgrep procps "tests that look for processes left behind"
want git git "tests of real work on a mount"
want rsync rsync "tests of real work on a mount"
want sqlite3 sqlite3 "tests of real work on a mount"
want python3 python3-minimal "tests of locks between machines"
want pydoc3 python3 "the modules of that"
want sshfs sshfs "what sshoal is compared with"
want fio fio "measurements"
want bsdtar libarchive-tools "tests of copies to and from a BSD"
want busybox busybox "tests of copies to and from a small system"
want zstd zstd "tests of copies that compress"
want xz xz-utils "packs the archives of make dist"
want zsh zsh "a login shell that commands are quoted for"
want fish fish "a login shell that commands are quoted for"
want tcsh tcsh "a login shell that commands are quoted for"
want automount autofs "the test of a map that mounts hosts by their names"
want systemd-escape systemd "tests of units of systemd"
want mandoc mandoc "checks the manual pages"
want strace strace "tests that count system calls"
want ip iproute2 "network settings of a benchmark, in a namespace of their own"
want mkfs.ext4 e2fsprogs "the test of a full disk, where there are loop devices"
if [ "$bench" = yes ]; then
    want rclone rclone "a peer in benchmarks"
    want vsftpd vsftpd "serves FTP, a peer in benchmarks"
    want lftp lftp "copies by FTP, a peer in benchmarks"
    want ganesha.nfsd nfs-ganesha "serves NFS without the kernel, a peer in benchmarks"
    want "/usr/lib/$(gcc -dumpmachine 2>/dev/null || echo x86_64-linux-gnu)/ganesha/libfsalvfs.so" \
        nfs-ganesha-vfs "lets it serve local directories"
fi
if [ "$packaging" = yes ]; then
    want debootstrap debootstrap "makes a fresh Debian to test the package in"
    want rpmbuild rpm "makes the package of the spec file"
    want rpmlint rpmlint "checks the spec file"
    want makepkg makepkg "makes the package of the PKGBUILD"
    want fakeroot fakeroot "lets it set owners"
    want shellcheck shellcheck "checks the PKGBUILD and the scripts"
    want nix-instantiate nix-bin "parses the flake"
fi
if [ "$big" = yes ] && ! compgen -G '/usr/src/linux-source-*.tar.*' >/dev/null; then
    say "the kernel's sources are missing: a tree of 80,000 files"
    if apt-cache show linux-source-6.1 >/dev/null 2>&1; then
        missing+=(linux-source-6.1)
    else
        missing+=(linux-source)
    fi
fi
[ "$declared" = no ] || exit 0

incomplete=no

# Servers from Debian start themselves, now and at each boot. Nobody asked for that.
install_packages() {
    local policy=/usr/sbin/policy-rc.d quiet=no
    local install=(env DEBIAN_FRONTEND=noninteractive
        apt-get install -y -q --no-install-recommends "${missing[@]}")
    local server units=()
    for server in "${missing[@]}"; do
        case $server in
            openssh-server) units+=(ssh.service ssh.socket) ;;
            autofs) units+=(autofs.service) ;;
            vsftpd) units+=(vsftpd.service) ;;
            # It brings rpcbind along, which the benchmark does not use.
            nfs-ganesha) units+=(nfs-ganesha.service rpcbind.service rpcbind.socket) ;;
        esac
    done
    if [ ${#units[@]} -gt 0 ]; then
        quiet=yes
        if [ ! -e "$policy" ]; then
            privileged sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
            # shellcheck disable=SC2064
            trap "privileged rm -f $policy" EXIT
        fi
    fi
    if ! privileged "${install[@]}"; then
        say "once more, with fresh package lists"
        privileged apt-get update -q
        privileged "${install[@]}"
    fi
    if [ "$quiet" = yes ] && [ -d /run/systemd/system ]; then
        say "these stay off (systemctl enable --now would start them): ${units[*]}"
        privileged systemctl disable "${units[@]}" 2>/dev/null || true
    fi
}

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$check" = yes ]; then
        incomplete=yes
    elif command -v apt-get >/dev/null; then
        say "installing: ${missing[*]}"
        install_packages
    else
        say "no apt-get here: install these by hand: ${missing[*]}" >&2
        exit 1
    fi
fi

# /dev/fuse is open to everybody wherever udev has made it; in a bare container it may be root's.
if [ ! -e /dev/fuse ]; then
    say "there is no /dev/fuse: load the module fuse, or give the container the device" >&2
    incomplete=yes
elif [ "$(stat -c %a /dev/fuse)" = 600 ]; then
    if [ "$check" = yes ]; then
        say "/dev/fuse is for root only (mode 600)"
        incomplete=yes
    else
        say "/dev/fuse is for root only: giving it the mode that udev gives it, 666"
        privileged chmod 666 /dev/fuse
    fi
fi

if ! command -v cargo >/dev/null; then
    if [ -x "$HOME/.cargo/bin/cargo" ]; then
        say "cargo is in ~/.cargo/bin, which is not in PATH: run . ~/.cargo/env" >&2
    else
        say "there is no cargo: get Rust from https://rustup.rs" >&2
    fi
    incomplete=yes
fi

# Test suites of others, at the versions that docs/posix.md tells of. They are programs and not
# libraries, so that they come from crates.io in the way that suits them.
cd "$(dirname "$0")/.."
for suite in pjdfstest@0.2.2 fsx@0.3.2; do
    name=${suite%@*} version=${suite#*@}
    [ "$(target/tools/bin/"$name" --version 2>/dev/null)" != "$name $version" ] || continue
    say "$name $version is missing: a test suite for file systems"
    if [ "$check" = yes ] || ! command -v cargo >/dev/null; then
        incomplete=yes
    else
        cargo install --quiet --locked --root target/tools --version "$version" "$name"
    fi
done

if [ "$incomplete" = yes ]; then
    say "not complete" >&2
    exit 1
fi
say "everything is there"
