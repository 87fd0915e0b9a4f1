//! Any bytes as a stream of gzip, and compressed and back.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transfer::fuzz::gzip(data));
