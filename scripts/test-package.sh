#!/usr/bin/env bash
# test-package.sh [--here] DEB: installs a package, uses it as an ordinary user and as root, removes it, and
# fails if a file is left or missing. It does so in a fresh Debian, made by debootstrap from a mirror; with
# --here in this system, without a network. Needs root. The status is 77 if that cannot be done in this system.
#
# All changes go to a layer in memory above the system, in namespaces that end with the script.
set -euo pipefail

if [ "$1" != --in-namespace ]; then
    # Mounts and processes end with the namespaces.
    exec unshare --mount --pid --fork --kill-child "$0" --in-namespace "$@"
fi
shift
mount --make-rprivate /

fresh=yes
if [ "$1" = --here ]; then
    fresh=no
    shift
fi
deb=$(realpath "$1")
# shellcheck source=/dev/null
suite=${SUITE:-$(. /etc/os-release && echo "$VERSION_CODENAME")}

skip() { echo "test-package: $*" >&2; exit 77; }
if [ $fresh = no ]; then
    for own in /usr /var /etc; do
        ! mountpoint -q $own || skip "$own is a file system of its own, which a layer above / does not contain"
    done
    for package in fuse3 openssh-client; do
        dpkg-query -W -f '${db:Status-Status}' $package 2>/dev/null | grep -x installed >/dev/null ||
            skip "the package $package is not installed"
    done
fi

dir=$(mktemp -d)
mount -t tmpfs -o mode=755 tmpfs "$dir"
trap 'umount -l "$dir" && rmdir "$dir"' EXIT
mkdir "$dir/layer" "$dir/work" "$dir/root"

system=/
if [ $fresh = yes ]; then
    system=$dir/system
    debootstrap --variant=minbase --include=openssh-server "$suite" "$system" "${MIRROR:-}" >"$dir/log" ||
        { cat "$dir/log" >&2; exit 1; }
fi
root=$dir/root
mount -t overlay -o "lowerdir=$system,upperdir=$dir/layer,workdir=$dir/work" overlay "$root" 2>"$dir/log" ||
    { why=$(cat "$dir/log"); [ $fresh = no ] && skip "no layer can be mounted above /: $why"; echo "$why" >&2; exit 1; }
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
# What is below these belongs to the machine and its users.
for own in home root run tmp; do
    mount -t tmpfs -o mode=755 tmpfs "$root/$own"
done
chmod 1777 "$root/tmp"
cp "$deb" "$root/tmp/sshoal.deb"

say() { echo "test-package: $*"; }
# inside USER: runs the script at standard input in the root directory.
inside() {
    local home=/root script
    [ "$1" = root ] || home=/home/$1
    script="trap 'echo \"test-package: failed: \$BASH_COMMAND\" >&2' ERR; cd; $(cat)"
    chroot --userspec="$1" "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME="$home" \
        USER="$1" FRESH=$fresh DEBIAN_FRONTEND=noninteractive bash -euo pipefail -c "$script"
}
# The files that the layer adds to the system, and those that it removes.
changes() {
    local path
    (cd "$dir/layer" && find . -mindepth 1 \
        \( -path ./var/cache -o -path ./var/lib/apt -o -path ./var/lib/dpkg -o -path ./var/log \) -prune \
        -o -print) | sort | while IFS= read -r path; do
        if [ -c "$dir/layer/$path" ]; then
            echo "removed: $path"
        elif [ ! -e "$system/$path" ] && [ ! -L "$system/$path" ]; then
            echo "added: $path"
        fi
    done
}

