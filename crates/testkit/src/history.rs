//! Past and present states of a server's files in memory, so that a test can check that a reply was
//! true at some moment of its call.
//!
//! A moment is a number, incremented by [`History::record`]. It has to be called at each stop of an
//! [`Interleave`](crate::interleave::Interleave); between two stops one call of one client takes
//! effect.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Mutex, Timestamp};

use crate::mem::Options;
use crate::tree::{Follow, Ino};
use crate::{Clock, MemRemote, path};

/// The inode of each name, with the moment of each change.
type Names = BTreeMap<&'static str, Vec<(u64, Option<Ino>)>>;

/// The last mtime of each file, and its contents with the moment of each change.
type Contents = BTreeMap<Ino, (Option<Timestamp>, Vec<(u64, Arc<Vec<u8>>)>)>;

/// A content, or `None` for no file.
pub type Version = Option<Arc<Vec<u8>>>;

#[derive(Default)]
struct Past {
    moment: u64,
    names: Names,
    contents: Contents,
    versions: u32,
}

/// A server and its past. See the [module](self).
pub struct History {
    server: Arc<MemRemote>,
    clock: Clock,
    past: Mutex<Past>,
}

/// The states from `since` on, including the one valid at `since`.
fn from<T>(states: &[(u64, T)], since: u64) -> impl Iterator<Item = &T> {
    let first = states.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
    states[first..].iter().map(|(_, state)| state)
}

impl History {
    /// An empty server with this clock; the files with these names are recorded. A manual clock
    /// advances by a second with each moment: any two states of a file differ in mtime.
    pub fn new(names: &[&'static str], clock: Clock) -> Arc<History> {
        let options = Options { clock: clock.clone(), ..Options::default() };
        let names = names.iter().map(|name| (*name, Vec::new())).collect();
        let past = Mutex::new(Past { names, ..Past::default() });
        let server = Arc::new(MemRemote::with(options));
        let history = History { server, clock, past };
        history.record();
        Arc::new(history)
    }

    /// The server.
    pub fn server(&self) -> &Arc<MemRemote> {
        &self.server
    }

    /// Records the present state, and begins the next moment.
    pub fn record(&self) {
        let mut past = self.past.lock();
        let Past { moment, names, contents, .. } = &mut *past;
        *moment += 1;
        self.server.edit(|tree| {
            for (name, states) in names {
                let ino = tree.lookup(&path(name), Follow::No).ok();
                if states.last().is_none_or(|(_, last)| *last != ino) {
                    states.push((*moment, ino));
                }
                if let Some(ino) = ino
                    && !contents.contains_key(&ino)
                {
                    // A file without a name may be open.
                    tree.hold(ino);
                    contents.insert(ino, (None, Vec::new()));
                }
            }
            for (ino, (changed_at, states)) in contents {
                let mtime = tree.attr(*ino).mtime;
                let is_unchanged = changed_at.replace(mtime) == Some(mtime);
                if is_unchanged && matches!(self.clock, Clock::Manual(_)) {
                    continue;
                }
                let content = tree.read(*ino, 0, u64::MAX).unwrap_or_default();
                if states.last().is_none_or(|(_, last)| **last != content) {
                    states.push((*moment, Arc::new(content)));
                }
            }
        });
        if let Clock::Manual(clock) = &self.clock {
            clock.advance(1);
        }
    }

    /// The current moment.
    pub fn moment(&self) -> u64 {
        self.past.lock().moment
    }

    /// All contents that can be read from a file opened as `name` since that moment: those of the
    /// files with that name, also after they lost it.
    ///
    /// # Panics
    ///
    /// If the name is not recorded.
    pub fn since(&self, name: &str, moment: u64) -> Vec<Version> {
        self.record();
        let past = self.past.lock();
        let files = from(&past.names[name], moment);
        let versions = files.flat_map(|ino| match ino {
            None => vec![None],
            Some(ino) => from(&past.contents[ino].1, moment).cloned().map(Some).collect(),
        });
        versions.collect()
    }

    /// A content that differs from all other versions, and whose words depend on their position.
    pub fn version(&self, words: u32) -> Vec<u8> {
        let mut past = self.past.lock();
        past.versions += 1;
        let number = past.versions.to_le_bytes();
        (0..words).flat_map(|at| [number, at.to_le_bytes()].concat()).collect()
    }
}

/// A version for a failure message: its length, and the numbers of the versions of its first and
/// last word.
pub fn shown(version: Option<&[u8]>) -> String {
    let Some(content) = version else { return "absent".to_owned() };
    let number = |at: usize| {
        let bytes = content.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_le_bytes(bytes))
    };
    let (first, last) = (number(0), number(content.len().saturating_sub(8)));
    format!("{} bytes of {first:?} to {last:?}", content.len())
}
