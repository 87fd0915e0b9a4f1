//! File watchers: processes that watch the mount with inotify(7) see what others change at the
//! server.
//!
//! The kernel reports to them what is done through the mount. So a thread of this process repeats
//! each change of others there ([`thread`]), and the requests that the kernel sends for that thread
//! are answered here ([`answers`]), without the server. What was created is "absent" for that
//! thread, so that it can create it; its removals and renames succeed. Nothing happens to the files
//! of the server, and nothing is changed in the [`Vfs`](vfs::Vfs).
//!
//! Most names are looked up by that thread as *stand-ins*: inodes that exist for one call only, in
//! place of files of which nothing is known here. The kernel forgets a stand-in at once, since its
//! time-outs are zero. Only a file that a local process has open, or watches itself, and a
//! directory that stays, are shown as what they are.
//!
//! Rules:
//! 1. Only what a process watches is repeated ([`watchers`]).
//! 2. Only that thread gets such answers. It is recognised by its number, as the kernel shows it,
//!    and gets them only for the [`Step`] that it is executing.
//! 3. That thread holds no lock and no descriptor of this process: it may wait in the kernel for a
//!    call of another process, for as long as that takes, and must not keep the mount or this
//!    process alive.
//! 4. What cannot be repeated safely is not repeated: a file that is being changed by a local
//!    process, a name that is a mount point.
//! 5. In a union, what is repeated is what a change at one source is in the tree ([`sources`]).

mod answers;
mod plan;
mod sources;
mod thread;
mod watchers;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use base::Mutex;
use mountinfo::Mount;
use rustix::fs::{CWD, OFlags};
use rustix::io::Errno;
use union::Union;
use vfs::ForeignChange;

use plan::Step;
use sources::Sources;
use watchers::Watchers;

/// Changes that wait, at most: some megabytes. A large checkout at the server has some ten
/// thousand.
const MAX_QUEUED: usize = 1 << 16;

/// How often the log says that changes were dropped.
const WARN_EACH: Duration = Duration::from_secs(60);

/// What the thread and the answers share. It contains no descriptor.
struct Shared {
    /// A name in the root that only the thread looks up, so that the kernel shows its number.
    greeting: String,
    /// The thread, as the kernel shows it; zero if that is not known.
    thread: AtomicU32,
    /// What the thread is executing.
    step: Mutex<Option<Step>>,
    /// Whether the kernel has looked up the name of `step` for the thread, instead of using an
    /// entry that it had.
    looked_up: AtomicBool,
    /// The number of stand-ins so far.
    stand_ins: AtomicU64,
    /// Changes that wait.
    queued: AtomicUsize,
    watchers: Watchers,
}

/// Repeats changes in the kernel. See the [module](self).
pub struct Repeater {
    shared: Arc<Shared>,
    changes: Sender<Vec<ForeignChange>>,
    /// Until the thread starts.
    queue: Mutex<Option<Receiver<Vec<ForeignChange>>>>,
    warned_at: Mutex<Option<Instant>>,
}

impl Repeater {
    /// One that repeats nothing before [`Repeater::start`].
    pub fn new() -> Repeater {
        let random = || RandomState::new().hash_one(());
        let (changes, queue) = channel();
        Repeater {
            shared: Arc::new(Shared {
                greeting: format!(".sshoal-{:016x}{:016x}", random(), random()),
                thread: AtomicU32::new(0),
                step: Mutex::new(None),
                looked_up: AtomicBool::new(false),
                stand_ins: AtomicU64::new(0),
                queued: AtomicUsize::new(0),
                watchers: Watchers::default(),
            }),
            changes,
            queue: Mutex::new(Some(queue)),
            warned_at: Mutex::default(),
        }
    }

    /// Starts the thread; without a `mount`, nothing is ever repeated. Must be called inside a
    /// runtime.
    pub fn start(&self, mount: Option<&Mount>, union: Option<&Arc<Union>>) {
        let (Some(queue), Some(mount)) = (self.queue.lock().take(), mount) else { return };
        if plan::open_inside(CWD, b".", OFlags::PATH).err() == Some(Errno::NOSYS) {
            tracing::warn!(
                "inotify: watchers do not see changes at the server; that needs openat2, which \
                 Linux has since 5.6"
            );
            return;
        }
        let (shared, mount) = (self.shared.clone(), mount.clone());
        let sources = union.map(Sources::new).transpose();
        let started = sources.and_then(|sources| {
            fuse::spawn_apart("repeat", move || {
                thread::repeat_all(&shared, &queue, &mount, sources.as_ref());
            })
        });
        if let Err(error) = started {
            tracing::debug!(%error, "cannot repeat changes of the server");
        }
    }
}

impl vfs::Repeat for Repeater {
    fn repeat(&self, changes: Vec<ForeignChange>) {
        let count = changes.len();
        if self.shared.queued.fetch_add(count, Ordering::Relaxed) + count > MAX_QUEUED {
            self.shared.queued.fetch_sub(count, Ordering::Relaxed);
            let mut warned_at = self.warned_at.lock();
            if warned_at.is_none_or(|at| at.elapsed() >= WARN_EACH) {
                *warned_at = Some(Instant::now());
                tracing::warn!("inotify: too many changes at the server; watchers miss some");
            }
            return;
        }
        if self.changes.send(changes).is_err() {
            // There is no thread.
            self.shared.queued.fetch_sub(count, Ordering::Relaxed);
        }
    }

    fn is_watched(&self, number: u64) -> bool {
        self.shared.watchers.may_watch(number)
    }

    fn find_watchers(&self) {
        self.shared.watchers.find();
    }
}
