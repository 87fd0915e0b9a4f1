//! What the commands need of their process: a runtime, the current directory.

use std::io;
use std::path::PathBuf;

use cli::{OrProblem, Problem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

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