inside root <<'STEPS'
# fusermount3 needs it; systemd creates it at boot.
[ -e /etc/mtab ] || ln -s ../proc/self/mounts /etc/mtab
# An image of a container may exclude manuals and documents of packages.
rm -f /etc/dpkg/dpkg.cfg.d/*
# Another sshoal that is installed in this system.
dpkg --purge sshoal 2>/dev/null
rm -f /sbin/mount.sshoal /sbin/mount.fuse.sshoal
mkdir -p /run/sshd /mnt/project
id ann >/dev/null 2>&1 || useradd -s /bin/bash ann
mkdir /home/ann
chown ann: /home/ann
usermod -d /home/ann -s /bin/bash ann >/dev/null
# sshd lets nobody in whose password is locked.
usermod -p '*' root
cat >/etc/fstab <<FSTAB
server:/root/project  /mnt/project  fuse.sshoal  noauto,_netdev,allow_other,acregmax=9  0 0
FSTAB
mkdir /root/project
echo "from the server" >/root/project/file

# With it, a user has a server without a port.
cat >/usr/local/bin/make-server <<'SCRIPT'
#!/bin/sh -eu
mkdir -m 700 ~/.ssh
cd ~/.ssh
ssh-keygen -q -t ed25519 -N "" -f id_ed25519
ssh-keygen -q -t ed25519 -N "" -f host
cp id_ed25519.pub authorized_keys
echo "server $(cat host.pub)" >known_hosts
printf '%s\n' "HostKey $HOME/.ssh/host" "UsePAM no" "Subsystem sftp internal-sftp" >sshd_config
printf '%s\n' "Host server" "ProxyCommand /usr/sbin/sshd -i -f $HOME/.ssh/sshd_config" >config
SCRIPT
chmod 755 /usr/local/bin/make-server
STEPS
changes >"$dir/before"

say "installing"
inside root <<'STEPS'
if [ $FRESH = yes ]; then
    apt-get -qq update
    apt-get -qq --no-install-recommends install /tmp/sshoal.deb >/tmp/apt.log 2>&1 || { cat /tmp/apt.log; exit 1; }
else
    dpkg --no-triggers --install /tmp/sshoal.deb >/tmp/dpkg.log 2>&1 || { cat /tmp/dpkg.log; exit 1; }
fi
dpkg --verify sshoal
sshoal --version | grep "^sshoal $(dpkg-query -W -f '${Version}' sshoal) " >/dev/null
STEPS

say "manual and completions"
inside root <<'STEPS'
cd /usr/share/man
for command in '' -mount -umount -status -stats -doctor -run -where -bench; do
    zcat "man1/sshoal$command.1.gz" | grep "^\.SH NAME" >/dev/null
done
zcat man8/mount.sshoal.8.gz | grep "^\.SH NAME" >/dev/null
# Minimal systems have none of these programs.
if command -v mandoc >/dev/null; then
    for page in man1/sshoal*.gz man8/mount.sshoal.8.gz; do
        zcat "$page" | mandoc -Tlint
    done
fi
if command -v man >/dev/null; then
    man sshoal-stats | grep "interval" >/dev/null
    man mount.sshoal | grep "fstab" >/dev/null
fi
bash --norc -c 'source /usr/share/bash-completion/completions/sshoal; complete -p sshoal' >/dev/null
[ -s /usr/share/zsh/vendor-completions/_sshoal ]
if command -v zsh >/dev/null; then
    [ "$(zsh -fc 'autoload -U compinit && compinit -uD && print $_comps[sshoal]')" = _sshoal ]
fi
[ -s /usr/share/fish/vendor_completions.d/sshoal.fish ]
if command -v fish >/dev/null; then
    fish -c 'complete -C "sshoal umo"' | grep "^umount" >/dev/null
fi
STEPS

say "an ordinary user"
inside ann <<'STEPS'
/usr/local/bin/make-server
mkdir project mnt
echo "from the server" >project/file
sshoal doctor server:project >doctor || { cat doctor; exit 1; }
grep -q "^fine  *login  *SFTP answers" doctor
sshoal server:project mnt
grep -q "from the server" mnt/file
echo "through the mount" >mnt/new
sshoal status mnt | grep "server: .* sessions" >/dev/null
sshoal doctor mnt >doctor || { cat doctor; exit 1; }
grep -q "^fine  *mount" doctor
cd mnt
[ "$(sshoal run sh -c 'pwd && cat new && echo run >made')" = "$HOME/project"$'\n'"through the mount" ]
[ "$(cat made)" = run ]
[ "$(sshoal where made)" = "server:$HOME/project/made" ]
cd
# Two lines below those of the head.
[ "$(sshoal stats mnt -n 2 -i 0.1 | tail -n +3 | grep -c "^ *[0-9]")" = 2 ]
sshoal stats mnt -n 1 -i 0.1 --json | grep "^{.*}$" >/dev/null
sshoal stats mnt --total | grep "^ *[1-9]" >/dev/null
sshoal umount mnt
grep -q "through the mount" project/new
[ -z "$(ls -A mnt)" ]
sshoal pull -q server:project copy
diff -r project copy/project
STEPS

say "root"
inside root <<'STEPS'
/usr/local/bin/make-server
mounted() { findmnt -no FSTYPE,SOURCE "$@" /mnt/project; }
fails() { if "$@" >/dev/null 2>&1; then return 1; fi; }
mount /mnt/project
[ "$(mounted)" = "fuse.sshoal server:/root/project" ]
sshoal set /mnt/project | grep -x acregmax=9 >/dev/null
[ "$(su ann -c 'cat /mnt/project/file')" = "from the server" ]
echo "through fstab" >/mnt/project/new
umount /mnt/project
fails mounted
[ "$(cat /root/project/new)" = "through fstab" ]
mount -t fuse.sshoal server:/root/project /mnt/project -o ro
mounted -O ro >/dev/null
fails touch /mnt/project/file
umount /mnt/project
mount -t sshoal server:/root/project /mnt/project
sshoal doctor /mnt/project >/tmp/doctor || { cat /tmp/doctor; exit 1; }
sshoal umount /mnt/project
fails mounted
STEPS

say "removing"
inside root <<'STEPS'
if [ $FRESH = yes ]; then
    apt-get -qq --auto-remove purge sshoal >/dev/null 2>&1
else
    dpkg --no-triggers --purge sshoal >/dev/null 2>&1
fi
STEPS
changes >"$dir/after"
if ! diff "$dir/before" "$dir/after"; then
    say "these files were left, or are missing" >&2
    exit 1
fi
say "passed"
