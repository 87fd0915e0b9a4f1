//! Programs with a timer that expires all the time, and a server that answers.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::process::{run, succeed};
use crate::world::{World, is_big_run};

/// Makes each call once a round, with a timer that expires every millisecond, and prints how often
/// each failed with `EINTR`. `$1` is the directory, `$2` the number of rounds, `$3` the flags.
const PROGRAM: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

static volatile long handled;
static void count(int signal) { (void)signal; handled++; }

#define CALLS 24
static struct { const char *name; long interrupted; } calls[CALLS];

static long check(int number, const char *name, long result) {
    calls[number].name = name;
    if (result < 0) {
        if (errno != EINTR) { perror(name); exit(2); }
        calls[number].interrupted++;
    }
    return result;
}
#define C(number, call) check(number, #call, call)

int main(int argc, char **argv) {
    char text[64], big[200000];
    struct stat seen;
    struct sigaction action;
    struct itimerval time = { { 0, 1000 }, { 0, 1000 } };
    if (argc != 4 || chdir(argv[1])) return 2;
    memset(big, 'x', sizeof big);
    memset(&action, 0, sizeof action);
    action.sa_handler = count;
    action.sa_flags = atoi(argv[3]) ? SA_RESTART : 0;
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &time, NULL);
    for (long round = atol(argv[2]); round > 0; round--) {
        int fd = C(0, open("f", O_RDWR | O_CREAT | O_TRUNC, 0644));
        C(1, write(fd, big, sizeof big));
        C(2, fsync(fd));
        C(3, fstat(fd, &seen));
        C(4, ftruncate(fd, 100000));
        C(5, pread(fd, text, sizeof text, 4096));
        C(6, close(fd));
        C(7, stat("f", &seen));
        C(8, access("f", R_OK));
        C(9, mkdir("d", 0755));
        C(10, rename("f", "g"));
        C(11, link("g", "h"));
        C(12, symlink("g", "s"));
        C(13, readlink("s", text, sizeof text));
        C(14, chmod("g", 0600));
        C(15, truncate("g", 10));
        C(16, utimensat(AT_FDCWD, "g", NULL, 0));
        fd = C(17, open("g", O_RDONLY | O_DIRECT));
        C(18, read(fd, text, sizeof text));
        close(fd);
        C(19, unlink("h"));
        C(20, unlink("s"));
        C(21, unlink("g"));
        DIR *dir = opendir("d");
        C(22, dir ? 0 : -1);
        if (dir) {
            errno = 0;
            while (readdir(dir)) {}
            if (errno == EINTR) calls[22].interrupted++;
            closedir(dir);
        }
        C(23, rmdir("d"));
    }
    for (int number = 0; number < CALLS; number++)
        if (calls[number].interrupted)
            printf("%s: %ld\n", calls[number].name, calls[number].interrupted);
    return handled < atol(argv[2]) ? 3 : 0;
}
"#;

fn compiled(world: &World) -> PathBuf {
    let (source, program) = (world.local("timers.c"), world.local("timers"));
    fs::write(&source, PROGRAM).unwrap();
    succeed(Command::new("gcc").args(["-O1", "-o"]).arg(&program).arg(&source));
    program
}

/// A5
#[test]
fn a_timer_fails_no_call() {
    let world = World::new();
    let program = compiled(&world);
    let mount = world.mount(&["-o", "dir_cache=no,cache=no"]);
    let rounds = if is_big_run() { "10000" } else { "50" };
    for restart in ["0", "1"] {
        let mut command = Command::new(&program);
        let ended = run(command.arg(mount.place()).args([rounds, restart]));
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(ended.stdout, "", "calls that failed with EINTR, restart={restart}");
    }
}

/// A5: Python makes some calls again after `EINTR`, and not those that it changes names by.
#[test]
fn a_timer_in_python_fails_no_call() {
    if !Command::new("python3").arg("--version").output().is_ok_and(|it| it.status.success()) {
        eprintln!("skipped: there is no python3");
        return;
    }
    let world = World::new();
    let mount = world.mount(&["-o", "dir_cache=no"]);
    let script = "
import os, signal, sys
os.chdir(sys.argv[1])
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
for i in range(100):
    os.mkdir('d'); os.stat('d'); os.rename('d', 'e'); os.rmdir('e')
    with open('f', 'w') as f: f.write('x')
    os.unlink('f')
signal.setitimer(signal.ITIMER_REAL, 0)
print('done')
";
    let mut python = Command::new("python3");
    assert_eq!(succeed(python.args(["-c", script]).arg(mount.place())), "done\n");
}
