//! Any bytes as a request of `/dev/fuse`: parsing must not panic, and what it borrows must lie
//! inside.
#![no_main]

use fuse::Operation;
use fuse::request::{Request, WRITE_DATA_OFFSET};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (bool, Vec<u8>)| {
    let (mend_length, mut bytes) = input;
    // Most inputs would end at the length field otherwise.
    if mend_length && bytes.len() >= 4 {
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
    }
    let Ok(request) = Request::parse(&bytes) else { return };
    match request.operation {
        Operation::Write(_, data) => {
            assert_eq!(&bytes[WRITE_DATA_OFFSET..][..data.len()], data);
        }
        Operation::BatchForget { items } => assert!(items.count() <= bytes.len() / 16),
        Operation::Lookup { name } => {
            assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
        }
        _ => {}
    }
});
