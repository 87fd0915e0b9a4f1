//! A wrapper for subjects.

use base::{OpenFlags, RenameMode, Result};

use super::{Entry, Features, Stat, Subject};

/// A [`Subject`] all of whose operations go through [`Wrapper::call`].
pub trait Wrapper {
    /// The type of the inner subject.
    type Inner: Subject;

    /// The inner subject.
    fn inner(&self) -> &Self::Inner;

    /// Executes the operation with this name.
    fn call<T>(
        &mut self,
        name: &'static str,
        act: impl FnOnce(&mut Self::Inner) -> Result<T>,
    ) -> Result<T>;
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&mut self, $($arg: $kind),*) -> Result<$result> {
            self.call(stringify!($name), |inner| inner.$name($($arg),*))
        })*
    };
}

impl<A: Wrapper> Subject for A {
    fn features(&self) -> Features {
        self.inner().features()
    }

    forward! {
        fn open(fd: usize, path: &str, flags: OpenFlags) -> ();
        fn close(fd: usize) -> ();
        fn pread(fd: usize, offset: u64, len: usize) -> Vec<u8>;
        fn pwrite(fd: usize, offset: u64, data: &[u8]) -> usize;
        fn ftruncate(fd: usize, size: u64) -> ();
        fn fstat(fd: usize) -> Stat;
        fn fsync(fd: usize) -> ();
        fn fchmod(fd: usize, perm: u32) -> ();
        fn futimens(fd: usize, secs: i64) -> ();
        fn copy_range(from: usize, from_offset: u64, to: usize, to_offset: u64, len: usize) -> usize;
        fn truncate(path: &str, size: u64) -> ();
        fn mkdir(path: &str, perm: u32) -> ();
        fn rmdir(path: &str) -> ();
        fn unlink(path: &str) -> ();
        fn symlink(target: &str, path: &str) -> ();
        fn readlink(path: &str) -> Vec<u8>;
        fn link(existing: &str, new: &str) -> ();
        fn rename(from: &str, to: &str, mode: RenameMode) -> ();
        fn chmod(path: &str, perm: u32) -> ();
        fn utimens(path: &str, secs: i64, follow: bool) -> ();
        fn stat(path: &str, follow: bool) -> Stat;
        fn readdir(path: &str) -> Vec<Entry>;
    }
}
