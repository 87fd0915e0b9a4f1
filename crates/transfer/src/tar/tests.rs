//! Archives are read back by this reader and by the system's tar; broken ones are refused.

use std::io::{self, Read};
use std::sync::Arc;

use base::{Name, Timestamp};
use proptest::prelude::*;
use testkit::path;

use super::counters::Counters;
use super::member::{Kind, Member};
use super::reader::{self, Reader};
use super::unpack::{Naming, Unpacker};
use super::writer;
use crate::events::Silent;
use crate::options::{Options, Xattrs};
use crate::sink::Sink;

fn archive(members: &[(Member, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (member, content) in members {
        writer::append(&mut archive, member);
        archive.extend_from_slice(content);
        writer::append_padding(&mut archive, content.len() as u64);
    }
    writer::append_end(&mut archive);
    archive
}

fn members(archive: &[u8]) -> io::Result<Vec<(Member, Vec<u8>)>> {
    let mut reader = Reader::new(archive, Xattrs::All);
    let mut members = Vec::new();
    while let Some(member) = reader.next()? {
        let mut content = Vec::new();
        reader.data().read_to_end(&mut content)?;
        members.push((member, content));
    }
    Ok(members)
}

fn bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(1..=255u8, len)
}

/// Any bytes, with ends of lines among them.
fn xattrs() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    let name = "user\\.[a-z=%3D2\n]{1,9}".prop_map(String::into_bytes);
    prop::collection::vec((name, prop::collection::vec(any::<u8>(), 0..40)), 0..3)
}

fn a_member() -> impl Strategy<Value = (Member, Vec<u8>)> {
    let times = (-9_999_999_999i64..99_999_999_999, 0..1_000_000_000u32);
    let ids = (any::<u32>(), any::<u32>());
    let kind = prop_oneof![
        Just(Kind::File),
        Just(Kind::HardLink),
        Just(Kind::Symlink),
        Just(Kind::Directory),
        Just(Kind::Other(b'4')),
    ];
    // What seven octal digits hold.
    let device = (0..1u32 << 12, 0..1u32 << 20);
    let device = device.prop_map(|(major, minor)| rustix::fs::makedev(major, minor));
    let content = prop::collection::vec(any::<u8>(), 0..1500);
    (bytes(1..300), (kind, device), bytes(1..200), 0..=0o7777u32, ids, times, xattrs(), content)
        .prop_map(
            |(
                mut path,
                (kind, device),
                link,
                perm,
                (uid, gid),
                (secs, nanos),
                xattrs,
                mut content,
            )| {
                // A slash at the end is a directory's.
                path.push(b'x');
                let link = match kind {
                    Kind::HardLink | Kind::Symlink => link,
                    _ => Vec::new(),
                };
                if kind != Kind::File {
                    content.clear();
                }
                let stored_bytes = content.len() as u64;
                let mtime = Timestamp { secs, nanos };
                let sparse_bytes = None;
                let member = Member {
                    path,
                    kind,
                    link,
                    perm,
                    uid,
                    gid,
                    mtime,
                    stored_bytes,
                    sparse_bytes,
                    device: if kind == Kind::Other(b'4') { device } else { 0 },
                    xattrs,
                };
                (member, content)
            },
        )
}

proptest! {
    #[test]
    fn what_is_written_is_read(written in prop::collection::vec(a_member(), 0..6)) {
        prop_assert_eq!(members(&archive(&written)).unwrap(), written);
    }

    #[test]
    fn what_is_cut_off_is_no_whole_archive(written in prop::collection::vec(a_member(), 1..3), at in any::<prop::sample::Index>()) {
        let archive = archive(&written);
        // One block of zeros is mark enough.
        let cut = at.index(archive.len() - 512);
        prop_assert!(members(&archive[..cut]).is_err());
    }

    #[test]
    fn no_bytes_make_it_panic(mut noise in prop::collection::vec(any::<u8>(), 512..4096), written in a_member(), at in any::<prop::sample::Index>()) {
        let _ = members(&noise);
        let mut whole = archive(&[written]);
        let at = at.index(whole.len());
        noise.truncate(16);
        for (offset, byte) in noise.iter().enumerate() {
            if let Some(place) = whole.get_mut(at + offset) {
                *place = *byte;
            }
        }
        let _ = members(&whole);
    }
}

