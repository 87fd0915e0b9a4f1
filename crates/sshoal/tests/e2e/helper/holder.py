"""Locks and uses one file as it is told on its standard input, and says how each went."""

import errno
import fcntl
import os
import signal
import sys


def interrupted(*_):
    raise InterruptedError(errno.EINTR, "interrupted")


def lock(kind, wait, start=0, length=0):
    flags = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH}[kind] | (0 if wait else fcntl.LOCK_NB)
    fcntl.lockf(file, flags, length, start)


def flock(kind, wait):
    flags = {"ex": fcntl.LOCK_EX, "sh": fcntl.LOCK_SH}[kind] | (0 if wait else fcntl.LOCK_NB)
    fcntl.flock(file, flags)


def increment(times):
    """Adds to the number in the file under a lock: what is not visible to the next is lost."""
    for _ in range(times):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        number = int(os.pread(file, 8, 0))
        os.pwrite(file, b"%8d" % (number + 1), 0)
        fcntl.lockf(file, fcntl.LOCK_UN, 1, 0)


def close_other():
    os.close(os.open(sys.argv[1], os.O_RDONLY))


def run(words):
    command, rest = words[0], words[1:]
    if command in ("lock", "wait"):
        lock(rest[0], command == "wait", *map(int, rest[1:]))
    elif command == "unlock":
        start, length = (int(word) for word in rest) if rest else (0, 0)
        fcntl.lockf(file, fcntl.LOCK_UN, length, start)
    elif command in ("flock", "flockwait"):
        flock(rest[0], command == "flockwait")
    elif command == "unflock":
        fcntl.flock(file, fcntl.LOCK_UN)
    elif command == "read":
        return os.pread(file, 100, 0).decode()
    elif command == "write":
        os.pwrite(file, rest[0].encode(), 0)
    elif command == "fsync":
        os.fsync(file)
    elif command == "increment":
        increment(int(rest[0]))
    elif command == "alarm":
        signal.setitimer(signal.ITIMER_REAL, float(rest[0]))
    elif command == "closeother":
        close_other()
    return "ok"


signal.signal(signal.SIGALRM, interrupted)
file = os.open(sys.argv[1], os.O_RDWR)
print("ready", flush=True)
for line in sys.stdin:
    try:
        answer = run(line.split())
    except OSError as error:
        answer = errno.errorcode[error.errno]
    print(answer, flush=True)
