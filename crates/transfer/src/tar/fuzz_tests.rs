//! Bodies of the fuzz targets for the output of the server's `tar` and `find`.

use std::io::{self, Read};
use std::sync::Arc;

use base::RemotePath;

use super::counters::Counters;
use super::listing::Answer;
use super::member::{BLOCK_BYTES, checksum};
use super::reader::Reader;
use super::unpack::{Naming, Unpacker};
use crate::events::{Progress, Silent};
use crate::options::{Options, Xattrs};
use crate::sink::Sink;

/// Most data of one member that is read, in bytes: sparse files may say that they are long.
const MOST_DATA: u64 = 1 << 20;

/// Where a header has its checksum, and the mark of the format.
const CHECKSUM: std::ops::Range<usize> = 148..156;
const MARK: std::ops::Range<usize> = 257..262;

/// The archive with right checksums: no input would get past a wrong one.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut archive = data.to_vec();
    for block in archive.chunks_exact_mut(BLOCK_BYTES) {
        if &block[MARK] == b"ustar" {
            let block: &mut [u8; BLOCK_BYTES] = block.try_into().expect("a block");
            let text = format!("{:06o}\0 ", checksum(block));
            block[CHECKSUM].copy_from_slice(text.as_bytes());
        }
    }
    archive
}

/// Any bytes as an archive: what is read of a member is not more than the archive has.
pub fn tar_reader(data: &[u8]) {
    let archive = with_checksums(data);
    let mut reader = Reader::new(&archive[..], Xattrs::All);
    while let Ok(Some(member)) = reader.next() {
        if let Some(bytes) = member.sparse_bytes
            && let Ok(map) = reader.sparse_map(bytes)
        {
            let mut end = 0;
            for (at, len) in map {
                assert!(at >= end && at + len <= bytes, "pieces are in order and inside");
                end = at + len;
            }
        }
        let read = io::copy(&mut reader.data().take(MOST_DATA), &mut io::sink());
        assert!(read.unwrap_or(0) <= archive.len() as u64);
    }
}

/// Any bytes as an archive that is unpacked: nothing is made, changed or removed outside of the
/// directory.
pub fn unpack(data: &[u8]) {
    let Some((flags, archive)) = data.split_first() else { return };
    let archive = with_checksums(archive);
    let outside = tempfile::tempdir().expect("a temporary directory");
    let root = outside.path().join("root");
    std::fs::create_dir(&root).expect("a directory");
    std::fs::write(outside.path().join("witness"), "unchanged").expect("a file");
    // A link that an archive may try to go through.
    std::os::unix::fs::symlink("..", root.join("up")).expect("a link");
    let options = Options {
        hard_links: flags & 1 != 0,
        sparse: flags & 2 != 0,
        xattrs: if flags & 4 != 0 { Xattrs::All } else { Xattrs::None },
        ..Options::default()
    };
    let naming = Naming { top: None, to: RemotePath::root(), is_directory: None };
    let sink = Sink::open(&root).expect("the directory");
    let mut counters = Counters::new(Arc::new(Progress::default()), Arc::new(Silent));
    let target = RemotePath::root();
    let unpacker = Unpacker::new(&sink, &target, &naming, &options, &mut counters, i64::MAX);
    let _ = unpacker.run(&archive[..]);
    let mut names: Vec<_> = std::fs::read_dir(outside.path())
        .expect("the directory outside")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["root", "witness"], "something was made outside");
    let witness = std::fs::read(outside.path().join("witness")).expect("the witness");
    assert_eq!(witness, b"unchanged");
    let links = std::fs::symlink_metadata(outside.path().join("witness")).expect("the witness");
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&links), 1, "a second name was made");
}

/// Any bytes as the answer of the server's `find`: in which pieces they come changes nothing.
pub fn listing(data: &[u8]) {
    let Some((piece, answer)) = data.split_first() else { return };
    let whole = heard(answer, answer.len().max(1));
    let pieces = heard(answer, usize::from(*piece) + 1);
    if let (Some(whole), Some(pieces)) = (&whole, &pieces) {
        assert_eq!(whole, pieces);
    }
    for (path, entries) in whole.iter().flatten() {
        let in_order = entries.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert!(in_order, "names of {path:?} are in order, each once");
    }
}

type Directories = Vec<(RemotePath, Vec<(base::Name, base::Attr)>)>;

fn heard(answer: &[u8], piece_bytes: usize) -> Option<Directories> {
    let mut heard = Answer::new(MOST_DATA as usize);
    for piece in answer.chunks(piece_bytes) {
        if heard.take(piece).ok()? {
            return heard.listing().map(|listing| listing.directories);
        }
    }
    None
}

#[cfg(test)]
pub(crate) mod seeds {
    //! Archives and answers to begin with.

    use base::Timestamp;

    use crate::tar::member::{Kind, Member};
    use crate::tar::writer;

    fn member(path: &str, kind: Kind, link: &str, bytes: u64) -> Member {
        Member {
            path: path.as_bytes().to_vec(),
            kind,
            link: link.as_bytes().to_vec(),
            perm: 0o644,
            mtime: Timestamp::from_secs(1_000_000_000),
            stored_bytes: bytes,
            xattrs: vec![(b"user.name".to_vec(), b"value".to_vec())],
            ..Member::default()
        }
    }

    /// An archive with a member of each kind, some of which try to leave.
    pub(crate) fn archive() -> Vec<u8> {
        let mut archive = Vec::new();
        let long = format!("dir/{}", "name/".repeat(60));
        for (path, kind, link) in [
            ("dir/", Kind::Directory, ""),
            ("dir/file", Kind::File, ""),
            ("dir/link", Kind::Symlink, "../.."),
            ("dir/link/witness", Kind::File, ""),
            ("up/witness", Kind::File, ""),
            ("../witness", Kind::File, ""),
            ("/witness", Kind::File, ""),
            ("second", Kind::HardLink, "dir/file"),
            ("third", Kind::HardLink, "up/witness"),
            ("fifo", Kind::Other(b'6'), ""),
            (long.as_str(), Kind::Directory, ""),
        ] {
            let content: &[u8] = if kind == Kind::File { b"content" } else { b"" };
            writer::append(&mut archive, &member(path, kind, link, content.len() as u64));
            archive.extend_from_slice(content);
            writer::append_padding(&mut archive, content.len() as u64);
        }
        let map = b"2\n0\n3\n4096\n2\n";
        let stored = 512 + 5;
        let sparse = Member {
            sparse_bytes: Some(8192),
            xattrs: Vec::new(),
            ..member("sparse", Kind::File, "", stored)
        };
        writer::append(&mut archive, &sparse);
        archive.extend_from_slice(map);
        archive.resize(archive.len() + 512 - map.len(), 0);
        archive.extend_from_slice(b"abcde");
        writer::append_padding(&mut archive, stored);
        writer::append_end(&mut archive);
        archive
    }

    /// An answer of `find`, with the size of its pieces before it.
    pub(crate) const LISTING: &[u8] = b"\x07d 0 755 4096 0 0 1700000000 1700000001 .\0\
        f 1 644 12 1000 100 1700000002 1700000003 b file\0\
        d 1 1777 4096 0 0 1700000004 1700000005 a\0\
        f 2 4755 5000000000 0 0 -7 5000000000 odd\n\\ 'name\0\
        =\0\0\0whole\n";
}
