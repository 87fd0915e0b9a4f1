//! What a copy of the tree has to be.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::corpus::tree::{Links, Tally, survey};
use crate::failure::Failure;
use crate::results::Measured;

/// Of the original, as the file next to it has it.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::work) struct Expected {
    /// As it is.
    pub(in crate::work) kept: Tally,
    /// Programs that copy follow links, or leave them out; who says so in its manual is not wrong.
    /// `None` when a link leads nowhere.
    followed: Option<Tally>,
    left_out: Tally,
}

impl Expected {
    pub(in crate::work) fn of(source: &Path) -> io::Result<Expected> {
        Ok(Expected {
            kept: survey(source, Links::Kept)?,
            followed: survey(source, Links::Followed).ok(),
            left_out: survey(source, Links::LeftOut)?,
        })
    }

    /// In that file of the corpus.
    pub(in crate::work) fn save(&self, file: &Path) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).map_err(|error| Failure::failed(error.to_string()))?;
        Ok(fs::write(file, text)?)
    }

    pub(in crate::work) fn load(file: &Path) -> Result<Expected, Failure> {
        let text = fs::read(file)?;
        serde_json::from_slice(&text).map_err(|error| Failure::failed(error.to_string()))
    }

    /// Whether that is the digest of a right copy: by a mount, or by a program of its own kind.
    pub(in crate::work) fn check(&self, digest: &str, mounted: bool) -> Result<(), Failure> {
        let of_copiers = [self.followed.as_ref(), Some(&self.left_out)];
        let is_right = digest == self.kept.digest
            || !mounted && of_copiers.into_iter().flatten().any(|tally| tally.digest == digest);
        match is_right {
            true => Ok(()),
            false => Err(Failure::wrong("the copy of the tree is not like the original")),
        }
    }

    /// Enters what was done in that time, now that it is known to be right.
    pub(in crate::work) fn fill(&self, measured: &mut Measured) {
        measured.value = measured.seconds;
        measured.bytes = self.kept.bytes;
        measured.operations = self.kept.files + self.kept.links + self.kept.directories;
        measured.verified = true;
    }
}
