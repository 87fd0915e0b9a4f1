#!/usr/bin/env bash
# test-in-vm.sh: everyday work in mounts of several kinds, as the first process of a virtual machine that
# test-kernels.sh starts. Prints a line for each step, and `end: N passed, M failed`.
# shellcheck disable=SC2016,SC2086 # Each step is expanded by the shell that runs it.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mountpoint -q /proc || mount -t proc proc /proc
mountpoint -q /sys || mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
chmod 1777 /tmp
modprobe fuse
[ -e /dev/fuse ] || mknod /dev/fuse c 10 229
chmod 666 /dev/fuse
ip link set lo up
hostname vm
printf "127.0.0.1 localhost vm\n" >/etc/hosts
mkdir -p /run/sshd /root/.ssh
ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
ssh-keygen -A >/dev/null
cp /root/.ssh/id_ed25519.pub /root/.ssh/authorized_keys
printf 'Host *\n StrictHostKeyChecking accept-new\n LogLevel ERROR\n' >/root/.ssh/config
chmod 700 /root/.ssh
unshare -m --propagation private /usr/sbin/sshd -o PermitRootLogin=yes -o MaxStartups=100 -o UsePAM=no
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=t@t
git config --global init.defaultBranch main

passed=0
failed=0
step() { # NAME COMMAND
    if timeout -k 5 "${LIMIT:-120}" bash -euo pipefail -c "$2" >/tmp/out 2>&1 </dev/null; then
        echo "ok       $kind: $1"
        passed=$((passed + 1))
    else
        echo "FAILED   $kind: $1 ($?)"
        tail -8 /tmp/out
        failed=$((failed + 1))
    fi
}

# A tree of 400 files.
tree=/var/tree
python3 - <<'P'
import os
for i in range(20):
    os.makedirs(f'/var/tree/d{i}/e', exist_ok=True)
    for j in range(20):
        open(f'/var/tree/d{i}/{"e/" if j % 2 else ""}f{j}', 'wb').write(os.urandom(1 + 997 * ((i * j) % 40)))
os.symlink('d1/f2', '/var/tree/link')
P
export tree

uname -r
# Local directories and file watchers need openat2.
[ "$(printf '5.6\n%s\n' "$(uname -r)" | sort -V | head -1)" = 5.6 ] && openat2=yes || openat2=no
export openat2
IFS=, read -ra kinds <<<"${KINDS:-plain,helper,watch,cache,immutable}"
for kind in "${kinds[@]}"; do
    export m=/mnt/$kind s=/srv/$kind
    mkdir -p "$m" "$s"
    case $kind in
        plain) options= ;;
        helper) options=,helper=/usr/bin/sshoal ;;
        watch) options=,helper=/usr/bin/sshoal,direct=require,consistency=watch ;;
        cache) options=,cache=disk,cache_dir=/var/cache/sshoal ;;
        immutable) options=,cache=disk,cache_dir=/var/cache/sshoal,immutable; cp -a $tree "$s/t" ;;
    esac
    step mount "sshoal root@127.0.0.1:$s $m -o allow_other$options; sshoal status $m"
    if [ $kind = immutable ]; then
        step 'a tree that does not change' 'diff -r --no-dereference $tree $m/t; diff -r $tree $m/t'
        step 'a mount is read-only' '! touch $m/x; grep -q " $m .*[ ,]ro," /proc/mounts'
        step umount "sshoal umount $m"
        step 'from the cache' "sshoal root@127.0.0.1:$s $m -o allow_other$options; cmp $m/t/d3/e/f5 $tree/d3/e/f5; sshoal umount $m"
        continue
    fi
    step 'cp -a' 'cp -a $tree $m/t; sync -f $m; diff -r --no-dereference $tree $s/t'
    step 'read' 'diff -r --no-dereference $tree $m/t; diff -r $tree $m/t'
    step 'rsync -a' 'rsync -a $tree/ $m/r; [ "$(rsync -ain $tree/ $m/r)" = "" ]; diff -r --no-dereference $tree $s/r'
    step 'tar' 'mkdir $m/x; tar cf - -C $m t | tar xf - -C $m/x; diff -r --no-dereference $tree $s/x/t'
    step 'git' 'cd $m; git init -q g; cd g; cp -r $tree/d1 .; git add .; git commit -qm 1; echo x >d1/f0; git commit -qam 2
        git checkout -q HEAD~1; git gc -q; git fsck --full; [ "$(git status --porcelain)" = "" ]'
    step 'sqlite' 'cd $m; sqlite3 db "create table t(a)"; for i in 1 2 3 4 5; do sqlite3 db "insert into t values($i)"; done
        [ "$(sqlite3 $s/db "select sum(a) from t")" = 15 ]; [ "$(sqlite3 db "pragma integrity_check")" = ok ]'
    step 'shared mappings' "python3 -c '
