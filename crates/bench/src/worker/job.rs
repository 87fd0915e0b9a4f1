//! Jobs and results of a worker. Both ends are the same program, so the format is private.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use serde::{Deserialize, Serialize};

use crate::corpus::content::BLOCK_BYTES;
use crate::failure::{Failure, Result};
use crate::results::{Latency, Usage};

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "kebab-case")]
pub enum Job {
    /// Reads a file.
    Read {
        /// Which, and how.
        transfer: Transfer,
        /// What has to be in it.
        check: Check,
    },
    /// Writes a file, and makes it durable before closing it, within the timed part.
    Write {
        /// Which, and how.
        transfer: Transfer,
        /// Of the [`Content`](crate::corpus::content::Content) that is written.
        seed: u64,
        /// There is no such file yet: its being there is a failure. Otherwise there is one of the
        /// same length, whose blocks stay while they have not been written.
        create: bool,
    },
    /// Does single operations with names of one directory.
    Names(NameJob),
}

/// What a job is done to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// A file or directory of a mounted or local file system.
    Path(PathBuf),
    /// The same over SFTP.
    Sftp {
        /// What speaks SFTP on its standard input and output.
        ssh: Vec<String>,
        /// The server's name of it.
        path: PathBuf,
    },
    /// A file of an NFS server on this machine.
    Nfs {
        /// Of 127.0.0.1.
        port: u16,
        /// From the server's root.
        path: PathBuf,
    },
}

/// The words of a command, without its streams and variables.
///
/// # Errors
/// When one of them is not UTF-8.
pub fn words_of(command: &Command) -> Result<Vec<String>> {
    let text = |word: &OsStr| {
        let why = || Failure::failed(format!("{word:?} in a command is not UTF-8"));
        word.to_str().map(str::to_owned).ok_or_else(why)
    };
    std::iter::once(command.get_program()).chain(command.get_args()).map(text).collect()
}

/// How a file is read or written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// The file.
    pub target: Target,
    /// Its length, and no byte beyond it is touched.
    pub file_bytes: u64,
    /// Of one call or request; for SFTP in sequence 0 for the greatest that the server allows.
    pub record_bytes: u32,
    /// In which order.
    pub order: Order,
    /// For how long.
    pub until: Until,
    /// Requests in flight, over SFTP and NFS only; a path has one caller that waits for each.
    pub depth: u32,
    /// With `O_DIRECT`, if the file system has it.
    pub direct: bool,
}

impl Transfer {
    /// All of a file, from its start to its end.
    pub fn pass(target: Target, file_bytes: u64, record_bytes: u32) -> Transfer {
        let (order, until) = (Order::Sequential, Until::Pass);
        Transfer { target, file_bytes, record_bytes, order, until, depth: 1, direct: false }
    }

    /// Blocks of 4 KiB in a random order.
    pub fn at_random(target: Target, file_bytes: u64, seed: u64, until: Until) -> Transfer {
        let order = Order::Random { seed };
        Transfer { order, until, ..Transfer::pass(target, file_bytes, BLOCK_BYTES as u32) }
    }
}

/// In which order the records of a file are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// From the first to the last.
    Sequential,
    /// Each once, in an order that belongs to the seed; the next pass in another one.
    Random {
        /// Of the order.
        seed: u64,
    },
}

/// When a job is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Until {
    /// All records were visited once.
    Pass,
    /// This number of seconds has passed, in any number of passes.
    Seconds(f64),
    /// This number of records was visited, or all.
    Operations(u64),
    /// A number of records was visited, or all, or a time has passed.
    Within {
        /// Records.
        operations: u64,
        /// Time.
        seconds: f64,
    },
}

/// What has to be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// The [`Content`](crate::corpus::content::Content) of that seed.
    Content {
        /// Of the content.
        seed: u64,
    },
    /// Anything; what it is is remembered for a [`Check::Changed`]. Read in one pass.
    Remember {
        /// A file on a local disk for a number of each block.
        marks: PathBuf,
    },
    /// What was remembered, but for some blocks of 4 KiB. Read in one pass.
    Changed {
        /// Of a [`Check::Remember`].
        marks: PathBuf,
        /// How many blocks have to have changed; one less is a write that got lost.
        blocks: u64,
        /// Of the content that they have to have now, where that is known.
        seed: Option<u64>,
    },
}

/// Single operations, one after the other, each timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NameJob {
    /// Where they are.
    pub directory: PathBuf,
    /// What is done.
    pub operation: Operation,
    /// Names are this with a number behind it (see [`NameJob::name`]).
    pub prefix: String,
    /// How many names, from number 0.
    pub names: u32,
    /// How many operations at most; beyond `names` they begin anew.
    pub operations: u32,
    /// No operation begins after this number of seconds.
    pub seconds: Option<f64>,
    /// In which order the names come.
    pub order: Order,
    /// The directory is made first, without being timed.
    pub make_directory: bool,
    /// Each name is looked at once before, without being timed.
    pub warm: bool,
}

impl NameJob {
    /// The name of a number.
    pub fn name(prefix: &str, number: u32) -> String {
        format!("{prefix}{number:06}")
    }
}

/// What is done with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// `stat`, which has to find this.
    Stat(Entry),
    /// `stat`, which has to find nothing.
    StatAbsent,
    /// `open` for reading and `close`.
    OpenClose,
    /// Creates an empty file exclusively, and closes it.
    Create,
    /// `unlink`
    Unlink,
    /// `mkdir`
    Mkdir,
    /// `rmdir`
    Rmdir,
    /// `rename` to the name of the same number with this prefix.
    Rename {
        /// Of the new name.
        prefix: String,
    },
    /// Appends a byte to the file of that name in the storage's own directory `at`, and looks at the
    /// name until it shows that.
    SeeChange {
        /// The same directory past the subject.
        at: PathBuf,
    },
    /// Lists the directory of that name, which must contain exactly `names` names with this prefix.
    List {
        /// Of the names in it.
        prefix: String,
        /// How many.
        names: u32,
    },
}

/// What a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Entry {
    /// A file with nothing in it.
    EmptyFile,
    /// A directory.
    Directory,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The timed part.
    pub seconds: f64,
    /// User data moved in it.
    pub bytes: u64,
    /// Records, or single operations.
    pub operations: u64,
    /// Of single operations; none for transfers in sequence.
    pub latency: Option<Latency>,
    /// All that was read was compared.
    pub verified: bool,
    /// What the worker, and what it has started, had used when the timed part began: connecting,
    /// and making names known.
    pub before: Usage,
}
