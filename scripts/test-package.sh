#!/usr/bin/env bash
# test-package.sh DEB: installs a package in a fresh Debian, mounts there as an ordinary user, removes the
# package, and fails if a file is left. Needs root, debootstrap and a mirror of Debian.
set -euo pipefail

deb=$(realpath "$1")
# shellcheck source=/dev/null
suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}

if [ "${IN_NAMESPACE:-}" = "" ]; then
    # Mounts and processes end with the namespaces.
    exec env IN_NAMESPACE=yes unshare --mount --pid --fork --kill-child "$0" "$deb"
fi
mount --make-rprivate /

root=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$root"
trap 'umount -l "$root" && rmdir "$root"' EXIT

debootstrap --variant=minbase --include=openssh-server "$suite" "$root" "${MIRROR:-}" >"$root.log" ||
    { cat "$root.log" >&2; exit 1; }
rm "$root.log"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
cp "$deb" "$root/tmp/sshoal.deb"

chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    bash -euo pipefail <<'STEPS'
say() { echo "test-package: $*"; }
files() { find / -xdev -path /var -prune -o -path /home -prune -o -path /tmp -prune -o -print | sort; }
# fusermount3 needs it; systemd creates it at boot.
ln -s ../proc/self/mounts /etc/mtab
useradd -m -s /bin/bash ann
mkdir -p /run/sshd
files >/tmp/before

say "installing"
apt-get -qq update
apt-get -qq --no-install-recommends install /tmp/sshoal.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
[ -e /usr/share/man/man1/sshoal-mount.1.gz ] && [ -e /usr/share/man/man8/mount.sshoal.8.gz ]
[ -x /sbin/mount.fuse.sshoal ]

say "mounting"
su - ann -c 'bash -euo pipefail' <<'USER'
mkdir -m 700 .ssh
ssh-keygen -q -t ed25519 -N "" -f .ssh/id_ed25519
ssh-keygen -q -t ed25519 -N "" -f .ssh/host
cp .ssh/id_ed25519.pub .ssh/authorized_keys
echo "server $(cat .ssh/host.pub)" >.ssh/known_hosts
cat >.ssh/sshd_config <<SSHD
HostKey $HOME/.ssh/host
UsePAM no
Subsystem sftp internal-sftp
SSHD
# A server without a port.
cat >.ssh/config <<SSH
Host server
    ProxyCommand /usr/sbin/sshd -i -f $HOME/.ssh/sshd_config
SSH
mkdir project mnt
echo "from the server" >project/file
sshoal server:project mnt
grep -q "from the server" mnt/file
echo "through the mount" >mnt/new
sshoal status mnt
sshoal umount mnt
grep -q "through the mount" project/new
[ -z "$(ls -A mnt)" ]
sshoal pull -q server:project copy
diff -r project copy/project
USER

say "removing"
apt-get -qq --auto-remove purge sshoal >/dev/null 2>&1
files >/tmp/after
if ! diff /tmp/before /tmp/after; then
    say "these files were left, or are missing" >&2
    exit 1
fi
STEPS
echo "test-package: passed"
