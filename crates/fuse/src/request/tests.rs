use super::*;
use crate::abi::IN_HEADER_SIZE;
use proptest::prelude::*;

/// A request with this body.
fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (IN_HEADER_SIZE + body.len()) as u32,
        opcode,
        unique: 42,
        nodeid: 7,
        uid: 1000,
        gid: 100,
        pid: 77,
        total_extlen: 0,
        padding: 0,
    };
    let mut bytes = Vec::new();
    header.put(&mut bytes);
    bytes.extend_from_slice(body);
    bytes
}

fn body(fixed: impl Wire, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    fixed.put(&mut bytes);
    bytes.extend_from_slice(rest);
    bytes
}

/// Parses a request with this opcode and compares its operation.
fn parsed(opcode: u32, body: &[u8], expected: Operation<'_>) {
    let bytes = request(opcode, body);
    let request = Request::parse(&bytes).unwrap();
    assert_eq!((request.header.unique, request.header.nodeid), (42, 7));
    assert_eq!(request.operation, expected);
}

fn malformed(opcode: u32, body: &[u8]) {
    let bytes = request(opcode, body);
    match Request::parse(&bytes) {
        Err(Malformed::Body { header }) => assert_eq!(header.unique, 42),
        other => panic!("{:?}: {other:?}", opcode::name(opcode)),
    }
}

#[test]
fn names_come_in_order() {
    parsed(opcode::LOOKUP, b"a\xff\0", Operation::Lookup { name: b"a\xff" });
    parsed(opcode::SYMLINK, b"name\0/t/x\0", Operation::Symlink { name: b"name", target: b"/t/x" });
    parsed(opcode::SYMLINK, b"name\0\0", Operation::Symlink { name: b"name", target: b"" });
    parsed(
        opcode::RENAME,
        &body(abi::RenameIn { newdir: 9 }, b"old\0new\0"),
        Operation::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 0 },
    );
    parsed(
        opcode::RENAME2,
        &body(abi::Rename2In { newdir: 9, flags: 1, padding: 0 }, b"old\0new\0"),
        Operation::Rename { name: b"old", new_parent: 9, new_name: b"new", flags: 1 },
    );
    parsed(
        opcode::LINK,
        &body(abi::LinkIn { oldnodeid: 5 }, b"new\0"),
        Operation::Link { ino: 5, new_name: b"new" },
    );
    parsed(
        opcode::MKNOD,
        &body(abi::MknodIn { mode: 0o100_644, rdev: 3, umask: 0o22, padding: 0 }, b"n\0"),
        Operation::Mknod { name: b"n", mode: 0o100_644, umask: 0o22, rdev: 3 },
    );
}

#[test]
fn invalid_names_are_malformed() {
    for name in [&b""[..], b"\0", b"no end", b"a/b\0"] {
        malformed(opcode::LOOKUP, name);
        malformed(opcode::UNLINK, name);
        malformed(opcode::MKDIR, &body(abi::MkdirIn::default(), name));
        malformed(opcode::RENAME, &body(abi::RenameIn::default(), &[b"a\0", name].concat()));
    }
}

#[test]
fn data_has_the_length_in_the_header() {
    let wire = abi::WriteIn {
        fh: 1,
        offset: 2,
        size: 3,
        write_flags: flags::WRITE_CACHE,
        lock_owner: 4,
        flags: 5,
        padding: 0,
    };
    let write = Write { fh: 1, offset: 2, flags: 5, cached: true, kill_suidgid: false };
    parsed(opcode::WRITE, &body(wire, b"abc"), Operation::Write(write, b"abc"));
    malformed(opcode::WRITE, &body(wire, b"ab"));
    let bytes = request(opcode::WRITE, &body(wire, b"abc"));
    assert_eq!(&bytes[WRITE_DATA_OFFSET..], b"abc");

    let wire = abi::SetxattrIn { size: 2, flags: 1 };
    let expected = Operation::Setxattr { name: b"user.a/b", value: b"xy", flags: 1 };
    parsed(opcode::SETXATTR, &body(wire, b"user.a/b\0xy"), expected);
    malformed(opcode::SETXATTR, &body(wire, b"user.a\0x"));
}

#[test]
fn forgets_come_one_by_one() {
    let mut two = Vec::new();
    abi::BatchForgetIn { count: 2, dummy: 0 }.put(&mut two);
    abi::ForgetOne { nodeid: 3, nlookup: 4 }.put(&mut two);
    abi::ForgetOne { nodeid: 5, nlookup: 6 }.put(&mut two);
    let bytes = request(opcode::BATCH_FORGET, &two);
    let Ok(Request { operation: Operation::BatchForget { items }, .. }) = Request::parse(&bytes)
    else {
        panic!("not parsed")
    };
    assert_eq!(items.collect::<Vec<_>>(), [(3, 4), (5, 6)]);
    malformed(opcode::BATCH_FORGET, &two[..two.len() - 1]);
    malformed(opcode::BATCH_FORGET, &body(abi::BatchForgetIn { count: u32::MAX, dummy: 0 }, b""));
}

#[test]
fn attributes_to_set_are_those_with_a_valid_bit() {
    let all = abi::SetattrIn {
        valid: setattr::MODE | setattr::ATIME | setattr::ATIME_NOW | setattr::MTIME | setattr::FH,
        fh: 1,
        size: 2,
        mtime: -1,
        mtimensec: 999_999_999,
        mode: 0o640,
        uid: 3,
        ..abi::SetattrIn::default()
    };
    let change = SetAttr {
        mode: Some(0o640),
        atime: Some(SetTime::Now),
        mtime: Some(SetTime::At(Timestamp { secs: -1, nanos: 999_999_999 })),
        fh: Some(1),
        ..SetAttr::default()
    };
    parsed(opcode::SETATTR, &body(all, b""), Operation::Setattr { change });
    let wrong = abi::SetattrIn { mtimensec: 1_000_000_000, ..all };
    malformed(opcode::SETATTR, &body(wrong, b""));
}

