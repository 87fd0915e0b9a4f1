//! What is learned of a program on the way: its version when it is checked, its cipher when it is
//! started for the first time.

use std::process::Command;
use std::sync::OnceLock;

use crate::executor::Executor;
use crate::results::SubjectInfo;
use crate::subject::Tuning;

use super::cipher;

/// See the [module](self). Each is looked for once.
#[derive(Default)]
pub(super) struct Seen {
    version: OnceLock<String>,
    cipher: OnceLock<Option<String>>,
}

impl Seen {
    /// What a report says of the subject.
    pub(super) fn info(&self, name: &str, kind: &str, command: impl Into<String>) -> SubjectInfo {
        SubjectInfo {
            version: self.version.get().cloned().unwrap_or_default(),
            cipher: self.cipher.get().cloned().flatten(),
            ..SubjectInfo::new(name, kind, command)
        }
    }

    /// Its version is what `look` says.
    pub(super) fn version(&self, look: impl FnOnce() -> String) {
        self.version.get_or_init(look);
    }

    /// Its cipher is the one that the `ssh` takes which `make` makes, unless a work chooses one now.
    pub(super) fn cipher(
        &self,
        tuning: &Tuning,
        executor: &Executor,
        make: impl FnOnce() -> Command,
    ) {
        if tuning.cipher.is_none() {
            self.cipher.get_or_init(|| cipher::negotiated(make(), executor));
        }
    }
}
