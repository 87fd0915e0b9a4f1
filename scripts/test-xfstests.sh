#!/usr/bin/env bash
# test-xfstests.sh XFSTESTS PROGRAM plain|helper [TEST...]: runs the generic tests of xfstests in two mounts of
# a private server, and prints a line for each: ok, FAILED, TIMEOUT, or not run with the reason.
#
# XFSTESTS is a built tree of https://git.kernel.org/pub/scm/fs/xfs/xfstests-dev.git. Needs root, the users
# fsgqa, fsgqa2 and 123456-fsgqa (see XFSTESTS/README), and 10 GB below TMPDIR for a disk of its own, which the
# tests fill. While it runs, /sbin/mount.fuse.sshoal is a link to PROGRAM.
set -euo pipefail

xfstests=$(realpath "$1")
program=$(realpath "$2")
kind=$3
shift 3
if [ $# = 0 ]; then
    mapfile -t tests < <(find "$xfstests/tests/generic" -maxdepth 1 -printf '%f\n' | grep -xE '[0-9]+' | sort)
    set -- "${tests[@]}"
fi

if [ "${IN_NAMESPACE:-}" = "" ]; then
    # Mounts and processes end with the namespaces.
    exec env IN_NAMESPACE=yes unshare --mount --pid --fork --kill-child --mount-proc \
        "$0" "$xfstests" "$program" "$kind" "$@"
fi
mount --make-rprivate /

work=$(mktemp -d)
truncate -s 10G "$work/disk"
mke2fs -q -t ext4 "$work/disk"
mkdir "$work/here" "$work/test" "$work/scratch"
mount -o loop "$work/disk" "$work/here"
mkdir "$work/here/test" "$work/here/scratch" "$work/sbin"
chmod 755 "$work"

link=/sbin/mount.fuse.sshoal
[ ! -e $link ] || { echo "$link exists" >&2; exit 1; }
ln -s "$program" $link
trap 'rm -f $link; umount -l "$work/test" "$work/scratch" "$work/here" 2>"$work/umount"; rm -rf "$work"' EXIT

ssh-keygen -q -t ed25519 -N '' -f "$work/key"
ssh-keygen -q -t ed25519 -N '' -f "$work/host"
port=${PORT:-2245}
cat >"$work/sshd" <<C
HostKey $work/host
AuthorizedKeysFile $work/key.pub
StrictModes no
UsePAM no
PidFile none
ListenAddress 127.0.0.1
MaxStartups 100
Subsystem sftp /usr/lib/openssh/sftp-server
C
mkdir -p /run/sshd
unshare --mount --propagation private /usr/sbin/sshd -D -e -f "$work/sshd" -p "$port" 2>"$work/log" &
echo "[127.0.0.1]:$port $(cat "$work/host.pub")" >"$work/known"

case $kind in
    plain) helper=no ;;
    helper) helper=$program ;;
    *) echo "plain or helper, not $kind" >&2; exit 2 ;;
esac
options=allow_other,ssh_config=none,IdentityFile=$work/key,UserKnownHostsFile=$work/known,port=$port,helper=$helper
cat >"$work/config" <<C
export TEST_DEV=root@127.0.0.1:$work/here/test TEST_DIR=$work/test
export SCRATCH_DEV=root@127.0.0.1:$work/here/scratch SCRATCH_MNT=$work/scratch
export FSTYP=fuse FUSE_SUBTYP=.sshoal
export MOUNT_OPTIONS=-o$options TEST_FS_MOUNT_OPTS=-o$options
export RESULT_BASE=$work/results
C

cd "$xfstests"
# It takes the type of the mount for that of another file system.
grep -q fuse.sshoal common/rc || sed -i "s,-e 's/fuse.ceph-fuse/ceph-fuse/',& -e 's/fuse.sshoal/fuse/'," common/rc
for number in "$@"; do
    code=0
    HOST_OPTIONS=$work/config timeout -k 10 "${LIMIT:-200}" ./check "generic/$number" >"$work/out" 2>&1 || code=$?
    reason=$(sed -n "s,^generic/$number.*\[not run\] *,,p" "$work/out")
    if [ $code = 124 ] || [ $code = 137 ]; then
        result=TIMEOUT
        umount -l "$work/test" "$work/scratch" 2>"$work/umount" || true
    elif [ "$reason" != "" ]; then
        result="not run: $reason"
    elif grep -q '^Passed all 1' "$work/out"; then
        result=ok
    else
        result=FAILED
    fi
    echo "generic/$number $result"
    if [ "$result" = FAILED ]; then
        sed 's/^/    /' "$work/out" | tail -n +7 | head -"${LINES_SHOWN:-12}"
    fi
done