#[test]
fn locks_have_one_of_three_kinds() {
    let mut wire = abi::LkIn {
        fh: 1,
        owner: 2,
        lk: abi::FileLock { start: 3, end: 4, type_: libc::F_WRLCK as u32, pid: 5 },
        lk_flags: flags::LK_FLOCK,
        padding: 0,
    };
    let owner = LockOwner { family: LockFamily::Flock, number: 2 };
    let (range, kind) = (Some(LockRange::WHOLE), Some(LockKind::Write));
    let expected = LockRequest { fh: 1, owner, range, kind, wait: true };
    parsed(opcode::SETLKW, &body(wire, b""), Operation::Setlk(expected));
    let expected = LockRequest { wait: false, ..expected };
    parsed(opcode::SETLK, &body(wire, b""), Operation::Setlk(expected));
    parsed(opcode::GETLK, &body(wire, b""), Operation::Getlk(expected));
    let owner = LockOwner { family: LockFamily::Posix, number: 2 };
    for (end, range) in [(4, LockRange::new(3, 4)), (2, None)] {
        wire = abi::LkIn { lk: abi::FileLock { end, ..wire.lk }, lk_flags: 0, ..wire };
        let expected = LockRequest { owner, range, ..expected };
        parsed(opcode::SETLK, &body(wire, b""), Operation::Setlk(expected));
    }
    wire.lk.type_ = 17;
    malformed(opcode::SETLK, &body(wire, b""));
}

#[test]
fn init_has_its_upper_flags_only_with_the_extension() {
    let wire = abi::InitIn { major: 7, minor: 45, max_readahead: 1, flags: 2 };
    let init = Init { major: 7, minor: 45, max_readahead: 1, flags: 2 };
    parsed(opcode::INIT, &body(wire, &5u32.to_ne_bytes()), Operation::Init(init));
    let wire = abi::InitIn { flags: flags::init::INIT_EXT as u32, ..wire };
    let flags = flags::init::INIT_EXT | 5 << 32;
    let expected = Operation::Init(Init { flags, ..init });
    parsed(opcode::INIT, &body(wire, &5u32.to_ne_bytes()), expected);
    malformed(opcode::INIT, &body(wire, b""));
}

#[test]
fn extensions_are_skipped() {
    let mut bytes = request(opcode::LOOKUP, b"a\0\0\0\0\0\0\0extended");
    bytes[36] = 1;
    assert_eq!(Request::parse(&bytes).unwrap().operation, Operation::Lookup { name: b"a" });
    bytes[36] = 3;
    assert!(matches!(Request::parse(&bytes), Err(Malformed::Body { .. })));
}

#[test]
fn a_wrong_length_is_an_error_of_the_header() {
    let bytes = request(opcode::STATFS, b"");
    assert!(Request::parse(&bytes).is_ok());
    assert_eq!(Request::parse(&bytes[..39]), Err(Malformed::Header { got: 39, said: 0 }));
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(Request::parse(&longer), Err(Malformed::Header { got: 41, said: 40 }));
}

#[test]
fn unknown_opcodes_are_reported() {
    parsed(9999, b"anything", Operation::Unknown { opcode: 9999 });
    // FUSE_SETUPMAPPING, which is DAX's.
    parsed(48, b"", Operation::Unknown { opcode: 48 });
}

/// Every opcode of the header with a valid body: an unsupported one is `Unknown`.
#[test]
fn every_opcode_with_a_method_is_served() {
    let unsupported = [opcode::BMAP, opcode::IOCTL, opcode::POLL, opcode::SYNCFS, opcode::TMPFILE];
    // Zeros are a valid body for all fixed parts; names follow.
    let zeros_and_names = [&[0; 128][..], b"a\0b\0"].concat();
    for &number in opcode::ALL {
        let mut served = false;
        for start in 0..=zeros_and_names.len() {
            let bytes = request(number, &zeros_and_names[start..]);
            if let Ok(request) = Request::parse(&bytes) {
                served |= !matches!(request.operation, Operation::Unknown { .. });
            }
        }
        assert_eq!(served, !unsupported.contains(&number), "{:?}", opcode::name(number));
    }
}

proptest! {
    #[test]
    fn no_request_body_makes_the_parser_panic(
        opcode in prop_oneof![prop::sample::select(opcode::ALL), any::<u32>()],
        body in prop::collection::vec(any::<u8>(), 0..200),
        extensions in 0u16..5,
    ) {
        let mut bytes = request(opcode, &body);
        bytes[36..38].copy_from_slice(&extensions.to_ne_bytes());
        if let Ok(Request { operation: Operation::BatchForget { items }, .. })
            = Request::parse(&bytes)
        {
            prop_assert!(items.count() <= body.len() / 16);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Request::parse(&bytes);
    }

    #[test]
    fn writes_survive_the_wire(
        fh: u64, offset: u64, lock_owner: u64, flags: i32,
        cached: bool, kill_suidgid: bool,
        data in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let write = Write { fh, offset, flags, cached, kill_suidgid };
        let write_flags = u32::from(cached) | u32::from(kill_suidgid) << 2;
        let wire = abi::WriteIn {
            fh, offset, size: data.len() as u32, write_flags, lock_owner, flags: flags as u32,
            padding: 0,
        };
        parsed(opcode::WRITE, &body(wire, &data), Operation::Write(write, &data));
    }
}
