//! A listing that is cut off, reordered or invented never yields an incomplete directory.

use std::collections::BTreeMap;

use base::{FileKind, Name, RemotePath, Timestamp};
use proptest::prelude::*;

use super::records::Records;
use super::{Answer, Listing, RECORD_BYTES};

/// As `find` writes it, of a tree.
const TREE: [&str; 11] = [
    "d 0 755 4096 0 0 1700000000 1700000001 .",
    "f 1 644 12 1000 100 1700000002 1700000003 b file",
    "d 1 1777 4096 0 0 1700000004 1700000005 a",
    "d 2 755 4096 0 0 1700000006 1700000007 empty",
    "l 2 777 9 0 0 1700000008 1700000009  link ",
    "d 2 2755 4096 0 0 1700000010 1700000011 sub",
    "f 3 4755 5000000000 0 0 -7 5000000000 odd\n\\ 'name",
    "p 3 600 0 0 0 1700000012 1700000013 =",
    "f 1 644 0 0 0 1700000014 1700000015 c",
    "d 1 700 4096 0 0 1700000016 1700000017 last",
    "f 2 600 1 0 0 1700000018 1700000019 x",
];

type Tree = BTreeMap<String, Vec<String>>;

fn answer(records: &[&str], end: &str) -> Vec<u8> {
    let records: String = records.iter().map(|record| format!("{record}\0")).collect();
    format!("{records}\0\0{end}\n").into_bytes()
}

fn whole() -> Vec<u8> {
    answer(&[&TREE[..], &["="]].concat(), "whole")
}

/// The listing in an answer that comes in pieces of that size; `Err` where the session is lost.
fn heard(answer: &[u8], piece_bytes: usize) -> std::io::Result<Option<Listing>> {
    let mut heard = Answer::new(1 << 20);
    for piece in answer.chunks(piece_bytes) {
        if heard.take(piece)? {
            return Ok(heard.listing());
        }
    }
    Err(std::io::ErrorKind::UnexpectedEof.into())
}

fn names(listing: &Listing) -> Tree {
    let names =
        |entries: &Vec<(Name, _)>| entries.iter().map(|(name, _)| name.to_string()).collect();
    listing
        .directories
        .iter()
        .map(|(path, entries)| (format!("{path:?}"), names(entries)))
        .collect()
}

fn told(answer: &[u8]) -> Option<Tree> {
    heard(answer, 4096).unwrap().as_ref().map(names)
}

fn tree() -> Tree {
    told(&whole()).unwrap()
}

#[test]
fn a_tree_is_put_together_as_sftp_would_tell_it() {
    for piece_bytes in [1, 2, 3, 7, 4096] {
        let listing = heard(&whole(), piece_bytes).unwrap().unwrap();
        let told = names(&listing);
        assert_eq!(
            told.keys().collect::<Vec<_>>(),
            ["\"\"", "\"a\"", "\"a/empty\"", "\"a/sub\"", "\"last\""]
        );
        assert_eq!(told["\"\""], ["a", "b file", "c", "last"]);
        assert_eq!(told["\"a\""], [" link ", "empty", "sub"]);
        assert!(told["\"a/empty\""].is_empty());
        let sub = RemotePath::parse(b"a/sub").unwrap();
        let (_, entries) = listing.directories.iter().find(|(path, _)| *path == sub).unwrap();
        let (name, attr) = &entries[1];
        assert_eq!(name.as_bytes(), b"odd\n\\ 'name");
        assert_eq!((attr.kind, attr.perm, attr.size), (FileKind::Regular, 0o4755, 5_000_000_000));
        assert_eq!(attr.mtime, Timestamp::from_secs(-7));
        assert_eq!(attr.atime, Timestamp::from_secs(5_000_000_000));
        assert_eq!((entries[0].0.as_bytes(), entries[0].1.kind), (&b"="[..], FileKind::Fifo));
    }
}

#[test]
fn wherever_it_is_cut_no_directory_lacks_anything() {
    let (whole, tree) = (whole(), tree());
    let mut most = 0;
    for cut in 0..=whole.len() - "=\0\0\0whole\n".len() {
        // Whether `find` was stopped, or ended well and its words were lost.
        for end in ["cut", "whole"] {
            let answer = [&whole[..cut], format!("\0\0{end}\n").as_bytes()].concat();
            let told = told(&answer).unwrap_or_default();
            for (path, entries) in &told {
                assert_eq!(entries, &tree[path], "{path} of {cut} bytes");
            }
            most = most.max(told.len());
        }
        // Not even the end is there: nothing else may be said over this session.
        assert!(heard(&whole[..cut], 64).is_err());
    }
    // Of what was left when the last record came, all is known.
    assert_eq!(most, 3);
}

