//! Any requests to a server that is confined to a directory: no panic, no reply that is not SFTP,
//! no change outside the directory, and with `read_only` no change at all.
#![no_main]

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread;

use bytes::{BufMut, Bytes, BytesMut};
use helper::Options;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use sftp::codec::{
    DigestAlgorithm, FallocateMode, FileAttrs, MAX_PACKET_BYTES, OpenFlags, RenameFlags, Reply,
    Request, Times, Version, Whence, XattrFlags, encode_init, pack, unpack,
};

const PATHS: [&str; 18] = [
    "/",
    "",
    ".",
    "..",
    "file",
    "/dir",
    "dir/file",
    "dir/../file",
    "../outside/file",
    "out",
    "out/file",
    "absolute",
    "absolute/outside/file",
    "/dir/up/outside/file",
    "new",
    "dir/new",
    "dir/new/below",
    "out/new",
];

/// The largest file: a digest or a copy of it must end.
const MAX_FILE: u64 = 1 << 20;

/// The directory of this process. It contains the server's `root`, and `outside`.
static PLACE: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let limit = libc::rlimit { rlim_cur: MAX_FILE, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: it reads `limit`, and the other one changes how this process handles a signal.
    unsafe {
        libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
    tempfile::tempdir().expect("a directory")
});

fn make(place: &Path) {
    let (root, outside) = (place.join("root"), place.join("outside"));
    if root.exists() {
        let _ = fs::set_permissions(&root, Permissions::from_mode(0o700));
        fs::remove_dir_all(&root).expect("the tree of the last input");
    }
    fs::create_dir_all(root.join("dir")).expect("a directory");
    fs::create_dir_all(&outside).expect("a directory");
    for file in [root.join("file"), root.join("dir/file"), outside.join("file")] {
        fs::write(file, "content").expect("a file");
    }
    symlink("../outside", root.join("out")).expect("a link");
    symlink(place, root.join("absolute")).expect("a link");
    symlink("../..", root.join("dir/up")).expect("a link");
}

/// All below `dir`, with attributes and content; without times of access.
fn state(dir: &Path) -> BTreeMap<PathBuf, (u32, u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            let of = fs::symlink_metadata(&path).expect("attributes");
            let content = match of.file_type() {
                kind if kind.is_file() => fs::read(&path).expect("content"),
                kind if kind.is_symlink() => {
                    fs::read_link(&path).expect("a target").as_os_str().as_bytes().to_vec()
                }
                kind => {
                    dirs.extend(kind.is_dir().then(|| path.clone()));
                    Vec::new()
                }
            };
            let state = (of.mode(), of.nlink(), of.mtime_nsec(), of.ctime_nsec(), content);
            found.insert(path, state);
        }
    }
    found
}

fn attrs(input: &mut Unstructured<'_>) -> Result<FileAttrs> {
    let times = |input: &mut Unstructured<'_>| {
        Ok(Times { atime: input.arbitrary()?, mtime: input.arbitrary()? })
    };
    Ok(FileAttrs {
        size: input.arbitrary()?,
        permissions: input.arbitrary()?,
        times: if input.arbitrary()? { Some(times(input)?) } else { None },
        ..FileAttrs::default()
    })
}

