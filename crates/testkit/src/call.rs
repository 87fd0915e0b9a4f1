//! The operations of a [`Remote`](base::Remote) as values, and counters for them.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! calls {
    ($($name:ident)*) => {
        /// One operation of a [`Remote`](base::Remote), named as its method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Call {
            $(#[doc = concat!("The method of the same name as `", stringify!($name), "`.")]
            $name,)*
        }

        impl Call {
            /// All operations, in the order of the trait.
            pub const ALL: &[Call] = &[$(Call::$name),*];
        }
    };
}

calls! {
    Lstat Readlink Opendir Readdir Closedir Open Fstat Read Write Fsync Fsyncdir Close Finish Flush Setattr
    Fsetattr Mkdir Rmdir Unlink Symlink Link Rename Statvfs Copy
    Lock Unlock TestLock
    Mknod Fallocate Seek Getxattr Listxattr EntriesWithXattrs Setxattr Removexattr ReadFile
}

impl Call {
    /// Whether the call costs a round trip. `Close` and `Closedir` do not: no caller waits for
    /// them.
    pub fn is_round_trip(self) -> bool {
        !matches!(self, Call::Close | Call::Closedir)
    }
}

/// The number of calls of each operation.
#[derive(Debug)]
pub(crate) struct Counters([AtomicU64; Call::ALL.len()]);

impl Default for Counters {
    fn default() -> Counters {
        Counters(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Counters {
    pub(crate) fn count(&self, call: Call) {
        self.0[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of(&self, call: Call) -> u64 {
        self.0[call as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn round_trips(&self) -> u64 {
        let asking = Call::ALL.iter().filter(|call| call.is_round_trip());
        asking.map(|call| self.of(*call)).sum()
    }

    pub(crate) fn reset(&self) {
        for counter in &self.0 {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
