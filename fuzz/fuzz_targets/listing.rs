//! Any bytes as the answer of the server's `find`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transfer::fuzz::listing(data));