#[test]
fn what_find_complained_of_is_not_used() {
    assert_eq!(told(&answer(&[&TREE[..], &["="]].concat(), "no")), None);
    assert_eq!(told(&answer(&[], "no")), None);
    assert_eq!(told(&answer(&[], "cut")), Some(Tree::new()));
    assert_eq!(told(&answer(&["="], "whole")), Some(Tree::new()));
}

#[test]
fn records_that_are_none_spoil_all() {
    for wrong in [
        "f 1 644 12 1000 100 1700000002 1700000003",
        "f 1 644 12 1000 100 1700000002 1700000003 ",
        "f 1 644 12 1000 100 1700000002 1700000003 a/b",
        "f 1 644 12 1000 100 1700000002 1700000003 ..",
        "f 1 644 12 1000 100 1700000002.5 1700000003 a",
        "f 1 648 12 1000 100 1700000002 1700000003 a",
        "f 1 644 +12 1000 100 1700000002 1700000003 a",
        "f 1 644 9223372036854775808 1000 100 1700000002 1700000003 a",
        "f 1 644 12 -1 100 1700000002 1700000003 a",
        "f 1 644 12 1000 4294967296 1700000002 1700000003 a",
        "f  1 644 12 1000 100 1700000002 1700000003 a",
        "ff 1 644 12 1000 100 1700000002 1700000003 a",
        "f 2 644 12 1000 100 1700000002 1700000003 a",
        "f 18446744073709551616 644 12 1000 100 1700000002 1700000003 a",
        "d 0 755 4096 0 0 1700000000 1700000001 .",
        "%y %d",
    ] {
        assert_eq!(told(&answer(&[TREE[0], wrong, "="], "whole")), None, "{wrong:?}");
    }
    // There is nothing to be listed of a file, or of a link to a directory.
    for top in ["f 0 644 3 0 0 1 1 x", "l 0 777 3 0 0 1 1 x", "f 1 644 3 0 0 1 1 x"] {
        assert_eq!(told(&answer(&[top, "="], "whole")), None, "{top}");
    }
}

#[test]
fn a_directory_with_something_of_no_kind_is_asked_for() {
    let records = [&TREE[..6], &["D 3 644 0 0 0 1 1 door"], &TREE[6..], &["="]].concat();
    let told = told(&answer(&records, "whole")).unwrap();
    let mut expected = tree();
    expected.remove("\"a/sub\"");
    assert_eq!(told, expected);
}

#[test]
fn what_is_too_deep_or_too_long_is_asked_for_and_takes_no_memory() {
    let mut records = vec![TREE[0].to_owned()];
    records.extend((1..40_000).map(|depth| format!("d {depth} 755 1 0 0 1 1 {}", "n".repeat(9))));
    let mut parsed = Records::default();
    records.iter().for_each(|record| parsed.take(record.as_bytes()));
    let listed = parsed.whole().unwrap();
    assert!(!listed.is_empty());
    assert!(listed.iter().all(|(path, _)| path.as_bytes().len() <= 4096));
    // Of a name in a long one.
    let record = format!("f 1 644 1 0 0 1 1 {}", "n".repeat(RECORD_BYTES));
    let unended = &answer(&[TREE[0]], "")[..TREE[0].len() + 1];
    assert!(heard(&[unended, record.as_bytes()].concat(), 4096).is_err());
    let endless = answer(&TREE, "cut");
    let records = &endless[..endless.len() - 6];
    assert!(heard(&records.repeat((2 << 20) / records.len()), 4096).is_err());
}

#[test]
fn what_comes_behind_the_end_is_not_lost() {
    let more = [&whole()[..], b"x"].concat();
    assert!(heard(&more, 4096).is_err());
    for end in ["a word that is none", "\0\0\0\0whole\nwhole"] {
        assert!(heard(&answer(&TREE, end), 4096).is_err(), "{end:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        noise in prop::collection::vec(any::<u8>(), 0..2000),
        at in any::<prop::sample::Index>(),
        piece_bytes in 1..100usize,
    ) {
        let _ = heard(&noise, piece_bytes);
        let mut mixed = whole();
        let at = at.index(mixed.len());
        for (place, byte) in mixed[at..].iter_mut().zip(&noise) {
            *place = *byte;
        }
        let _ = heard(&mixed, piece_bytes);
    }
}