/// Appends one packet.
fn request(input: &mut Unstructured<'_>, out: &mut BytesMut) -> Result<()> {
    let path = *input.choose(&PATHS)?;
    let other = *input.choose(&PATHS)?;
    let (path, other) = (path.as_bytes(), other.as_bytes());
    let place = [[0, 0, 0, input.int_in_range(0..=3)?], [0, 0, 0, input.int_in_range(1..=3)?]];
    let handle = place.as_flattened();
    let (offset, len): (u64, u32) = match input.arbitrary()? {
        true => (input.int_in_range(0..=16)?, input.int_in_range(0..=16)?),
        false => (input.arbitrary()?, input.arbitrary()?),
    };
    let name = *input.choose(&[&b"user.a"[..], b"system.posix_acl_access", b"trusted.a", b""])?;
    let data = [b'x'; 600];
    let data = &data[..input.int_in_range(0..=600)?];
    let flags: u32 = input.int_in_range(0..=0x3f)?;
    let xattr = XattrFlags(flags);
    let id = input.int_in_range(0..=3)?;
    let request = match input.int_in_range(0..=39)? {
        0..=3 => Request::Open { path, flags: OpenFlags(flags), attrs: attrs(input)? },
        4 => Request::Close { handle },
        5 => Request::Read { handle, offset, len },
        6 => Request::Write { handle, offset, data },
        7 => Request::Lstat { path },
        8 => Request::Fstat { handle },
        9 => Request::Setstat { path, attrs: attrs(input)? },
        10 => Request::Fsetstat { handle, attrs: attrs(input)? },
        11 => Request::Opendir { path },
        12 => Request::Readdir { handle },
        13 => Request::Remove { path },
        14 => Request::Mkdir { path, attrs: attrs(input)? },
        15 => Request::Rmdir { path },
        16 => Request::Realpath { path },
        17 => Request::Stat { path },
        18 => Request::Rename { from: path, to: other },
        19 => Request::Readlink { path },
        20 => Request::Symlink { target: path, link: other },
        21 => Request::PosixRename { from: path, to: other },
        22 => Request::Statvfs { path },
        23 => Request::Hardlink { existing: path, new: other },
        24 => Request::Fsync { handle },
        25 => Request::Lsetstat { path, attrs: attrs(input)? },
        26 => Request::CopyData {
            from: handle,
            from_offset: offset,
            len: len.into(),
            to: &[0, 0, 0, 0, 0, 0, 0, 1],
            to_offset: offset,
        },
        27 => Request::Attrs { fields: input.arbitrary()? },
        28 => Request::Getxattr { path, name, flags: xattr },
        29 => Request::Setxattr { path, name, value: data, flags: xattr },
        30 => Request::Listxattr { path, flags: xattr },
        31 => Request::Dirxattrs { path },
        32 => Request::Mknod { path, mode: input.arbitrary()?, major: 1, minor: 3 },
        33 => Request::Renameat2 { from: path, to: other, flags: RenameFlags(flags & 7) },
        34 => Request::Fallocate { handle, mode: FallocateMode(flags), offset, len: len.into() },
        35 => Request::Lseek { handle, offset, whence: Whence(flags % 6) },
        36 => Request::Digest { path, algorithm: DigestAlgorithm::BLAKE3 },
        37 => Request::Readdir { handle: &[0, 0, 0, id as u8] },
        38 => Request::Deflate { replies: input.arbitrary()? },
        _ => {
            // Other extensions, and packets that are none.
            let len = input.int_in_range(0..=40)?;
            let packet = input.bytes(usize::min(len, input.len()))?;
            out.put_u32(packet.len() as u32);
            out.put_slice(packet);
            return Ok(());
        }
    };
    let mut packet = BytesMut::new();
    request.encode(id, &mut packet);
    // Refused unless the client has asked for it.
    let packed = pack(&packet, &[]).filter(|_| flags & 1 == 1);
    out.put_slice(&packed.unwrap_or(packet));
    Ok(())
}

/// The packets of `stream`, up to its end.
fn replies(mut stream: &UnixStream) -> Vec<Bytes> {
    let mut all = Vec::new();
    let mut len = [0; 4];
    while stream.read_exact(&mut len).is_ok() {
        let mut packet = vec![0; u32::from_be_bytes(len) as usize];
        stream.read_exact(&mut packet).expect("a whole packet");
        all.push(packet.into());
    }
    all
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    let read_only = input.arbitrary().unwrap_or(false);
    let mut packets = BytesMut::new();
    encode_init(3, &mut packets);
    while !input.is_empty() && request(&mut input, &mut packets).is_ok() {}

    let place = PLACE.path();
    make(place);
    let outside = state(&place.join("outside"));
    let root = place.join("root");
    let before = read_only.then(|| state(&root));

    let (ours, theirs) = UnixStream::pair().expect("a stream");
    let options = Options { read_only, root: Some(root.clone()), ..Options::default() };
    let replies = thread::scope(|scope| {
        scope.spawn(move || {
            let output = File::from(OwnedFd::from(theirs.try_clone().expect("a descriptor")));
            let _ = helper::serve(File::from(OwnedFd::from(theirs)), output, &options);
        });
        scope.spawn(|| {
            // The server ends the connection at what is not SFTP.
            let _ = (&ours).write_all(&packets);
            let _ = ours.shutdown(Shutdown::Write);
        });
        replies(&ours)
    });
    let mut replies = replies.iter();
    Version::decode(replies.next().expect("the first reply")).expect("the version");
    let is_reply = |packet: &Bytes| {
        let unpacked = unpack(packet, MAX_PACKET_BYTES).expect("compressed content");
        Reply::decode(unpacked.as_ref().unwrap_or(packet)).is_ok()
    };
    assert!(replies.all(is_reply), "a reply that is not SFTP");
    assert_eq!(state(&place.join("outside")), outside, "a change outside the root");
    if let Some(before) = before {
        assert_eq!(state(&root), before, "a change in spite of `read_only`");
    }
});
