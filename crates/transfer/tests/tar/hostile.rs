//! Archives of servers that want to write where they must not. From the lists of scp, tar and
//! rsync.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use base::RemotePath;
use transfer::Options;
use transfer::tar::{Pull, Streamed};

use super::archive::{CHAR, DIR, FIFO, FILE, HARD, LINK, Member, archive, header};
use super::round_trip::pull_of;
use super::shell::{LocalShell, streaming};

/// A shell that answers with these bytes, whatever archive is asked for.
fn answering(dir: &Path, bytes: &[u8]) -> Arc<LocalShell> {
    greeting_with("gnu", dir, bytes)
}

/// The same, with these words about what is to come.
fn greeting_with(words: &str, dir: &Path, bytes: &[u8]) -> Arc<LocalShell> {
    let file = dir.join("archive");
    fs::write(&file, bytes).unwrap();
    let script = format!("read -r hello; echo 'sshoal-1 {words}'; read -r go; exec cat");
    LocalShell::instead(&format!("{script} '{}'", file.display()))
}

/// What a stream of that archive leaves: everything below the directory around the target.
/// `OUTSIDE` in names stands for that directory.
async fn planted(members: &[Member<'_>]) -> (Streamed, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let apart = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("target")).unwrap();
    fs::write(dir.path().join("secret"), "secret").unwrap();
    let outside = |name: &str| name.replace("OUTSIDE", dir.path().to_str().unwrap());
    let named: Vec<_> =
        members.iter().map(|(name, kind, link)| (outside(name), *kind, outside(link))).collect();
    let named: Vec<Member<'_>> =
        named.iter().map(|(name, kind, link)| (&name[..], *kind, &link[..])).collect();
    let options = Options { hard_links: true, ..Options::default() };
    let pull = pull_of(Path::new("/"), Some("top"), &dir.path().join("target"), "top");
    let shell = answering(apart.path(), &archive(&named));
    let streamed = streaming(shell, options).pull(&pull).await.unwrap();
    assert_eq!(fs::read(dir.path().join("secret")).unwrap(), b"secret");
    let mut found = Vec::new();
    let mut todo = vec![dir.path().to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                todo.push(path.clone());
            }
            found.push(path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found.retain(|name| !["target", "secret", "target/top"].contains(&name.as_str()));
    (streamed, found)
}

const TOP: Member<'_> = ("top", DIR, "");

#[tokio::test]
async fn cve_2016_6321_2025_45582_nothing_leaves_the_target() {
    let file = |name| (name, FILE, "");
    let cases: &[(&[Member<'_>], &[&str])] = &[
        (&[file("../x"), TOP, file("top/../../x"), file("top/ok")], &["target/top/ok"]),
        (&[TOP, file("OUTSIDE/x"), file("/OUTSIDE/y")], &[]),
        (&[file("other"), file("top2/x"), TOP], &[]),
        // A link, and then something through it.
        (
            &[TOP, ("top/l", LINK, "OUTSIDE"), file("top/l/x"), ("top/l/d", DIR, "")],
            &["target/top/l"],
        ),
        (&[("top", LINK, "OUTSIDE"), file("top/x")], &[]),
        // A link, then a directory of its name, then something in that.
        (&[TOP, ("top/l", LINK, ".."), ("top/l", DIR, ""), file("top/l/x")], &["target/top/l"]),
        // A link to a file outside, then a file of its name: the link is replaced.
        (&[TOP, ("top/l", LINK, "OUTSIDE/secret"), file("top/l")], &["target/top/l"]),
        // A directory that was opened, then a link in its place, then something in that.
        (
            &[TOP, ("top/d", DIR, ""), ("top/d", LINK, ".."), file("top/d/x")],
            &["target/top/d", "target/top/d/x"],
        ),
        // Further names of what is outside.
        (&[TOP, ("top/h", HARD, "OUTSIDE/secret"), ("top/i", HARD, "../secret")], &[]),
        (&[TOP, ("top/l", LINK, ".."), ("top/h", HARD, "top/l/../secret")], &["target/top/l"]),
        (&[TOP, ("top/l", LINK, "../.."), ("top/h", HARD, "top/l/secret")], &["target/top/l"]),
        (&[TOP, ("top/dev", CHAR, ""), ("top/p", FIFO, "")], &[]),
        (&[TOP, file("top/a//b"), file("top/."), file("top/./c"), file("")], &[]),
    ];
    for (members, left) in cases {
        let (_, found) = planted(members).await;
        assert_eq!(found, *left, "{members:?}");
    }
}

#[tokio::test]
async fn what_was_refused_is_not_called_whole() {
    let cases: [&[Member<'_>]; 3] = [
        &[TOP, ("../x", FILE, "")],
        &[TOP, ("top/l", LINK, ".."), ("top/l/x", FILE, "")],
        &[TOP, ("top/h", HARD, "../secret")],
    ];
    for members in cases {
        let (streamed, _) = planted(members).await;
        assert!(matches!(streamed, Streamed::Partly(_)), "{members:?}: {streamed:?}");
    }
    let (streamed, found) = planted(&[TOP, ("top/ok", FILE, "")]).await;
    assert!(matches!(streamed, Streamed::Whole(_)), "{streamed:?}");
    assert_eq!(found, ["target/top/ok"]);
}

#[tokio::test]
async fn an_archive_that_is_cut_off_leaves_only_whole_files() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("tree")).unwrap();
    for number in 0..4 {
        fs::write(dir.path().join("tree").join(number.to_string()), vec![7; 3000]).unwrap();
    }
    let archive = std::process::Command::new("tar")
        .args(["--format=posix", "-cf", "-", "./tree"])
        .current_dir(dir.path())
        .output()
        .unwrap()
        .stdout;
    let end = archive.iter().rposition(|byte| *byte != 0).unwrap();
    for len in (0..end).step_by(509) {
        let target = tempfile::tempdir().unwrap();
        let pull = pull_of(Path::new("/"), Some("tree"), target.path(), "tree");
        let shell = answering(dir.path(), &archive[..len]);
        let told = streaming(shell, Options::default()).pull(&pull).await.unwrap();
        assert!(matches!(told, Streamed::Partly(_)), "{len}: {told:?}");
        for entry in fs::read_dir(target.path().join("tree")).into_iter().flatten() {
            assert_eq!(fs::read(entry.unwrap().path()).unwrap(), vec![7; 3000], "{len}");
        }
    }
}

#[tokio::test]
async fn cve_2022_48303_lengths_that_nobody_has_are_refused() {
    for kind in [b'x', b'g', b'L', b'K'] {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = header("top", kind, "", 4 << 30);
        bytes.resize(1 << 20, 0);
        let pull = pull_of(Path::new("/"), Some("top"), &dir.path().join(""), "top");
        let shell = answering(dir.path(), &bytes);
        let told = streaming(shell, Options::default()).pull(&pull).await.unwrap();
        let Streamed::Partly(done) = told else { panic!("{told:?}") };
        assert!(done.why.unwrap().contains("longer than any that makes sense"));
    }
}

#[tokio::test]
async fn what_is_no_archive_leaves_nothing() {
    let (dir, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let noise: Vec<u8> = (0..100_000u32).map(|at| (at.wrapping_mul(at) % 253) as u8 | 1).collect();
    let pull = pull_of(Path::new("/"), Some("top"), dir.path(), "top");
    let shell = answering(apart.path(), &noise);
    let told = streaming(shell, Options::default()).pull(&pull).await.unwrap();
    assert!(matches!(told, Streamed::Partly(_)), "{told:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn what_has_become_another_kind_is_put_nowhere() {
    let (file, tree) = ([("top", FILE, "")], [TOP, ("top/x", FILE, "")]);
    for (words, members, comes) in [
        ("gnu", &tree[..], false),
        ("gnu dir", &file[..], false),
        ("gnu", &file[..], true),
        ("gnu dir", &tree[..], true),
    ] {
        let (dir, apart) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let new = RemotePath::parse(b"new").unwrap();
        let pull = pull_of(Path::new("/"), Some("top"), dir.path(), "top");
        let pull = Pull { target: new.clone(), unless_directory: Some(new), ..pull };
        let shell = greeting_with(words, apart.path(), &archive(members));
        let told = streaming(shell, Options::default()).pull(&pull).await.unwrap();
        assert_eq!(matches!(told, Streamed::Whole(_)), comes, "{words}: {told:?}");
        let count = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(count, usize::from(comes), "{words}: {told:?}");
    }
}
