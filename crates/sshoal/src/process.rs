//! What the commands need of their process: a runtime, the current directory, a signal handler, the
//! end of its children.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cli::{OrProblem, Problem};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitId, WaitIdOptions, getrlimit, setrlimit, waitid};
use tokio::runtime::{Builder, Runtime};

/// ssh gets SIGTERM after half a second, and SIGKILL a second later.
const CHILDREN_LIMIT: Duration = Duration::from_secs(2);

/// The current directory.
pub fn current_directory() -> Result<PathBuf, Problem> {
    std::env::current_dir().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Problem::new("current directory", "it was removed or unmounted")
            .hint("change to another directory"),
        _ => Problem::new("current directory", error.to_string()),
    })
}

/// A runtime with this many threads, beside those of blocking calls. Call this before another
/// thread is started.
pub fn runtime(workers: usize) -> Result<Runtime, Problem> {
    crate::allocator::share_one_heap();
    allow_many_descriptors();
    Builder::new_multi_thread()
        .worker_threads(workers)
        .enable_all()
        // A thread for blocking calls may be started by a thread of an io_uring queue, which is
        // bound to one processor. The main thread is not.
        .on_thread_start(|| {
            if let Ok(all) = rustix::thread::sched_getaffinity(Some(rustix::process::getpid())) {
                let _ = rustix::thread::sched_setaffinity(None, &all);
            }
        })
        .build()
        .or_problem("cannot start")
}

/// Lets a write beyond the limit of the file size (`ulimit -f`) fail with `EFBIG`. By default the
/// signal ends the process, and so the mount. Programs started from here have the default again,
/// since a handler ends with exec(2); an ignored signal would stay ignored, and so it does if it was
/// before.
#[allow(unsafe_code, reason = "setting a signal handler has no safe interface")]
pub fn survive_file_size_limit() {
    extern "C" fn do_nothing(_signal: libc::c_int) {}
    let handler = do_nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: a handler that does nothing is async-signal-safe.
    unsafe {
        if libc::signal(libc::SIGXFSZ, handler) == libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}

/// Raises the limit of descriptors: each open file of a local branch takes one, and each session.
fn allow_many_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        raised.unwrap_or_else(
            |error| tracing::debug!(%error, "cannot raise the limit of open files"),
        );
    }
}

/// Waits, for a limited time, until ssh and its helpers have ended: an ssh that prompts for a
/// password restores the terminal's settings when it ends.
pub async fn children_ended() {
    let any = || {
        waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
    };
    let all_ended = async {
        // The runtime reaps the children, but reports no event when none is left.
        while !matches!(any(), Err(Errno::CHILD)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let _ = tokio::time::timeout(CHILDREN_LIMIT, all_ended).await;
}