#[test]
fn numbers_that_do_not_fit_have_another_place() {
    let member = Member {
        path: b"large".to_vec(),
        perm: 0o644,
        uid: 4_000_000_000,
        gid: 3,
        mtime: Timestamp { secs: -1, nanos: 1 },
        stored_bytes: 1 << 40,
        ..Member::default()
    };
    let mut headers = Vec::new();
    writer::append(&mut headers, &member);
    assert_eq!(Reader::new(&headers[..], Xattrs::All).next().unwrap().unwrap(), member);
}

#[test]
fn a_sparse_file_is_a_map_and_its_pieces() {
    let pieces = [(4096, 3), (1 << 33, 5), ((1 << 33) + 5, 0)];
    let map = writer::sparse_map(&pieces);
    let mut archive = Vec::new();
    let member = Member {
        path: b"sparse".to_vec(),
        perm: 0o600,
        mtime: Timestamp::from_secs(1),
        stored_bytes: map.len() as u64 + 8,
        sparse_bytes: Some((1 << 33) + 5),
        ..Member::default()
    };
    writer::append(&mut archive, &member);
    archive.extend_from_slice(&map);
    archive.extend_from_slice(b"abcdefgh");
    writer::append_padding(&mut archive, member.stored_bytes);
    writer::append_end(&mut archive);
    let mut reader = Reader::new(&archive[..], Xattrs::All);
    let read = reader.next().unwrap().unwrap();
    assert_eq!(read, member);
    assert_eq!(reader.sparse_map(read.file_bytes()).unwrap(), pieces);
    let mut content = Vec::new();
    reader.data().read_to_end(&mut content).unwrap();
    assert_eq!(content, b"abcdefgh");
    assert!(reader.next().unwrap().is_none());
}

#[test]
fn cve_2018_20482_sparse_maps_that_lie_are_refused() {
    for pieces in [&[(10, 5), (12, 5)][..], &[(0, 9)], &[(0, 7)], &[(90, 20)], &[(u64::MAX, 8)]] {
        let map = writer::sparse_map(pieces);
        let mut archive = Vec::new();
        let member = Member {
            path: b"s".to_vec(),
            stored_bytes: map.len() as u64 + 8,
            sparse_bytes: Some(100),
            ..Member::default()
        };
        writer::append(&mut archive, &member);
        archive.extend_from_slice(&map);
        archive.extend_from_slice(b"abcdefgh");
        writer::append_padding(&mut archive, member.stored_bytes);
        let mut reader = Reader::new(&archive[..], Xattrs::All);
        reader.next().unwrap();
        assert!(reader.sparse_map(100).is_err(), "{pieces:?}");
    }
}

#[test]
fn binary_numbers_are_read() {
    for (secs, mtime) in [
        (-1i64, [0xff; 12]),
        (5, [0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]),
        (1 << 40, [0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0]),
    ] {
        let mut archive = Vec::new();
        let path = b"f".to_vec();
        let member = Member { path, kind: Kind::Directory, ..Member::default() };
        writer::append(&mut archive, &member);
        archive[136..148].copy_from_slice(&mtime);
        archive[108..116].copy_from_slice(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xfe]);
        let header: [u8; 512] = archive[..512].try_into().unwrap();
        let sum = format!("{:06o}\0 ", super::member::checksum(&header));
        archive[148..156].copy_from_slice(sum.as_bytes());
        let read = Reader::new(&archive[..], Xattrs::All).next().unwrap().unwrap();
        assert_eq!((read.mtime, read.uid), (Timestamp::from_secs(secs), u32::MAX - 1));
    }
}

/// An output that truncates a file as soon as anything of the archive is sent.
struct Truncating {
    archive: Vec<u8>,
    file: std::fs::File,
}

