//! Any name as a word of a shell.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transfer::fuzz::quoting(data));
