//! Which words of a command line are sources, which is the mount point, and what sources go
//! together. What is in one source is tested with its grammar.

use std::path::PathBuf;

use super::command_line::Wish;
use super::option_tests::{HELPER, OWN_HELPER, SSHFS, SSHOAL, failure, request, wish};
use crate::sources::{SourceSpec, source};

#[test]
fn operands_are_told_apart_by_the_colon() {
    let parts = |words: &[&str]| {
        let request = request(words);
        (request.source.into_string().unwrap(), request.mountpoint)
    };
    for (words, source, mountpoint) in [
        (&["u@h:dir", "m"][..], "u@h:dir", "m"),
        (&["[::1]:", "m"], "[::1]:", "m"),
        (&["h:a:b", "m:n"], "h:a:b", "m:n"),
        (&["h:", "/dev/fd/3"], "h:", "/dev/fd/3"),
        (&["sshfs#h:", "m"], "sshfs#h:", "m"),
    ] {
        assert_eq!(parts(words), (source.to_owned(), PathBuf::from(mountpoint)));
    }
    for (words, said) in [
        (&[][..], "source: missing"),
        (&["/mnt"], "source: missing (only '/mnt' was given)"),
        (&["h:"], "mount point: missing"),
        (&["h:", ""], "mount point: missing"),
        (&["h", "/mnt"], "source 'h': contains no ':'"),
        (&["h:", "/mnt", "x"], "argument 'x': unexpected after source"),
        (&["h:", "/mnt", "x", "y"], "argument 'x': unexpected after source"),
        (
            &["/mnt", "h:", "i:"],
            "source '/mnt': contains no ':'\n  the mount point must be the last",
        ),
        (
            &["h:", "x", "i:", "/mnt"],
            "source 'x': contains no ':'\n  the mount point must be the last",
        ),
        (&["h:", "i:", ""], "mount point: missing"),
        (&["--", "-oProxyCommand=x:/p", "m"], "source '-oProxyCommand=x:/p': the place"),
        (&["--", "-oX:/p", "m"], "source '-oX:/p': invalid hostname"),
        (&["h:", "/mnt", "-p"], "flag '-p': needs a value: PORT"),
        (&["h:", "/mnt", "-p", "0"], "flag '-p': needs a number from 1 to 65535"),
        (&["h:", "/mnt", "-Z"], "flag '-Z': no such flag"),
        (
            &["h:", "/mnt", "--foregrund"],
            "flag '--foregrund': no such flag\n  did you mean --foreground?",
        ),
        (
            &["h:", "/mnt", "--allow_other"],
            "flag '--allow_other': no such flag\n  mount options follow -o",
        ),
    ] {
        let got = failure(words);
        assert!(got.starts_with(said), "{words:?}: {got}");
        assert_eq!(got.lines().count(), if got.contains('\n') { 2 } else { 1 });
    }
}

#[test]
fn several_sources_come_before_the_mount_point() {
    let sources = |program, words: &[&str]| match wish(program, words) {
        Ok(Wish::Mount(request, _)) => request.sources,
        other => panic!("{words:?}: {other:?}"),
    };
    let specs = |words: &[&str]| words.iter().map(|word| source(word)).collect::<Vec<SourceSpec>>();
    assert_eq!(
        sources(SSHOAL, &["a:/x=ro", "-C", "P=b,c:/y", "local:/z", "/mnt"]),
        specs(&["a:/x=ro", "P=b,c:/y", "local:/z"])
    );
    assert_eq!(sources(SSHOAL, &["a:", "b:", "c:d"]), specs(&["a:", "b:"]), "c:d is a place");
    // mount(8) has room for one word.
    assert_eq!(
        sources(OWN_HELPER, &["a:/x P=b:/my dir=ro", "/mnt"]),
        specs(&["a:/x", "P=b:/my dir=ro"])
    );
    let Ok(Wish::Mount(request, _)) = wish(OWN_HELPER, &["a:/x b:", "/mnt"]) else { panic!() };
    assert_eq!(request.source, "a:/x b:", "the table of mounts has what fstab has");
    // As far as the kernel takes it.
    let many: Vec<String> =
        (0..64).map(|it| format!("user@node{it}:/{}", "d".repeat(60))).collect();
    let mut words: Vec<&str> = many.iter().map(String::as_str).collect();
    words.push("/mnt");
    let Ok(Wish::Mount(request, _)) = wish(SSHOAL, &words) else { panic!() };
    assert_eq!(request.sources.len(), 64);
    assert!(request.source.len() > 4095 && request.mount.fsname.len() <= 4095);
}

#[test]
fn as_sshfs_there_is_one_source_and_it_means_what_it_means_there() {
    for program in [SSHFS, HELPER] {
        let Ok(Wish::Mount(request, _)) = wish(program, &["h:/x=ro", "/mnt"]) else { panic!() };
        assert_eq!(request.source, "h:/x=ro");
        assert!(!request.is_union());
        let Ok(Wish::Mount(request, _)) = wish(program, &["h:/a b:/c", "/mnt"]) else { panic!() };
        assert_eq!(request.sources.len(), 1);
    }
    let said = wish(SSHFS, &["a:", "b:", "/mnt"]).unwrap_err();
    assert!(said.starts_with("source 'b:': unexpected: sshfs mounts"), "{said}");
}

#[test]
fn what_does_not_go_with_several_hosts_is_said() {
    for (words, said) in [
        (
            &["a:", "b:", "/m", "-opassive"][..],
            "option 'passive': standard input and output carry a single",
        ),
        (
            &["a,b:", "/m", "-ovsock=3:1"],
            "option 'vsock': one address carries a single connection, but there are 2",
        ),
        (
            &["a:", "b:", "/m", "-opassword_stdin"],
            "option 'password_stdin': would send one password",
        ),
        (&["a:", "a:=ro", "/m"], "source 'a:': the source is given twice"),
        (&["a:=optional", "/m"], "source 'a:': the only source of a mount cannot be optional"),
    ] {
        let got = failure(words);
        assert!(got.starts_with(said), "{words:?}: {got}");
    }
    assert!(wish(SSHOAL, &["a,b:", "/m", "-opassword_stdin"]).is_ok(), "a pool is one site");
    assert!(wish(SSHOAL, &["a:", "local:/x", "/m", "-opassword_stdin,passive"]).is_err());
    let notes = |words: &[&str]| match wish(SSHOAL, words) {
        Ok(Wish::Mount(_, notes)) => notes,
        other => panic!("{other:?}"),
    };
    let without =
        |what: &str| format!("{what} has no effect: no source has several gateways (gw1,gw2:dir)");
    assert_eq!(
        notes(&["a:", "/m", "-ocreate=ff"]),
        ["create and action have no effect on a single source"]
    );
    assert_eq!(notes(&["a:", "/m", "-opool=hash"]), [without("pool")]);
    assert_eq!(notes(&["a:", "b,c:", "/m", "-opool=hash,action=all"]), [""; 0]);
}