impl io::Write for Truncating {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.set_len(1)?;
        self.archive.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_file_that_could_not_be_read_whole_is_not_in_the_archive_as_a_copy() {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let bytes = 2 << 20;
    std::fs::write(tree.join("one"), vec![2; bytes]).unwrap();
    std::fs::hard_link(tree.join("one"), tree.join("two")).unwrap();
    let file = File::options().write(true).open(tree.join("one")).unwrap();
    let output = Truncating { archive: Vec::new(), file };
    let options = crate::Options { hard_links: true, ..crate::Options::default() };
    let mut counters = super::counters::Counters::new(Arc::default(), Arc::new(crate::Silent));
    let mut packer = super::pack::Packer::new(output, &options, &mut counters);
    let opened = File::open(dir.path()).unwrap();
    packer.pack(opened.as_fd(), b"tree", b"tree", &base::RemotePath::root()).unwrap();
    let members = members(&packer.finish(b"mark").unwrap().archive).unwrap();
    let of = |path: &[u8]| members.iter().filter(|it| it.0.path == path).collect::<Vec<_>>();
    // Whichever comes first is padded, and replaced by an empty file.
    let mut names = [of(b"tree/one"), of(b"tree/two")];
    names.sort_by_key(|members| members.len());
    assert_eq!(names[1].iter().map(|it| it.1.len()).collect::<Vec<_>>(), [bytes, 0]);
    assert_eq!(names[1][1].0.mtime, Timestamp::default());
    // The other one is a copy of what the file has become, and no name of the first.
    let [(member, content)] = names[0][..] else { panic!("{}", names[0].len()) };
    assert_eq!((member.kind, &content[..]), (Kind::File, &[2][..]));
    assert!(of(b"mark").is_empty());
}

#[test]
fn what_a_read_error_cuts_is_missed_and_nothing_of_it_stays_in_the_archive() {
    use std::os::fd::AsFd;
    use std::sync::Arc;
    // Files of sysfs are shorter than they say.
    let Ok(directory) = std::fs::File::open("/sys/kernel/mm") else { return };
    let options = crate::Options::default();
    let mut counters = super::counters::Counters::new(Arc::default(), Arc::new(crate::Silent));
    let mut packer = super::pack::Packer::new(Vec::new(), &options, &mut counters);
    let to = base::RemotePath::root();
    packer.pack(directory.as_fd(), b"transparent_hugepage", b"tree", &to).unwrap();
    let archive = packer.finish(b"mark").unwrap();
    let members = members(&archive).unwrap();
    assert!(members.iter().all(|(member, _)| member.stored_bytes == 0), "{members:?}");
    assert_eq!(members.last().unwrap().0.path, b"mark");
    assert!(counters.missed > 0);
}

#[test]
fn extended_attributes_that_cannot_be_read_are_an_error() {
    use base::Errno;
    use bytes::Bytes;
    let names = ["user.a", "trusted.b", "user.c"].map(|name| Bytes::from_static(name.as_bytes()));
    let read = |errno| {
        let get = |name: &Bytes| match &name[..] {
            b"user.a" => Err(errno),
            _ => Ok(Bytes::from_static(b"value")),
        };
        super::pack::read_xattrs(Ok(names.to_vec()), Xattrs::Users, get)
    };
    assert_eq!(read(Errno::EIO), Err(Errno::EIO));
    // It was removed meanwhile.
    assert_eq!(read(Errno::ENODATA), Ok(vec![(b"user.c".to_vec(), b"value".to_vec())]));
    let listed = |errno| super::pack::read_xattrs(Err(errno), Xattrs::All, |_| Err(Errno::EIO));
    assert_eq!(listed(Errno::EIO), Err(Errno::EIO));
    assert_eq!(listed(Errno::EOPNOTSUPP), Ok(Vec::new()));
}

/// What the server's command leaves of an archive of files with these names, and what it says.
fn taken(there: &std::path::Path, archive: &[u8]) -> String {
    taken_by(&["/bin/sh"], &std::env::var("PATH").unwrap(), there, archive)
}

/// As [`taken`], by this shell, which finds its programs in `path`.
fn taken_by(shell: &[&str], path: &str, there: &std::path::Path, archive: &[u8]) -> String {
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;
    use std::process::{Command, Stdio};
    let options = crate::Options::default();
    let command = super::script::take(there.as_os_str().as_bytes(), &options).unwrap();
    let exec = format!("exec {} ", shell.join(" "));
    let command = String::from_utf8(command).unwrap().replacen("exec /bin/sh ", &exec, 1);
    let mut shell = Command::new("sh")
        .args(["-c", &command])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = shell.stdin.take().unwrap();
    stdin.write_all(b"plain\n").unwrap();
    stdin.write_all(archive).unwrap();
    drop(stdin);
    let said = shell.wait_with_output().unwrap();
    String::from_utf8(said.stdout).unwrap()
}

/// A disk that is full. Some shells need minutes for an expansion that is quadratic in the length of
/// the messages.
#[test]
fn many_messages_are_passed_on_at_once() {
    let (programs, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let tar = "#!/bin/sh\n[ \"$1\" != --version ] || { echo 'GNU tar'; exit; }\ncat >/dev/null\n\
        i=0; while [ $i -lt 10000 ]; do n=./.$i.sshoal-0123456789abff000000000000000001; echo $n; \
        echo \"tar: $n: Cannot write: No space left on device\" >&2; i=$((i + 1)); done\n\
        echo 'tar: Exiting with failure status due to previous errors' >&2; exit 2\n";
    sandbox::write_program(programs.path().join("tar"), tar).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let said = taken_by(&["timeout", "60", "/bin/sh"], &path, there.path(), b"");
    assert!(said.starts_with("some\ntar: ./.0.sshoal-"), "{said:.100}");
    assert_eq!(said.lines().count(), 10_002);
}

/// The shells that this machine has.
fn shells() -> Vec<Vec<&'static str>> {
    let known = [
        vec!["/bin/sh"],
        vec!["/bin/bash"],
        vec!["/bin/busybox", "sh"],
        vec!["/bin/zsh", "--emulate", "sh"],
    ];
    known.into_iter().filter(|words| std::path::Path::new(words[0]).exists()).collect()
}

/// A shell whose pipes are made large by the perl that it finds in `path`, and which then reads a
/// word and says it; before that it waits for the perl, if it `waits`.
fn widening(shell: &[&str], path: &std::path::Path, waits: bool) -> std::process::Child {
    use std::process::{Command, Stdio};
    let wait = if waits { "wait; " } else { "" };
    let script = format!("{}{wait}read -r word; echo \"$word\"", super::script::WIDEN);
    Command::new(shell[0])
        .args(&shell[1..])
        .args(["-c", &script])
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Says a word to it, and sees that this is all that comes back; whether both pipes became large.
fn talk(mut shell: std::process::Child) -> bool {
    use std::io::Write;
    let (mut stdin, mut stdout) = (shell.stdin.take().unwrap(), shell.stdout.take().unwrap());
    stdin.write_all(b"word\n").unwrap();
    let mut said = String::new();
    stdout.read_to_string(&mut said).unwrap();
    assert_eq!(said, "word\n", "nothing is taken from it, or added");
    let is_large = |size: rustix::io::Result<usize>| size.unwrap() >= 1 << 20;
    let input = is_large(rustix::pipe::fcntl_getpipe_size(&stdin));
    let output = is_large(rustix::pipe::fcntl_getpipe_size(&stdout));
    assert_eq!(input, output);
    assert_eq!(shell.wait_with_output().unwrap().stderr, b"", "and nothing is said");
    input
}

#[test]
fn the_far_sides_pipes_are_made_large_if_it_can() {
    use std::path::Path;
    let path = std::env::var("PATH").unwrap();
    let has_perl = std::process::Command::new("perl").args(["-e", "1"]).status().is_ok();
    let without = tempfile::tempdir().unwrap();
    for shell in shells() {
        assert_eq!(talk(widening(&shell, Path::new(&path), true)), has_perl, "{shell:?}");
        assert!(!talk(widening(&shell, without.path(), true)), "{shell:?}");
    }
}

#[test]
fn a_perl_that_hangs_or_has_words_is_in_nobodys_way() {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    let there = tempfile::tempdir().unwrap();
    let (perl, gate) = (there.path().join("perl"), there.path().join("gate"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &gate, rustix::fs::Mode::RWXU).unwrap();
    let is_called = |script: String| {
        fs::write(&perl, script).unwrap();
        fs::set_permissions(&perl, fs::Permissions::from_mode(0o755)).unwrap();
    };
    for shell in shells() {
        is_called("#!/bin/sh\necho words; echo words >&2; read -r word; echo \"$word\"\n".into());
        assert!(!talk(widening(&shell, there.path(), true)), "{shell:?}");
        // Opening it would hang until the other end is opened.
        is_called(format!("#!/bin/sh\nread -r word <'{}'\n", gate.display()));
        assert!(!talk(widening(&shell, there.path(), false)), "{shell:?}");
        drop(fs::OpenOptions::new().write(true).open(&gate).unwrap());
    }
}

#[test]
fn of_a_stream_that_is_cut_off_nothing_stays_there() {
    use std::fs;
    let temporary = |name: &str| format!("./{name}.sshoal-0123456789abff000000000000000001");
    let odd = [".a b", ".-n", ".\\", "sub/.*", "sub/.\u{e9}"].map(temporary);
    let file = |path: &str, stored_bytes| {
        let path = path.as_bytes().to_vec();
        Member { path, perm: 0o600, stored_bytes, ..Member::default() }
    };
    let content = vec![7; 1000];
    let files: Vec<_> = odd
        .iter()
        .map(|path| (file(path, 1000), content.clone()))
        // What this could be taken for is the user's: a file and, on a line of its own, another.
        .chain([(
            file("./.kept\n./.kept too.sshoal-0123456789ab14000000000000000001", 0),
            Vec::new(),
        )])
        .chain([(file(&temporary(".last"), 1000), content.clone())])
        .collect();
    let whole = archive(&files);
    let prepared = || {
        let there = tempfile::tempdir().unwrap();
        fs::create_dir_all(there.path().join(".kept\n")).unwrap();
        fs::create_dir(there.path().join("sub")).unwrap();
        for name in [
            ".kept",
            ".kept too.sshoal-0123456789ab14000000000000000001",
            "sub/.x.sshoal-0123456789abff000000000000000001",
        ] {
            fs::write(there.path().join(name), "kept").unwrap();
        }
        there
    };
    let names = |there: &std::path::Path| {
        let files = |dir: &std::path::Path| {
            let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
            entries.filter(|entry| entry.metadata().unwrap().is_file()).count()
        };
        files(there) + files(&there.join("sub"))
    };
    let path = std::env::var("PATH").unwrap();
    for shell in shells() {
        let there = prepared();
        assert_eq!(taken_by(&shell, &path, there.path(), &whole), "0\n", "{shell:?}");
        assert_eq!(names(there.path()), 3 + 6);
    }

    let there = prepared();
    let said = taken(there.path(), &whole[..whole.len() - 2000]);
    assert_ne!(said, "0\n");
    assert_eq!(names(there.path()), 3, "what is not of the stream stays");
    for name in [
        ".kept",
        ".kept too.sshoal-0123456789ab14000000000000000001",
        "sub/.x.sshoal-0123456789abff000000000000000001",
    ] {
        assert_eq!(fs::read(there.path().join(name)).unwrap(), b"kept", "{name}");
    }
}

/// A header of extensions, with these data.
fn extension(letter: u8, data: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let stored_bytes = data.len() as u64;
    let (path, kind) = (b"x".to_vec(), Kind::Other(letter));
    let member = Member { path, kind, stored_bytes, ..Member::default() };
    writer::append(&mut archive, &member);
    archive.extend_from_slice(data);
    writer::append_padding(&mut archive, stored_bytes);
    archive
}

/// A record of a pax header.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let digits = (1..9).find(|digits| (rest + digits).to_string().len() == *digits).unwrap();
    [format!("{} {key}=", rest + digits).as_bytes(), value, b"\n"].concat()
}

fn ends_with(archive: &[u8], xattrs: Xattrs) -> io::Result<Option<Member>> {
    let mut file = Vec::new();
    writer::append(&mut file, &Member { path: b"f".to_vec(), ..Member::default() });
    writer::append_end(&mut file);
    Reader::new(&[archive, &file[..]].concat()[..], xattrs).next()
}

#[test]
fn cve_2023_39804_headers_before_a_member_are_bounded_together() {
    let half = vec![b'v'; reader::EXTENSION_LIMIT_BYTES as usize / 2];
    for letter in [b'x', b'g', b'L', b'K'] {
        let data = match letter {
            b'x' => record("comment", &half),
            _ => half.clone(),
        };
        let one = extension(letter, &data);
        assert!(ends_with(&one, Xattrs::None).is_ok(), "{letter}");
        let long = [&one[..], &one, &one].concat();
        assert!(ends_with(&long, Xattrs::None).is_err(), "{letter}: too many bytes");
        let none = extension(letter, b"");
        let usual = none.repeat(reader::EXTENSION_LIMIT);
        assert!(ends_with(&usual, Xattrs::None).is_ok(), "{letter}");
        let many = none.repeat(reader::EXTENSION_LIMIT + 1);
        assert!(ends_with(&many, Xattrs::None).is_err(), "{letter}: too many headers");
    }
}

#[test]
fn names_of_extended_attributes_are_unescaped() {
    // GNU tar, libarchive; and what is no escape.
    for (key, name) in [
        ("user.a%3Db%253D", &b"user.a=b%3D"[..]),
        ("user.%FF%0a", b"user.\xff\n"),
        ("user.%", b"user.%"),
        ("user.%+1%4", b"user.%+1%4"),
        ("%75ser.a", b"user.a"),
    ] {
        let records = record(&format!("SCHILY.xattr.{key}"), b"v=1");
        let member = ends_with(&extension(b'x', &records), Xattrs::Users).unwrap().unwrap();
        assert_eq!(member.xattrs, [(name.to_vec(), b"v=1".to_vec())], "{key}");
    }
    let records = record("SCHILY.xattr.%73ecurity.capability", b"");
    let member = ends_with(&extension(b'x', &records), Xattrs::Users).unwrap().unwrap();
    assert_eq!(member.xattrs, [], "what is wanted is decided by the name");
}

#[test]
fn only_extended_attributes_that_are_wanted_are_kept() {
    let names = ["user.a", "security.capability", "trusted.b", "system.posix_acl_access"];
    let records: Vec<u8> =
        names.iter().flat_map(|name| record(&format!("SCHILY.xattr.{name}"), b"value")).collect();
    for (wanted, count) in [(Xattrs::None, 0), (Xattrs::Users, 1), (Xattrs::All, 4)] {
        let member = ends_with(&extension(b'x', &records), wanted).unwrap().unwrap();
        assert_eq!(member.xattrs.len(), count, "{wanted:?}");
    }
    let many: Vec<u8> =
        (0..5000).flat_map(|number| record(&format!("SCHILY.xattr.user.{number}"), b"")).collect();
    assert!(ends_with(&extension(b'x', &many), Xattrs::Users).is_err());
}

/// Otherwise a server could make each of them take memory.
#[test]
fn a_further_member_of_a_directory_takes_the_place_of_the_one_before() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let member = |perm| {
        let path = b"tree/".to_vec();
        (Member { path, kind: Kind::Directory, perm, ..Member::default() }, Vec::new())
    };
    let archive = archive(&[member(0o755), member(0o700)]);
    let sink = Sink::open(dir.path()).unwrap();
    let options = Options::default();
    let naming = Naming { top: None, to: path(""), is_directory: None };
    let mut counters = Counters::new(Arc::default(), Arc::new(Silent));
    let target = path("");
    let unpacker = Unpacker::new(&sink, &target, &naming, &options, &mut counters, i64::MAX);
    unpacker.run(&archive[..]).unwrap();
    let mode = dir.path().join("tree").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// A run that copies the rest finds these directories there.
#[test]
fn the_names_of_a_broken_archive_are_synced() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("to")).unwrap();
    let directory = Member {
        path: b"tree/".to_vec(),
        kind: Kind::Directory,
        perm: 0o755,
        mtime: Timestamp::from_secs(1),
        ..Member::default()
    };
    let archive = archive(&[(directory, Vec::new())]);
    for (fsync, synced) in [(true, &[path("to"), path("")][..]), (false, &[])] {
        let sink = Sink::open(dir.path()).unwrap();
        let options = Options { fsync, ..Options::default() };
        let top = Some(Name::new(b"tree").unwrap());
        let naming = Naming { top, to: path("tree"), is_directory: None };
        let mut counters = Counters::new(Arc::default(), Arc::new(Silent));
        let target = path("to");
        let unpacker = Unpacker::new(&sink, &target, &naming, &options, &mut counters, i64::MAX);
        assert!(unpacker.run(&archive[..512]).is_err());
        assert!(dir.path().join("to/tree").is_dir());
        assert_eq!(*sink.synced.lock(), synced);
    }
}
