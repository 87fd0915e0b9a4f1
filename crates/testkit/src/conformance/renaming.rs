//! Rules for `rename`, as in `renameat2(2)`.

use base::{Errno, FileKind, RenameMode, Result};

use super::fixture::{Fixture, ok};
use crate::path;

const MODES: [RenameMode; 2] = [RenameMode::Replace, RenameMode::NoReplace];

/// The entry at a name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Thing {
    Absent,
    File,
    EmptyDir,
    FullDir,
    Link,
    Dangling,
}

use Thing::{Absent, Dangling, EmptyDir, File, FullDir, Link};

const THINGS: [Thing; 6] = [Absent, File, EmptyDir, FullDir, Link, Dangling];

impl Thing {
    fn is_dir(self) -> bool {
        matches!(self, EmptyDir | FullDir)
    }

    /// Creates it at `at`, with content that identifies `mark`.
    async fn make(self, fixture: &Fixture, at: &str, mark: &str) {
        match self {
            Absent => {}
            File => fixture.put(at, mark.as_bytes()).await,
            EmptyDir => fixture.dir(at).await,
            FullDir => {
                fixture.dir(at).await;
                fixture.put(&format!("{at}/{mark}"), b"").await;
            }
            Link => fixture.put_link("aim", at).await,
            Dangling => fixture.put_link("nowhere", at).await,
        }
    }

    /// Whether it is at `at`, created with `mark`.
    async fn is_at(self, fixture: &Fixture, at: &str, mark: &str) -> bool {
        let Ok(attr) = fixture.lstat(&path(at)).await else {
            return self == Absent;
        };
        match (self, attr.kind) {
            (File, FileKind::Regular) => fixture.get(at).await == mark.as_bytes(),
            (EmptyDir, FileKind::Directory) => fixture.names(at).await.is_empty(),
            (FullDir, FileKind::Directory) => fixture.names(at).await == [mark.as_bytes()],
            (Link, FileKind::Symlink) => fixture.readlink(&path(at)).await == Ok(b"aim".to_vec()),
            (Dangling, FileKind::Symlink) => {
                fixture.readlink(&path(at)).await == Ok(b"nowhere".to_vec())
            }
            _ => false,
        }
    }
}

/// The result of `rename(2)`, in its order of checks.
fn expected(from: Thing, to: Thing, mode: RenameMode) -> Result<()> {
    match (from, to) {
        (Absent, _) => Err(Errno::ENOENT),
        (_, Absent) => Ok(()),
        _ if mode == RenameMode::NoReplace => Err(Errno::EEXIST),
        (from, to) if from.is_dir() && !to.is_dir() => Err(Errno::ENOTDIR),
        (from, to) if !from.is_dir() && to.is_dir() => Err(Errno::EISDIR),
        (_, FullDir) => Err(Errno::ENOTEMPTY),
        _ => Ok(()),
    }
}

/// Six types onto six types in two modes: the result, and the entries afterwards.
pub async fn every_type_onto_every_type(fixture: &Fixture) {
    fixture.put("aim", b"aimed at").await;
    let mut number = 0;
    for from in THINGS {
        for to in THINGS {
            for mode in MODES {
                number += 1;
                let dir = format!("case{number}");
                fixture.dir(&dir).await;
                let (old, new) = (format!("{dir}/old"), format!("{dir}/new"));
                from.make(fixture, &old, "moved").await;
                to.make(fixture, &new, "replaced").await;
                let result = fixture.rename(&path(&old), &path(&new), mode).await;
                let case = format!("{from:?} onto {to:?}, {mode:?}");
                assert_eq!(result, expected(from, to, mode), "{case}");
                if result.is_ok() {
                    assert!(!fixture.exists(&old).await, "{case}: the old name is still there");
                    assert!(from.is_at(fixture, &new, "moved").await, "{case}: not moved whole");
                } else {
                    assert!(from.is_at(fixture, &old, "moved").await, "{case}: the source changed");
                    assert!(
                        to.is_at(fixture, &new, "replaced").await,
                        "{case}: the target changed"
                    );
                }
            }
        }
    }
    assert_eq!(fixture.get("aim").await, b"aimed at");
}

/// Two names of one file, or one name twice: no change.
pub async fn onto_itself_changes_nothing(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    fixture.dir("dir").await;
    for at in ["a", "dir"] {
        let at = path(at);
        ok("rename", &at, fixture.rename(&at, &at, RenameMode::Replace).await);
        assert_eq!(fixture.rename(&at, &at, RenameMode::NoReplace).await, Err(Errno::EEXIST));
    }
    assert_eq!(fixture.get("a").await, b"content");
    if fixture.expect().hard_links {
        ok("link", "b", fixture.link(&path("a"), &path("b")).await);
        ok("rename", "a", fixture.rename(&path("a"), &path("b"), RenameMode::Replace).await);
        assert_eq!(fixture.names("").await, [&b"a"[..], b"b", b"dir"]);
    }
}

