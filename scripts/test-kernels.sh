#!/usr/bin/env bash
# test-kernels.sh PROGRAM [SYSTEM...]: boots the kernels of other systems in virtual machines, and runs
# test-in-vm.sh with PROGRAM (a `sshoal` for glibc of Debian 12 or static) in each. A kernel takes some
# minutes; with ACCEL=kvm, where that works, less. WORK=DIRECTORY keeps what was downloaded and the logs;
# KINDS=plain,watch tests only these kinds of mounts.
# Needs root, qemu-system-x86, debootstrap, and mirrors of Debian and Ubuntu.
set -euo pipefail

program=$(realpath "$1")
shift
here=$(dirname "$(realpath "$0")")
work=${WORK:-$(mktemp -d)}

# system, mirror, suite, package that depends on the kernel
kernels='
debian-11     http://deb.debian.org/debian-security  bullseye-security  linux-image-amd64
debian-12     http://deb.debian.org/debian           bookworm           linux-image-amd64
debian-13     http://deb.debian.org/debian           trixie             linux-image-amd64
debian-sid    http://deb.debian.org/debian           sid                linux-image-amd64
ubuntu-20.04  http://archive.ubuntu.com/ubuntu       focal-updates      linux-image-generic
ubuntu-22.04  http://archive.ubuntu.com/ubuntu       jammy-updates      linux-image-generic
ubuntu-24.04  http://archive.ubuntu.com/ubuntu       noble-updates      linux-image-generic
'

say() { echo "test-kernels: $*"; }

# The system that all the kernels start: a Debian with what test-in-vm.sh runs.
root=$work/root
if [ ! -e "$root/init-vm" ]; then
    say "making a system"
    debootstrap --variant=minbase --include="acl,attr,fuse3,git,initramfs-tools,inotify-tools,iproute2,kmod,\
openssh-client,openssh-server,procps,python3,rsync,sqlite3,util-linux,zstd" bookworm "$root" >"$work/root.log" ||
        { tail "$work/root.log" >&2; exit 1; }
    chroot "$root" useradd --create-home --shell /bin/bash ann
    echo MODULES=list >"$root/etc/initramfs-tools/conf.d/modules"
    printf '%s\n' virtio_pci virtio_blk ext4 >>"$root/etc/initramfs-tools/modules"
    ln -sfn ../proc/self/mounts "$root/etc/mtab"
    mkdir -p "$root/etc/apt"
    touch "$root/init-vm"
fi

# Puts the kernel of a system and its modules into the root, and prints its version.
unpack() { # SYSTEM MIRROR SUITE PACKAGE
    local apt=$work/$1 name deb
    if [ ! -e "$apt/version" ]; then
        mkdir -p "$apt/lists/partial" "$apt/debs" "$apt/cache/archives/partial"
        echo "deb [trusted=yes] $2 $3 main" >"$apt/sources"
        : >"$apt/status"
        local options=(-qq -o "Dir::Etc::SourceList=$apt/sources" -o Dir::Etc::SourceParts=/dev/null
            -o "Dir::State::Lists=$apt/lists" -o "Dir::State::Status=$apt/status"
            -o "Dir::Cache=$apt/cache" -o APT::Architecture=amd64)
        apt-get "${options[@]}" update
        for name in $(apt-cache "${options[@]}" depends --recurse --no-recommends --no-suggests \
            --no-conflicts --no-breaks --no-replaces --no-enhances "$4" |
            grep -E '^linux-(image|binary|modules)-[0-9]'); do
            (cd "$apt/debs" && apt-get "${options[@]}" download "$name")
        done
        for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$apt/tree"; done
        find "$apt/tree" -path '*/lib/modules/*' -prune -printf '%f\n' | tail -1 >"$apt/version"
        # Where /lib is /usr/lib, dpkg-deb would replace the link.
        mkdir -p "$root/lib/modules"
        find "$apt/tree" -path '*/lib/modules/*' -prune -exec cp -a {} "$root/lib/modules/" \;
        find "$apt/tree" -name 'config-*' -exec cp {} "$root/boot/" \;
        find "$apt/tree" -name 'vmlinuz*' -exec cp {} "$root/boot/vmlinuz-$(cat "$apt/version")" \;
        chroot "$root" depmod "$(cat "$apt/version")" >&2
        chroot "$root" mkinitramfs -o "/boot/initrd-$(cat "$apt/version")" "$(cat "$apt/version")" >&2
        rm -rf "$apt/tree" "$apt/debs"
    fi
    cat "$apt/version"
}

chosen=()
while read -r system mirror suite package; do
    [ "$system" != "" ] || continue
    [ $# = 0 ] || case " $* " in *" $system "*) ;; *) continue ;; esac
    say "unpacking the kernel of $system"
    chosen+=("$system $(unpack "$system" "$mirror" "$suite" "$package")")
done <<<"$kernels"

install -m 755 "$program" "$root/usr/bin/sshoal"
install -m 755 "$here/test-in-vm.sh" "$root/test-in-vm.sh"
say "making the disk"
rm -f "$work/disk"
truncate -s 12G "$work/disk"
mke2fs -q -t ext4 -d "$root" "$work/disk"

failed=0
for pair in "${chosen[@]}"; do
    read -r system version <<<"$pair"
    log=$work/$system.log
    say "$system, Linux $version: $log"
    timeout "${LIMIT:-1800}" qemu-system-x86_64 -accel "${ACCEL:-tcg,thread=multi}" -cpu max -smp 2 -m 2048 -nographic -no-reboot \
        -kernel "$root/boot/vmlinuz-$version" -initrd "$root/boot/initrd-$version" \
        -drive "file=$work/disk,format=raw,if=virtio,snapshot=on" -nic none \
        -append "console=ttyS0 root=/dev/vda rw quiet panic=-1 init=/test-in-vm.sh${KINDS:+ KINDS=$KINDS}" \
        </dev/null >"$log" 2>&1 || true
    tr -d '\r' <"$log" | grep -aE '^(FAILED|end:)' || { failed=1; say "$system: no result"; tail -5 "$log"; }
    grep -qaE '^end: [0-9]+ passed, 0 failed' "$log" || failed=1
done
[ "${WORK:-}" != "" ] || [ $failed = 1 ] || rm -rf "$work"
exit $failed
