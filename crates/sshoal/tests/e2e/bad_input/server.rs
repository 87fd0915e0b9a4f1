//! SFTP servers that misbehave: this test program itself, started anew as what `ssh_command`
//! names.
//!
//! A test program writes to its standard output what it likes, so the SFTP stream is put on the
//! standard error of the server, by the script that starts it.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use bytes::{Bytes, BytesMut};
use sftp::codec::{NameEntry, Owner, RemoteHandle, Reply, Request, Times, Version};
use sftp::{Extensions, FileAttrs, StatusCode};

/// Tells the server how to misbehave; without it there is no server.
const MANNER: &str = "SSHOAL_TEST_MANNER";

/// A script for `ssh_command` that starts a server with this manner.
pub(super) fn command(dir: &Path, manner: &str) -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let body = format!(
        "{MANNER}={manner} exec '{}' --exact bad_input::server::as_a_server --nocapture \
         2>&1 >/dev/null",
        program.display()
    );
    super::script(dir, &body)
}

/// No test of its own.
#[test]
fn as_a_server() {
    if let Ok(manner) = std::env::var(MANNER) {
        serve(&manner);
        // Nothing of the test program's own end is to get into the stream.
        std::process::exit(0);
    }
}

fn send(bytes: &[u8]) {
    if std::io::stderr().write_all(bytes).is_err() {
        std::process::exit(0);
    }
}

fn reply(id: u32, reply: &Reply) {
    let mut out = BytesMut::new();
    reply.encode(id, &mut out);
    send(&out);
}

fn status(code: StatusCode) -> Reply {
    Reply::Status { code, message: "\x1b[2Jno".to_owned(), errno: None }
}

/// The next packet without its length; the end of the stream is the end of the server.
fn receive() -> Vec<u8> {
    let mut length = [0; 4];
    let mut stdin = std::io::stdin().lock();
    let mut packet = Vec::new();
    if stdin.read_exact(&mut length).is_ok() {
        packet.resize(u32::from_be_bytes(length) as usize, 0);
        if stdin.read_exact(&mut packet).is_ok() {
            return packet;
        }
    }
    std::process::exit(0);
}

/// Says nothing until the client has gone.
fn be_silent() -> ! {
    loop {
        receive();
    }
}

/// What a file of `size` bytes and this `st_mode` has.
fn attrs(mode: u32, size: u64) -> FileAttrs {
    FileAttrs {
        size: Some(size),
        owner: Some(Owner { uid: 0, gid: 0 }),
        permissions: Some(mode),
        times: Some(Times { atime: 1_000_000_000, mtime: 1_000_000_000 }),
        ..FileAttrs::default()
    }
}

pub(super) const FILE_BYTES: u64 = 1 << 20;

fn serve(manner: &str) {
    match manner {
        "zero_length" => return send(&[0; 8]),
        "huge_length" => return send(&[0xff; 64]),
        "silent" => be_silent(),
        "cut_short" => return send(&[0, 0, 0, 9, 2, 0]),
        "binary_noise" => return send(&[0, 0, 0, 200, 77, 1, 2, 3, 4, 5, 6, 7, 8]),
        _ => {}
    }
    receive();
    let version = if manner == "version_2" { 2 } else { 3 };
    let mut out = BytesMut::new();
    Version { version, extensions: Extensions::default(), product: None }.encode(&mut out);
    send(&out);
    let mut listed = 0_u64;
    loop {
        let packet = receive();
        let (id, request) = Request::decode(&packet).unwrap();
        answer(manner, id, &request, &mut listed);
    }
}

/// The tree: a root with a directory `dir` and files.
fn answer(manner: &str, id: u32, request: &Request, listed: &mut u64) {
    match request {
        Request::Realpath { .. } => {
            let root = NameEntry {
                name: Bytes::from_static(b"/"),
                longname: Bytes::new(),
                attrs: FileAttrs::default(),
            };
            reply(id, &Reply::Names(vec![root]));
        }
        Request::Stat { path } | Request::Lstat { path } => stat(manner, id, path),
        Request::Fstat { .. } => reply(id, &Reply::Attrs(attrs(0o100_644, FILE_BYTES))),
        Request::Open { .. } | Request::Opendir { .. } => {
            *listed = 0;
            let handle = RemoteHandle::new(b"handle").unwrap();
            match manner {
                "long_handle" => {
                    // HANDLE with a string of 300 bytes.
                    let mut packet = vec![0, 0, 1, 53, 102];
                    packet.extend(id.to_be_bytes());
                    packet.extend([0, 0, 1, 44]);
                    packet.extend([b'h'; 300]);
                    send(&packet);
                }
                _ => reply(id, &Reply::Handle(handle)),
            }
        }
        Request::Readdir { .. } => list(manner, id, listed),
        Request::Read { offset, len, .. } => read(manner, id, *offset, *len),
        Request::Close { .. } => reply(id, &status(StatusCode::OK)),
        _ => reply(id, &status(StatusCode::OP_UNSUPPORTED)),
    }
}