/// A directory cannot be moved below itself.
pub async fn into_itself_is_impossible(fixture: &Fixture) {
    fixture.dir("a").await;
    fixture.dir("a/b").await;
    fixture.put("a/b/file", b"content").await;
    for to in ["a/new", "a/b/new"] {
        for mode in MODES {
            let refused = fixture.rename(&path("a"), &path(to), mode).await;
            assert_eq!(refused, Err(Errno::EINVAL), "to {to}, {mode:?}");
        }
    }
    assert_eq!(
        fixture.rename(&path("a"), &path("a/b"), RenameMode::Replace).await,
        Err(Errno::EINVAL)
    );
    assert_eq!(fixture.get("a/b/file").await, b"content");
    // A name with the same prefix is another directory.
    fixture.dir("ab").await;
    ok("rename", "a", fixture.rename(&path("a"), &path("ab/a"), RenameMode::Replace).await);
    assert_eq!(fixture.get("ab/a/b/file").await, b"content");
}

/// An entry cannot replace one of its parent directories.
pub async fn over_a_parent_is_impossible(fixture: &Fixture) {
    fixture.dir("a").await;
    fixture.dir("a/b").await;
    let up = fixture.rename(&path("a/b"), &path("a"), RenameMode::Replace).await;
    assert_eq!(up, Err(Errno::ENOTEMPTY));
    let up = fixture.rename(&path("a/b"), &path("a"), RenameMode::NoReplace).await;
    assert_eq!(up, Err(Errno::EEXIST));
    assert!(fixture.exists("a/b").await);
}

/// The new parent must exist and be a directory.
pub async fn both_parents_must_exist(fixture: &Fixture) {
    fixture.put("a", b"content").await;
    fixture.put("file", b"").await;
    fixture.dir("dir").await;
    for mode in MODES {
        for (from, to, errno) in [
            ("a", "absent/b", Errno::ENOENT),
            ("dir", "absent/b", Errno::ENOENT),
            ("a", "file/b", Errno::ENOTDIR),
            ("dir", "file/b", Errno::ENOTDIR),
            ("absent/a", "b", Errno::ENOENT),
            ("file/a", "b", Errno::ENOTDIR),
        ] {
            let refused = fixture.rename(&path(from), &path(to), mode).await;
            assert_eq!(refused, Err(errno), "{from} to {to}, {mode:?}");
        }
    }
    assert_eq!(fixture.names("").await, [&b"a"[..], b"dir", b"file"]);
}

/// A whole tree moves at once.
pub async fn a_directory_moves_with_all_that_is_in_it(fixture: &Fixture) {
    for (mode, from, to) in
        [(RenameMode::Replace, "a", "elsewhere/b"), (RenameMode::NoReplace, "c", "elsewhere/d")]
    {
        if !fixture.exists("elsewhere").await {
            fixture.dir("elsewhere").await;
        }
        fixture.dir(from).await;
        fixture.dir(&format!("{from}/x")).await;
        fixture.put(&format!("{from}/x/y"), b"content").await;
        ok("rename", from, fixture.rename(&path(from), &path(to), mode).await);
        assert!(!fixture.exists(from).await);
        assert_eq!(fixture.get(&format!("{to}/x/y")).await, b"content");
    }
}

/// Two names of any types, also of directories with entries.
pub async fn names_are_exchanged(fixture: &Fixture) {
    fixture.put("aim", b"aimed at").await;
    for (number, (from, to)) in
        [(File, File), (File, FullDir), (FullDir, FullDir), (Link, EmptyDir)]
            .into_iter()
            .enumerate()
    {
        let dir = format!("case{number}");
        fixture.dir(&dir).await;
        let (old, new) = (format!("{dir}/old"), format!("{dir}/new"));
        from.make(fixture, &old, "first").await;
        to.make(fixture, &new, "second").await;
        let exchanged = fixture.rename(&path(&old), &path(&new), RenameMode::Exchange).await;
        if !fixture.expect().exchange {
            assert_eq!(exchanged, Err(Errno::EINVAL));
            assert!(from.is_at(fixture, &old, "first").await);
            continue;
        }
        ok("exchange", (from, to), exchanged);
        assert!(from.is_at(fixture, &new, "first").await, "{from:?} with {to:?}");
        assert!(to.is_at(fixture, &old, "second").await, "{from:?} with {to:?}");
        let absent = format!("{dir}/absent");
        let refused = fixture.rename(&path(&old), &path(&absent), RenameMode::Exchange).await;
        assert_eq!(refused, Err(Errno::ENOENT));
        assert!(to.is_at(fixture, &old, "second").await);
    }
}
