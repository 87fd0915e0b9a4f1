//! Any bytes as a configuration file.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sshoal::fuzz(data));
