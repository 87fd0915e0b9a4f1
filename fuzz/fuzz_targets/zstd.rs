//! Any bytes as a stream of zstd.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transfer::fuzz::zstd(data));
