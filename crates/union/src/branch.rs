//! One source of the tree: what the user says of it, and what is known of it at run time.
//!
//! An optional branch that is away is left out, which is told in the log once for each change.
//! What is asked of a required one waits for its own answer, whatever that takes.

use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use base::{Errno, Name, Remote, RemotePath, Result};

/// What may be done in a branch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Everything.
    #[default]
    Rw,
    /// Nothing is changed: `EROFS`.
    Ro,
    /// What is there may be changed, renamed, linked and removed; nothing new is put in.
    NoCreate,
}

/// What happens when a branch cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Presence {
    /// Whatever depends on it waits or fails, as it says itself.
    #[default]
    Required,
    /// It is left out, as if it had not been given.
    Optional,
}

/// One source, as the user gave it.
#[derive(Clone)]
pub struct Branch {
    /// As the user wrote it: `gw1:/project`. Tells it from the other branches.
    pub name: String,
    /// The machine, as the user calls it.
    pub host: String,
    /// The directory of the tree in which its root is; empty for the root of the tree.
    pub place: Vec<Name>,
    /// The source itself.
    pub remote: Arc<dyn Remote>,
    /// What may be done in it.
    pub mode: Mode,
    /// What happens when it cannot be reached.
    pub presence: Presence,
}

impl fmt::Debug for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Branch { name, host, place, mode, presence, .. } = self;
        f.debug_struct("Branch")
            .field("name", name)
            .field("host", host)
            .field("place", place)
            .field("mode", mode)
            .field("presence", presence)
            .finish_non_exhaustive()
    }
}

/// Makes the words of the command line and of the configuration of an enum's values.
macro_rules! words {
    ($kind:ident: $($word:literal => $value:ident),* $(,)?) => {
        impl $kind {
            /// All of them, by the word that the user writes.
            pub const WORDS: &[(&str, $kind)] = &[$(($word, $kind::$value)),*];
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $($kind::$value => $word,)*
                })
            }
        }

        impl FromStr for $kind {
            type Err = crate::UnknownWord;

            fn from_str(word: &str) -> std::result::Result<$kind, crate::UnknownWord> {
                let known = $kind::WORDS.iter().find(|(known, _)| *known == word);
                known.map(|(_, value)| *value).ok_or_else(|| crate::UnknownWord {
                    word: word.escape_debug().to_string(),
                    known: $kind::WORDS.iter().map(|(known, _)| *known).collect(),
                })
            }
        }
    };
}
pub(crate) use words;

words! { Mode: "rw" => Rw, "ro" => Ro, "nc" => NoCreate }
words! { Presence: "required" => Required, "optional" => Optional }

/// A branch in the tree.
pub(crate) struct Live {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) remote: Arc<dyn Remote>,
    /// The root of the branch in the tree.
    pub(crate) place: RemotePath,
    /// How many names `place` has.
    pub(crate) depth: usize,
    mode: AtomicU8,
    optional: AtomicBool,
    left_out: AtomicBool,
}

/// What came of asking a branch.
pub(crate) enum Reached<T> {
    Answered(Result<T>),
    /// It is optional, and away.
    LeftOut,
}

impl Live {
    pub(crate) fn new(branch: Branch) -> Live {
        let Branch { name, host, place, remote, mode, presence } = branch;
        Live {
            name,
            host,
            remote,
            depth: place.len(),
            place: RemotePath::from_names(&place),
            mode: AtomicU8::new(mode as u8),
            optional: AtomicBool::new(presence == Presence::Optional),
            left_out: AtomicBool::new(false),
        }
    }

    pub(crate) fn mode(&self) -> Mode {
        match self.mode.load(Ordering::Relaxed) {
            mode if mode == Mode::Ro as u8 => Mode::Ro,
            mode if mode == Mode::NoCreate as u8 => Mode::NoCreate,
            _ => Mode::Rw,
        }
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::Relaxed);
    }

    /// Whether what is in it may be changed.
    pub(crate) fn writable(&self) -> bool {
        self.mode() != Mode::Ro
    }

    /// `EROFS` unless what is in it may be changed.
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

    /// Whether it is left out now.
    pub(crate) fn is_left_out(&self) -> bool {
        self.is_optional()
            && (self.left_out.load(Ordering::Relaxed) || self.remote.is_disconnected())
    }

    /// Waits for `call` to this branch, if it is optional only for as long as it can be reached.
    pub(crate) async fn reach<T>(&self, call: impl Future<Output = Result<T>>) -> Reached<T> {
        if !self.is_optional() {
            return Reached::Answered(call.await);
        }
        if self.remote.is_disconnected() {
            return self.leave_out();
        }
        let result = tokio::select! {
            biased;
            result = call => result,
            () = self.remote.disconnected() => Err(Errno::EHOSTDOWN),
        };
        if let Err(Errno::EHOSTDOWN | Errno::ETIMEDOUT) = result {
            return self.leave_out();
        }
        if self.left_out.swap(false, Ordering::Relaxed) {
            tracing::info!("{} can be reached again, and is part of the tree", self.name);
        }
        Reached::Answered(result)
    }

    fn leave_out<T>(&self) -> Reached<T> {
        if !self.left_out.swap(true, Ordering::Relaxed) {
            tracing::warn!("{} cannot be reached: the tree goes on without it", self.name);
        }
        Reached::LeftOut
    }

    /// As [`Live::reach`], for a call that only this branch can do: left out is `EHOSTDOWN`.
    pub(crate) async fn act<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match self.reach(call).await {
            Reached::Answered(result) => result,
            Reached::LeftOut => Err(Errno::EHOSTDOWN),
        }
    }
}
