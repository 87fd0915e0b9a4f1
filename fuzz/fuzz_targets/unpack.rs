//! Any bytes as an archive that is unpacked: nothing is made outside of the directory.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| transfer::fuzz::unpack(data));