fn stat(manner: &str, id: u32, path: &[u8]) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let found = match name {
        b"" | b"." | b"dir" if manner == "root_is_a_file" => attrs(0o100_644, 5),
        b"" | b"." | b"dir" | b"good" => attrs(0o040_755, 4096),
        b"endless_size" => attrs(0o100_644, u64::MAX),
        b"negative_size" => attrs(0o100_644, 1 << 63),
        b"largest_size" => attrs(0o100_644, (1 << 63) - 1),
        b"no_kind" => attrs(0o644, 5),
        b"strange_kind" => attrs(0o150_644, 5),
        b"no_attributes" => FileAttrs::default(),
        b"device" => attrs(0o020_666, 0),
        b"pipe" => attrs(0o010_666, 0),
        b"suid" => attrs(0o104_755, 5),
        b"file" => attrs(0o100_644, FILE_BYTES),
        _ => return reply(id, &status(StatusCode::NO_SUCH_FILE)),
    };
    if name == b"file" {
        match manner {
            "wrong_id" => return reply(id.wrapping_add(1000), &Reply::Attrs(found)),
            "wrong_type" => return reply(id, &Reply::Data(Bytes::from_static(b"data"))),
            "silent_later" => be_silent(),
            "zero_length_later" => return send(&[0; 4]),
            "trailing_bytes" => return send(&[0, 0, 0, 9, 105, 0, 0, 0, 0, 0, 0, 0, 0]),
            "flood" => loop {
                reply(id, &Reply::Attrs(found));
            },
            "lost_status" => return reply(id, &status(StatusCode(4711))),
            _ => {}
        }
    }
    reply(id, &Reply::Attrs(found));
}

fn list(manner: &str, id: u32, listed: &mut u64) {
    let entry = |name: &[u8]| NameEntry {
        name: Bytes::copy_from_slice(name),
        longname: Bytes::new(),
        attrs: attrs(0o100_644, 5),
    };
    let names: Vec<NameEntry> = match (manner, *listed) {
        ("endless_listing", start) => {
            (start..start + 100).map(|n| entry(format!("name{n}").as_bytes())).collect()
        }
        ("endless_empty_listing", _) => vec![],
        ("endless_bad_names", _) => vec![entry(b"a/b"), entry(b"..")],
        ("bad_names", 0) => {
            let long = vec![b'n'; 256];
            let mut names: Vec<&[u8]> = vec![b"good", b"../up", b"a/b", b"/", b"", b".", b".."];
            names.extend([&b"nul\0nul"[..], b"\x1b[2J", b"good", &long]);
            names.into_iter().map(entry).collect()
        }
        ("strange_listing", 0) => vec![
            NameEntry {
                name: Bytes::from_static(b"no_kind"),
                longname: Bytes::new(),
                attrs: attrs(0o644, 5),
            },
            entry(b"file"),
        ],
        _ => return reply(id, &status(StatusCode::EOF)),
    };
    *listed += names.len().max(1) as u64;
    reply(id, &Reply::Names(names));
}

fn read(manner: &str, id: u32, offset: u64, len: u32) {
    let data = |len: usize| Reply::Data(Bytes::from(vec![b'x'; len]));
    match manner {
        "read_too_much" => reply(id, &data(len as usize + 1)),
        "read_nothing" => reply(id, &data(0)),
        "read_a_byte" if offset < FILE_BYTES => reply(id, &data(1)),
        "read_cut_short" => {
            // Announces more than the packet has.
            let mut packet = vec![0, 0, 0, 13, 103];
            packet.extend(id.to_be_bytes());
            packet.extend([0, 0, 255, 255, 1, 2, 3, 4]);
            send(&packet);
        }
        _ if offset < FILE_BYTES => {
            reply(id, &data(len.min((FILE_BYTES - offset) as u32) as usize))
        }
        _ => reply(id, &status(StatusCode::EOF)),
    }
}

/// So that a mistake in the server is not taken for one in the client.
#[test]
fn a_server_without_bad_manners_works() {
    let dir = tempfile::tempdir().unwrap();
    let mount = super::hostile::mount(dir.path(), "good", &[]);
    assert_eq!(std::fs::metadata(mount.at("file")).unwrap().len(), FILE_BYTES);
    assert_eq!(std::fs::read(mount.at("file")).unwrap(), vec![b'x'; FILE_BYTES as usize]);
    assert_eq!(std::fs::read_dir(mount.at("dir")).unwrap().count(), 0);
}
