//! Tests that need a process of their own, such as one in another namespace.

use std::process::Command;

/// Set in that process.
const INSIDE: &str = "SSHOAL_TEST_INSIDE";

/// Whether this is the process of its own of `test`, which is named with its modules. If not, runs
/// the test there, as the last words of `command`.
///
/// # Panics
///
/// If the test fails there, or is not found.
pub fn is_inside(mut command: Command, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture", test]);
    let output = command.env(INSIDE, "1").output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    // Without a test of this name, the program succeeds, too.
    assert!(output.status.success() && said[0].contains("1 passed"), "{}", said.concat());
    false
}