import mmap, os
f = open(\"$m/map\", \"w+b\"); f.truncate(1 << 20); a = mmap.mmap(f.fileno(), 1 << 20)
for i in range(0, 1 << 20, 4096): a[i] = i // 4096 % 251
a.flush(); a.close(); os.fsync(f.fileno()); f.close()
d = open(\"$s/map\", \"rb\").read(); assert all(d[i] == i // 4096 % 251 for i in range(0, 1 << 20, 4096))'"
    step 'two appenders' '(for i in $(seq 100); do echo a$i >>$m/log; done) & (for i in $(seq 100); do echo b$i >>$m/log; done) & wait
        [ $(sort -u $s/log | wc -l) = 200 ]'
    step 'rename, unlink of an open file' 'cd $m; echo 1 >a; echo 2 >b; exec 3<a; mv b a; [ "$(cat a)" = 2 ]; [ "$(cat <&3)" = 1 ]
        exec 4<>a; rm a; [ ! -e a ]; echo more >&4; exec 4>&-; [ ! -e $s/a ]'
    step 'truncate, times, modes' 'cd $m; head -c 100000 /dev/urandom >f; truncate -s 5000 f; [ $(stat -c %s $s/f) = 5000 ]
        touch -d "2001-02-03 04:05:06" f; [ $(stat -c %Y $s/f) = $(date -d "2001-02-03 04:05:06" +%s) ]; chmod 640 f; [ $(stat -c %a $s/f) = 640 ]
        ln f f2; [ $(stat -c %h $s/f) = 2 ]; truncate -s 1G f; cmp -n 6000 f $s/f'
    step 'direct I/O' 'cd $m; dd if=/dev/urandom of=d bs=1M count=4 oflag=direct; dd if=d bs=1M iflag=direct | cmp - $s/d'
    step 'locks' 'cd $m; (flock 9; sleep 2) 9>lock & sleep 0.5; ! flock -n lock true; wait; flock -n lock true'
    step 'a change at the server' 'echo old >$s/c; sleep 1.1; cat $m/c; echo longer >$s/new; mv $s/new $s/c; sleep 1.1; [ "$(cat $m/c)" = longer ]'
    step 'a signal never makes a call fail' 'cd $m; for i in $(seq 200); do sleep 0.001 & echo $i >s; [ -e s ] || exit 1; done; wait'
    step 'find, du' '[ $(find $m/t | wc -l) = $(find $tree | wc -l) ]; du -s $m/t'
    step 'other users' "su ann -c 'cat $m/t/d1/f0 >/dev/null; ! touch $m/t/d1/f0'"
    if [ $kind = helper ] || [ $kind = watch ]; then
        step 'extended attributes, access lists, holes' 'cd $m; touch x; fallocate -l 10000 allocated; [ $(stat -c %s $s/allocated) = 10000 ]; setfattr -n user.a -v b x; [ "$(getfattr --only-values -n user.a $s/x 2>/dev/null)" = b ]
            setfacl -m u:ann:rw x; getfacl -pc $s/x | grep ann; mkfifo p; [ -p $s/p ]; truncate -s 100M h; echo end >>h; rsync -aHAXS h x p r2/; cmp h $s/r2/h
            [ "$(stat -c %i h)" = "$(stat -c %i $s/h)" ]'
        step 'locks of another mount' 'mkdir -p /mnt/two; sshoal root@127.0.0.1:$s /mnt/two -o helper=/usr/bin/sshoal
            (flock 9; sleep 3) 9>/mnt/two/l2 & sleep 1; ! flock -n $m/l2 true; wait; flock -n $m/l2 true; sshoal umount /mnt/two'
    fi
    if [ $kind = watch ] && [ $openat2 = yes ]; then
        step 'inotify' 'mkdir $m/w; ls $m/w; inotifywait -q -t 20 -e create $m/w >/tmp/seen & sleep 3; touch $s/w/new; wait $! || { sshoal status $m; false; }; grep new /tmp/seen'
    fi
    if [ $kind = cache ]; then
        step 'status of the cache' 'sshoal status $m --json | grep -q cache'
    fi
    step 'a server that does not answer' 'pids=$(pgrep -P $(pgrep -o -f /usr/sbin/sshd) || true); kill -STOP $pids
        cat $m/t/d7/f4 $m/t/d7/e/f5 $m/t/d9/f2 >/dev/null & c=$!; sleep 1; ls $m/nothere & l=$!; sleep 1; kill -9 $c $l || true; sleep 2
        ! kill -0 $c 2>/dev/null || [ "$(ps -o stat= $c)" = Z ]; kill -CONT $pids; ls -l $m/t >/dev/null'
    step 'a lost connection' 'cd $m; exec 5>>lost; echo 1 >&5; pkill -9 -f "[s]shd: root" || true; sleep 1; echo 2 >&5; exec 5>&-; [ "$(cat $s/lost | tr -d "\n")" = 12 ]; cat t/d2/f2 >/dev/null'
    step 'push, pull' 'sshoal push $tree root@127.0.0.1:$s/pushed; if [ $openat2 = yes ]; then sshoal pull root@127.0.0.1:$s/pushed /tmp/pulled-'$kind'; diff -r $tree "$(dirname "$(find /tmp/pulled-'$kind' -name d5)")"; fi; sshoal push $tree root@127.0.0.1:$s/pushed | tee /dev/stderr
        diff -r $tree "$(dirname "$(find $s/pushed -name d5)")"'
    step 'rm -r' 'rm -r $m/t $m/x $m/g; [ ! -e $s/t ]'
    step umount "sshoal umount $m; ! mountpoint -q $m; ! pgrep -x sshoal"
done
dmesg | grep -aE 'BUG|Oops|WARNING' | head
echo "end: $passed passed, $failed failed"
sync
echo o >/proc/sysrq-trigger
sleep 10
