//! The reference model against a local directory: verifies the model, its comparison, and that a
//! difference is found, shrunk and printed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Errno, OpenFlags, RenameMode, Result};
use testkit::model::{DirSubject, Entry, Features, Runs, Stat, Subject, check, run};

#[test]
fn the_reference_behaves_as_a_local_file_system() {
    let dir = tempfile::tempdir().unwrap();
    // About 50,000 operations.
    run(Runs { lists: 1_000, most_ops: 100 }, || DirSubject::below(dir.path(), true));
}

/// A directory with a bug.
struct Buggy {
    inner: DirSubject,
    bug: Bug,
}

/// Bugs that similar file systems have had.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// The extended part of a file is not zero.
    StaleTail,
    /// A rename that must not replace does replace.
    Replaces,
    /// The last byte of a write of more than a page is lost without an error.
    LostByte,
    /// A read of more than 64 KiB is short.
    ShortRead,
    /// `ENOTEMPTY` becomes SFTP's only error for it.
    VagueErrno,
    /// A new directory does not have the requested permission bits.
    WrongPerm,
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($arg: $kind),*) -> $result {
            self.inner.$name($($arg),*)
        })*
    };
}

impl Subject for Buggy {
    forward! {
        fn open(fd: usize, path: &str, flags: OpenFlags) -> Result<()>;
        fn close(fd: usize) -> Result<()>;
        fn fstat(fd: usize) -> Result<Stat>;
        fn fsync(fd: usize) -> Result<()>;
        fn fchmod(fd: usize, perm: u32) -> Result<()>;
        fn futimens(fd: usize, secs: i64) -> Result<()>;
        fn copy_range(from: usize, from_offset: u64, to: usize, to_offset: u64, len: usize)
            -> Result<usize>;
        fn truncate(path: &str, size: u64) -> Result<()>;
        fn unlink(path: &str) -> Result<()>;
        fn symlink(target: &str, path: &str) -> Result<()>;
        fn readlink(path: &str) -> Result<Vec<u8>>;
        fn link(existing: &str, new: &str) -> Result<()>;
        fn chmod(path: &str, perm: u32) -> Result<()>;
        fn utimens(path: &str, secs: i64, follow: bool) -> Result<()>;
        fn stat(path: &str, follow: bool) -> Result<Stat>;
        fn readdir(path: &str) -> Result<Vec<Entry>>;
    }

    fn features(&self) -> Features {
        self.inner.features()
    }

    fn pread(&mut self, fd: usize, offset: u64, len: usize) -> Result<Vec<u8>> {
        let most = if self.bug == Bug::ShortRead { 64 << 10 } else { usize::MAX };
        self.inner.pread(fd, offset, len.min(most))
    }

    fn pwrite(&mut self, fd: usize, offset: u64, data: &[u8]) -> Result<usize> {
        let lost = usize::from(self.bug == Bug::LostByte && data.len() > 4096);
        self.inner.pwrite(fd, offset, &data[..data.len() - lost]).map(|count| count + lost)
    }

    fn ftruncate(&mut self, fd: usize, size: u64) -> Result<()> {
        let old = self.inner.fstat(fd)?.size;
        self.inner.ftruncate(fd, size)?;
        if self.bug == Bug::StaleTail && size > old {
            self.inner.pwrite(fd, size - 1, b"x")?;
        }
        Ok(())
    }

    fn mkdir(&mut self, path: &str, perm: u32) -> Result<()> {
        let perm = if self.bug == Bug::WrongPerm { perm & 0o700 } else { perm };
        self.inner.mkdir(path, perm)
    }

    fn rmdir(&mut self, path: &str) -> Result<()> {
        let vague = |errno| match errno {
            Errno::ENOTEMPTY if self.bug == Bug::VagueErrno => Errno::EPERM,
            other => other,
        };
        self.inner.rmdir(path).map_err(vague)
    }

    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Result<()> {
        let mode = if self.bug == Bug::Replaces { RenameMode::Replace } else { mode };
        self.inner.rename(from, to, mode)
    }
}

#[test]
fn every_planted_bug_is_found_and_shrunk_to_a_few_operations() {
    let dir = tempfile::tempdir().unwrap();
    /// More than any of these bugs needs, and few enough to read at a glance.
    const FEW: usize = 6;
    let bugs = [
        Bug::StaleTail,
        Bug::Replaces,
        Bug::LostByte,
        Bug::ShortRead,
        Bug::VagueErrno,
        Bug::WrongPerm,
    ];
    for bug in bugs {
        let make = || Buggy { inner: DirSubject::below(dir.path(), true), bug };
        let runs = Runs { lists: 1_000, most_ops: 100 };
        let failure = catch_unwind(AssertUnwindSafe(|| run(runs, make)));
        let message = *failure.expect_err("the bug was not found").downcast::<String>().unwrap();
        assert!(message.contains("#[test]\nfn regression_NAME()"), "{bug:?}: {message}");
        let listed = message.lines().filter(|line| line.starts_with("        ")).count();
        assert!((1..=FEW).contains(&listed), "{bug:?}: {message}");
    }
}

/// A list as it is printed, to prove that the output compiles.
#[test]
fn a_printed_list_is_a_test() {
    use base::{Access::*, Create::*, RenameMode::*};
    use testkit::model::Op::*;
    let flags =
        OpenFlags { access: ReadWrite, create: Exclusive(420), truncate: false, append: true };
    let ops = [
        Open { fd: 0, path: "a", flags },
        Pwrite { fd: 0, offset: 9, len: 5000, fill: 7 },
        Rename { from: "a", to: "\u{fc} \n", mode: NoReplace },
        Open {
            fd: 1,
            path: "b",
            flags: OpenFlags { create: IfAbsent(384), append: false, ..flags },
        },
        CopyRange { from: 0, from_offset: 1, to: 1, to_offset: 4096, len: 131072 },
        Unlink { path: "b" },
        Pread { fd: 1, offset: 0, len: 131072 },
        Readdir { path: "" },
    ];
    assert_eq!(format!("{:?}", ops[1]), "Pwrite { fd: 0, offset: 9, len: 5000, fill: 7 }");
    let dir = tempfile::tempdir().unwrap();
    let mut subject = DirSubject::below(dir.path(), true);
    check(&ops, &mut subject).unwrap_or_else(|why| panic!("{why}"));
}
