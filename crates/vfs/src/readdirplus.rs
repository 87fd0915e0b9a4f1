//! Whether a listing returns attributes of files, which counts as their lookup (READDIRPLUS), or
//! only names and types.
//!
//! While the kernel knows as many inodes as the budget allows, each lookup of a file evicts another
//! one. A program that needs only names and types (`find`) gains nothing from it, and the kernel
//! does not report whether it has used the attributes. So a directory now and then is a trial: its
//! files are listed without attributes. If the kernel looks one up, attributes are wanted, and the
//! next trial comes after twice as many directories. If it looks none up before the next directory
//! is listed, files are listed without attributes from then on, until one of them is looked up.
//!
//! Directories always have attributes: a walk enters them.
//!
//! Measured with `find` over a million files: the mount's process takes 1.2 s of CPU time instead
//! of 5.5 s, and `find` ends in 6 to 8 s instead of 11 s. If the guess is wrong, the files of one
//! or two directories are looked up one by one, from the cached listing.

use std::sync::atomic::{AtomicBool, Ordering};

use base::Mutex;

/// Directories before the first trial, and after a series of listings without attributes.
const FIRST_PAUSE: u32 = 8;

/// Directories between two trials, at most.
const MAX_PAUSE: u32 = 1024;

/// See the [module](self).
pub(crate) struct ReaddirplusPolicy {
    /// The last directory was listed without attributes.
    active: AtomicBool,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    mode: Mode,
    /// Directories before the next trial.
    pause: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Attributes are returned, in this many more directories.
    WithAttributes(u32),
    /// One directory was listed without attributes, and none of its files was looked up so far.
    Trial,
    /// No attributes are returned.
    NamesOnly,
}

impl Default for ReaddirplusPolicy {
    fn default() -> ReaddirplusPolicy {
        let state = State { mode: Mode::WithAttributes(FIRST_PAUSE), pause: FIRST_PAUSE };
        ReaddirplusPolicy { active: AtomicBool::new(false), state: Mutex::new(state) }
    }
}

impl ReaddirplusPolicy {
    /// The listing of a directory begins, while there are as many inodes as the budget allows.
    pub(crate) fn begin_directory(&self) {
        let mut state = self.state.lock();
        state.mode = match state.mode {
            Mode::WithAttributes(0) => Mode::Trial,
            Mode::WithAttributes(more) => Mode::WithAttributes(more - 1),
            Mode::Trial | Mode::NamesOnly => {
                state.pause = FIRST_PAUSE;
                Mode::NamesOnly
            }
        };
        self.active.store(!matches!(state.mode, Mode::WithAttributes(_)), Ordering::Relaxed);
    }

    /// Whether listings that began now omit attributes.
    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The kernel has looked up a file.
    pub(crate) fn note_file_lookup(&self) {
        if !self.is_active() {
            return;
        }
        let mut state = self.state.lock();
        state.pause = (2 * state.pause).min(MAX_PAUSE);
        state.mode = Mode::WithAttributes(state.pause);
        self.active.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of directories out of `count` that are listed without attributes, if their files
    /// are looked up when `used`.
    fn listed(names: &ReaddirplusPolicy, count: u32, used: bool) -> u32 {
        let mut names_only = 0;
        for _ in 0..count {
            names.begin_directory();
            names_only += u32::from(names.is_active());
            if used {
                names.note_file_lookup();
            }
        }
        names_only
    }

    #[test]
    fn files_without_lookups_get_no_attributes_after_a_trial() {
        let names = ReaddirplusPolicy::default();
        assert_eq!(listed(&names, FIRST_PAUSE, false), 0);
        assert_eq!(listed(&names, 1000, false), 1000);
        names.note_file_lookup();
        assert_eq!(listed(&names, 2 * FIRST_PAUSE, false), 0);
        assert_eq!(listed(&names, 10, false), 10);
    }

    #[test]
    fn trials_become_rare_where_files_are_looked_up() {
        let names = ReaddirplusPolicy::default();
        let trials = listed(&names, 10_000, true);
        assert!((8..=16).contains(&trials), "{trials}");
        // Until they are not looked up.
        assert!(listed(&names, 3 * MAX_PAUSE, false) > MAX_PAUSE);
        assert_eq!(listed(&names, 1, true), 1);
        assert_eq!(listed(&names, 2 * FIRST_PAUSE, true), 0);
    }
}
