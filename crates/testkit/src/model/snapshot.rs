//! A whole tree as a value, read through the operations of a [`Subject`].

use std::collections::BTreeMap;

use base::{Access, FileKind, OpenFlags, Result};

use super::op::Answer;
use super::{INSPECTION_FD, Stat, Subject};

/// Longer than any file of a list of operations, in bytes.
const WHOLE_FILE: usize = 1 << 20;

/// The entry at a path: its attributes, and its bytes or its target.
pub(super) type Node = (Stat, Answer);

/// All entries, by path.
pub(super) type Nodes = BTreeMap<String, Node>;

/// Everything in `subject`, by path.
pub(super) fn snapshot(subject: &mut impl Subject) -> Result<Nodes> {
    let mut nodes = BTreeMap::new();
    let mut directories = vec![String::new()];
    while let Some(directory) = directories.pop() {
        for (name, kind) in subject.readdir(&directory)? {
            let name = String::from_utf8_lossy(&name);
            let path =
                if directory.is_empty() { name.into() } else { format!("{directory}/{name}") };
            let stat = subject.stat(&path, false)?;
            let answer = match kind {
                FileKind::Directory => Answer::Done(()),
                FileKind::Symlink => Answer::Bytes(subject.readlink(&path)?),
                _ => Answer::Bytes(whole_file(subject, &path)?),
            };
            if kind == FileKind::Directory {
                directories.push(path.clone());
            }
            nodes.insert(path, (stat, answer));
        }
    }
    Ok(nodes)
}

fn whole_file(subject: &mut impl Subject, path: &str) -> Result<Vec<u8>> {
    subject.open(INSPECTION_FD, path, OpenFlags::existing(Access::Read))?;
    let bytes = subject.pread(INSPECTION_FD, 0, WHOLE_FILE);
    subject.close(INSPECTION_FD)?;
    bytes
}
