//! The kernel's switch for io_uring: `enable_uring` of its module `fuse`.

use std::fs::{self, File};
use std::sync::{Mutex, PoisonError};

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Tests of this process that need it, whether it was on before, and the lock that keeps other
/// processes from turning it off meanwhile.
static USERS: Mutex<(usize, bool, Option<File>)> = Mutex::new((0, false, None));

/// Leaves the switch as it was when the last one is dropped.
pub(crate) struct Enabled(());

/// Turns the switch on. `None`, and a message with the name of the test, if that is not possible:
/// the kernel is older than Linux 6.14, or lets this user not.
pub(crate) fn io_uring(test: &str) -> Option<Enabled> {
    let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
    let disabled = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    if disabled.is_ok_and(|disabled| disabled.trim() != "0") {
        eprintln!("{test}: skipped: kernel.io_uring_disabled is set");
        return None;
    }
    if users.0 == 0 {
        users.2 = File::open(SWITCH).ok().filter(|file| file.lock().is_ok());
    }
    let Ok(before) = fs::read_to_string(SWITCH) else {
        eprintln!("{test}: skipped: this kernel has no FUSE over io_uring");
        return None;
    };
    if users.0 == 0 {
        users.1 = before.trim() == "Y";
    }
    if before.trim() != "Y"
        && let Err(error) = fs::write(SWITCH, "Y")
    {
        eprintln!("{test}: skipped: {SWITCH} is off: {error}");
        return None;
    }
    users.0 += 1;
    Some(Enabled(()))
}

impl Drop for Enabled {
    fn drop(&mut self) {
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.0 -= 1;
        if users.0 == 0 {
            if !users.1 {
                let _ = fs::write(SWITCH, "N");
            }
            users.2 = None;
        }
    }
}
