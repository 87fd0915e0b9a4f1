//! Any bytes as a configuration file, and as the answer of a `digest_command`.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| sshoal::fuzz(data));
