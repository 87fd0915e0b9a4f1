//! One source of the tree: its configuration, and its state at run time.
//!
//! An optional branch that is unreachable is left out; each change of that is logged once. A call
//! to a required branch waits for its answer without a limit.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use base::{Attr, Errno, Mutex, Name, Remote, RemotePath, Result, Watches, stable_hash};

use crate::components::Components;
use crate::watches::UnionWatches;

/// What may be changed in a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Everything.
    #[default]
    Rw,
    /// Nothing: `EROFS`.
    Ro,
    /// Existing entries may be changed, renamed, linked and removed; no new ones are created.
    NoCreate,
}

/// What happens when a branch cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Operations that need it wait or fail, as the branch itself decides.
    #[default]
    Required,
    /// It is left out, as if it were not configured.
    Optional,
}

/// One source, as configured by the user.
#[derive(Clone)]
pub struct Branch {
    /// The source as written by the user: `gw1:/project`. Unique in the tree.
    pub name: String,
    /// The host, as named by the user.
    pub host: String,
    /// The directory of the tree at which the branch's root appears; empty for the root of the
    /// tree.
    pub place: Vec<Name>,
    /// The source itself.
    pub remote: Arc<dyn Remote>,
    /// What may be changed in it.
    pub mode: Mode,
    /// What happens when it cannot be reached.
    pub presence: Presence,
}

/// Implements the words of an enum's values, as the status shows them.
macro_rules! words {
    ($kind:ident: $($word:literal => $value:ident),* $(,)?) => {
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($kind::$value => $word,)*
                })
            }
        }
    };
}
pub(crate) use words;

words! { Mode: "rw" => Rw, "ro" => Ro, "nc" => NoCreate }
words! { Presence: "required" => Required, "optional" => Optional }

/// A branch in the tree.
pub(crate) struct TreeBranch {
    /// Of no other branch of this process, and not 0.
    pub(crate) number: u64,
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) remote: Arc<dyn Remote>,
    /// The branch's root in the tree.
    pub(crate) place: RemotePath,
    /// The number of names in `place`.
    pub(crate) depth: usize,
    /// Made from the name, so that it is the same in each mount of these sources.
    device_mask: u64,
    /// It has answered a request: before, it may offer no watches since it is not connected.
    pub(crate) has_answered: AtomicBool,
    /// Its watches, once it has offered them: it does so only while it is connected.
    pub(crate) watches: OnceLock<Arc<dyn Watches>>,
    /// To be told when it is left out: answers without it are of fewer branches than are watched.
    pub(crate) watched_by: OnceLock<Weak<UnionWatches>>,
    mode: Mutex<Mode>,
    optional: AtomicBool,
    left_out: AtomicBool,
    /// It was left out of an answer since the last call of [`TreeBranch::take_return`].
    missed: AtomicBool,
}

impl TreeBranch {
    pub(crate) fn new(branch: Branch) -> TreeBranch {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let Branch { name, host, place, remote, mode, presence } = branch;
        TreeBranch {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            device_mask: stable_hash(name.as_bytes()),
            name,
            host,
            remote,
            depth: place.len(),
            place: RemotePath::from_names(&place),
            mode: Mutex::new(mode),
            optional: AtomicBool::new(presence == Presence::Optional),
            left_out: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            has_answered: AtomicBool::new(false),
            watches: OnceLock::new(),
            watched_by: OnceLock::new(),
        }
    }

    /// A path of the tree, at or below the branch's place, as a path inside the branch.
    pub(crate) fn subpath(&self, path: &RemotePath) -> RemotePath {
        let components = Components::new(path);
        components.subpath(self.depth, components.depth())
    }

    /// Attributes of the branch as those of the tree, and back: the device numbers of two branches
    /// are different, since files of equal numbers on two servers are different files.
    pub(crate) fn translated(&self, mut attr: Attr) -> Attr {
        if let Some(id) = attr.inode.as_mut().and_then(|inode| inode.id.as_mut()) {
            id.device ^= self.device_mask;
        }
        attr
    }

    pub(crate) fn mode(&self) -> Mode {
        *self.mode.lock()
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        *self.mode.lock() = mode;
    }

    /// Whether its entries may be changed.
    pub(crate) fn writable(&self) -> bool {
        self.mode() != Mode::Ro
    }

    /// `EROFS` unless its entries may be changed.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writable() { Ok(()) } else { Err(Errno::EROFS) }
    }

    pub(crate) fn is_optional(&self) -> bool {
        self.optional.load(Ordering::Relaxed)
    }

    pub(crate) fn presence(&self) -> Presence {
        if self.is_optional() { Presence::Optional } else { Presence::Required }
    }

    pub(crate) fn set_presence(&self, presence: Presence) {
        self.optional.store(presence == Presence::Optional, Ordering::Relaxed);
    }

    /// Whether it is left out at present.
    pub(crate) fn is_left_out(&self) -> bool {
        self.is_optional()
            && (self.left_out.load(Ordering::Relaxed) || self.remote.is_disconnected())
    }

    /// Whether it is reachable, and was left out of an answer since the last call.
    pub(crate) fn take_return(&self) -> bool {
        !self.remote.is_disconnected() && self.missed.swap(false, Ordering::Relaxed)
    }

    /// Runs `call` to this branch. `None` if the branch is optional and unreachable.
    pub(crate) async fn attempt<T>(
        &self,
        call: impl Future<Output = Result<T>>,
    ) -> Option<Result<T>> {
        if !self.is_optional() {
            return Some(call.await);
        }
        if self.remote.is_disconnected() {
            return self.leave_out();
        }
        let result = tokio::select! {
            biased;
            result = call => result,
            () = self.remote.disconnected() => Err(Errno::EHOSTDOWN),
        };
        if result.as_ref().is_err_and(|errno| self.is_lost(*errno)) {
            return self.leave_out();
        }
        if self.left_out.swap(false, Ordering::Relaxed) {
            tracing::info!("{} can be reached again: back in the tree", self.name);
        }
        Some(result)
    }

    /// Whether an error of the branch means that it cannot be reached.
    pub(crate) fn is_lost(&self, errno: Errno) -> bool {
        errno.is_loss() && self.remote.may_be_lost()
    }

    fn leave_out<T>(&self) -> Option<Result<T>> {
        self.missed.store(true, Ordering::Relaxed);
        if !self.left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!("{} cannot be reached: left out of the tree", self.name);
            if let Some(watches) = self.watched_by.get().and_then(Weak::upgrade) {
                watches.lose_branch(self.number);
            }
        }
        None
    }

    /// Runs `call`, which no other branch can serve: `EHOSTDOWN` where the branch is left out.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.attempt(call).await.unwrap_or(Err(Errno::EHOSTDOWN))
    }
}
