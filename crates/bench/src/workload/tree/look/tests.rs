//! What two copies of a tree may differ in, and what not.

use super::*;

const ORIGINAL: &[u8] = b"/tree:\ntotal 8\n-rw-r--r-- 1 root root 12 Jan  1 2022 a  b\n\
drwxr-xr-x 2 root root 4096 Jan  1 2022 sub\n\n/tree/sub:\ntotal 0\n\
lrwxrwxrwx 1 root root 3 Jan  1 2022 l -> ../a\n";

fn listed(said: &[u8], of: &str) -> Result<(), Failure> {
    let right = Answer { said: ORIGINAL, of: Path::new("/tree") };
    compare(Question::List, &Answer { said, of: Path::new(of) }, &right)
}

#[test]
fn a_listing_may_differ_in_owners_times_blocks_and_sizes_of_directories() {
    assert_eq!(listed(ORIGINAL, "/tree"), Ok(()));
    let other = b"/mnt/x:\ntotal 99\n-rw------- 1 me   users 12 Dec 31 10:00 a  b\n\
drwxr-xr-x 2 me users 6 Jan  1 2022 sub\n\n/mnt/x/sub:\ntotal 1\n\
lrwxrwxrwx 1 me users 4 Jan  1 2022 l -> ../a\n";
    assert_eq!(listed(other, "/mnt/x"), Ok(()));
}

#[test]
fn a_listing_may_not_differ_in_names_kinds_places_and_sizes_of_files() {
    let text = String::from_utf8(ORIGINAL.to_vec()).unwrap();
    for (from, to) in [
        ("root 12 ", "root 13 "),
        ("a  b", "a b"),
        ("-> ../a", "-> ../b"),
        ("-rw-", "lrw-"),
        ("/sub:", "/bus:"),
        ("drwxr-xr-x 2 root root 4096 Jan  1 2022 sub\n", ""),
    ] {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text);
        assert!(listed(changed.as_bytes(), "/tree").is_err(), "{from}");
    }
    assert!(listed(&[ORIGINAL, b"/tree/more:\n"].concat(), "/tree").is_err());
    assert!(listed(b"", "/tree").is_err());
}

#[test]
fn a_line_twice_is_a_difference() {
    let right = Answer { said: b"/tree/a\n", of: Path::new("/tree") };
    let twice = Answer { said: b"/mnt/a\n/mnt/a\n", of: Path::new("/mnt") };
    assert!(compare(Question::Find, &twice, &right).is_err());
    let once = Answer { said: b"/mnt/a\n", of: Path::new("/mnt") };
    assert_eq!(compare(Question::Find, &once, &right), Ok(()));
}

#[test]
fn a_difference_is_told_with_its_first_line() {
    let right = Answer { said: b"/tree/a\n/tree/b\x1b\n", of: Path::new("/tree") };
    let said = Answer { said: b"/mnt/a\n/mnt/c\n", of: Path::new("/mnt") };
    let failure = compare(Question::Find, &said, &right).unwrap_err().to_string();
    assert_eq!(
        failure,
        r#"wrong data: find: 1 lines are missing and 1 should not be there; the first is "/b\u{1b}""#
    );
}
