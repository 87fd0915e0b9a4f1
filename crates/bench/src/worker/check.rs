//! Compares what was read with what it has to be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::job::{Check, Transfer};
use crate::corpus::content::{BLOCK_BYTES, Content, mark};
use crate::failure::{Failure, Result};
use crate::quoting::shown;

const MARK_BYTES: usize = 8;

/// A [`Check`] under way.
pub(super) enum Checker {
    Content(Content),
    Remember { marks: Vec<u64>, file: PathBuf },
    Changed { before: Vec<u64>, content: Option<Content>, found: u64, expected: u64 },
}

impl Checker {
    pub(super) fn new(check: &Check, transfer: &Transfer) -> Result<Checker> {
        let blocks = transfer.file_bytes.div_ceil(BLOCK_BYTES as u64) as usize;
        Ok(match check {
            Check::Content { seed } => Checker::Content(Content::new(*seed)),
            Check::Remember { marks } => {
                Checker::Remember { marks: vec![0; blocks], file: marks.clone() }
            }
            Check::Changed { marks, blocks: expected, seed } => Checker::Changed {
                before: read_marks(marks, blocks)?,
                content: seed.map(Content::new),
                found: 0,
                expected: *expected,
            },
        })
    }

    /// Compares what is at an offset of the file, a whole number of blocks from its start.
    pub(super) fn check(&mut self, offset_bytes: u64, bytes: &[u8]) -> Result<()> {
        let first = offset_bytes / BLOCK_BYTES as u64;
        let blocks = || (first as usize..).zip(bytes.chunks(BLOCK_BYTES));
        match self {
            Checker::Content(content) => same(content, first, bytes),
            Checker::Remember { marks, .. } => blocks().try_for_each(|(block, bytes)| {
                *marks.get_mut(block).ok_or_else(beyond)? = mark(bytes);
                Ok(())
            }),
            Checker::Changed { before, content, found, .. } => {
                blocks().try_for_each(|(block, bytes)| {
                    if *before.get(block).ok_or_else(beyond)? == mark(bytes) {
                        return Ok(());
                    }
                    *found += 1;
                    let content = content.as_ref();
                    content.map_or(Ok(()), |content| same(content, block as u64, bytes))
                })
            }
        }
    }

    /// What can be said only at the end.
    pub(super) fn finish(&self) -> Result<()> {
        match self {
            Checker::Content(_) => Ok(()),
            Checker::Remember { marks, file } => {
                let bytes: Vec<u8> = marks.iter().flat_map(|mark| mark.to_le_bytes()).collect();
                fs::write(file, bytes).map_err(|error| marks_failed(file, &error))
            }
            Checker::Changed { found, expected, .. } if found == expected => Ok(()),
            Checker::Changed { found, expected, .. } => Err(Failure::wrong(format!(
                "{expected} blocks of 4 KiB were written, and {found} have changed"
            ))),
        }
    }
}

fn same(content: &Content, first: u64, bytes: &[u8]) -> Result<()> {
    content.check(first, bytes).map_err(|mismatch| Failure::wrong(mismatch.to_string()))
}

fn beyond() -> Failure {
    Failure::wrong("the file is longer than it was")
}

fn read_marks(path: &Path, blocks: usize) -> Result<Vec<u64>> {
    let bytes = fs::read(path).map_err(|error| marks_failed(path, &error))?;
    let marks: Vec<u64> = bytes
        .chunks_exact(MARK_BYTES)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap_or_default()))
        .collect();
    if marks.len() == blocks {
        return Ok(marks);
    }
    Err(Failure::failed(format!("{} marks of {blocks} blocks", marks.len())))
}

fn marks_failed(path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("{}: {error}", shown(path)))
}

/// The failure of a file that ends early.
pub(super) fn too_short(offset_bytes: u64, transfer: &Transfer) -> Failure {
    let length = transfer.file_bytes;
    Failure::wrong(format!("the file ends at {offset_bytes}, and not at {length}"))
}
