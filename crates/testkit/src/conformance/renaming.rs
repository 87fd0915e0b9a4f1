//! Rules of `rename`, as `renameat2(2)` has them.

use base::{Errno, FileKind, RenameMode, Result};

use super::ground::{Ground, ok};
use crate::path;

const MODES: [RenameMode; 2] = [RenameMode::Replace, RenameMode::NoReplace];

/// What stands at a name.
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

    /// Makes it at `at`, with something in it that tells `mark`.
    async fn make(self, ground: &Ground, at: &str, mark: &str) {
        match self {
            Absent => {}
            File => ground.put(at, mark.as_bytes()).await,
            EmptyDir => ground.dir(at).await,
            FullDir => {
                ground.dir(at).await;
                ground.put(&format!("{at}/{mark}"), b"").await;
            }
            Link => ground.put_link("aim", at).await,
            Dangling => ground.put_link("nowhere", at).await,
        }
    }

    /// Whether it is at `at`, made with `mark`.
    async fn is_at(self, ground: &Ground, at: &str, mark: &str) -> bool {
        let Ok(attr) = ground.lstat(&path(at)).await else {
            return self == Absent;
        };
        match (self, attr.kind) {
            (File, FileKind::Regular) => ground.get(at).await == mark.as_bytes(),
            (EmptyDir, FileKind::Directory) => ground.names(at).await.is_empty(),
            (FullDir, FileKind::Directory) => ground.names(at).await == [mark.as_bytes()],
            (Link, FileKind::Symlink) => ground.readlink(&path(at)).await == Ok(b"aim".to_vec()),
            (Dangling, FileKind::Symlink) => {
                ground.readlink(&path(at)).await == Ok(b"nowhere".to_vec())
            }
            _ => false,
        }
    }
}

/// What `rename(2)` says, in its order of checks.
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

/// Six things onto six things in two modes: the answer, and what stands where afterwards.
pub async fn every_kind_onto_every_kind(ground: &Ground) {
    ground.put("aim", b"aimed at").await;
    let mut number = 0;
    for from in THINGS {
        for to in THINGS {
            for mode in MODES {
                number += 1;
                let dir = format!("case{number}");
                ground.dir(&dir).await;
                let (old, new) = (format!("{dir}/old"), format!("{dir}/new"));
                from.make(ground, &old, "moved").await;
                to.make(ground, &new, "replaced").await;
                let result = ground.rename(&path(&old), &path(&new), mode).await;
                let case = format!("{from:?} onto {to:?}, {mode:?}");
                assert_eq!(result, expected(from, to, mode), "{case}");
                if result.is_ok() {
                    assert!(!ground.exists(&old).await, "{case}: the old name is still there");
                    assert!(from.is_at(ground, &new, "moved").await, "{case}: not moved whole");
                } else {
                    assert!(from.is_at(ground, &old, "moved").await, "{case}: the source changed");
                    assert!(to.is_at(ground, &new, "replaced").await, "{case}: the target changed");
                }
            }
        }
    }
    assert_eq!(ground.get("aim").await, b"aimed at");
}

/// Two names of one file, or one name twice: nothing happens.
pub async fn onto_itself_is_nothing(ground: &Ground) {
    ground.put("a", b"content").await;
    ground.dir("dir").await;
    for at in ["a", "dir"] {
        let at = path(at);
        ok("rename", &at, ground.rename(&at, &at, RenameMode::Replace).await);
        assert_eq!(ground.rename(&at, &at, RenameMode::NoReplace).await, Err(Errno::EEXIST));
    }
    assert_eq!(ground.get("a").await, b"content");
    if ground.expect().hard_links {
        ok("link", "b", ground.link(&path("a"), &path("b")).await);
        ok("rename", "a", ground.rename(&path("a"), &path("b"), RenameMode::Replace).await);
        assert_eq!(ground.names("").await, [&b"a"[..], b"b", b"dir"]);
    }
}

/// A directory does not go below itself.
pub async fn into_itself_is_impossible(ground: &Ground) {
    ground.dir("a").await;
    ground.dir("a/b").await;
    ground.put("a/b/file", b"content").await;
    for to in ["a/new", "a/b/new"] {
        for mode in MODES {
            let refused = ground.rename(&path("a"), &path(to), mode).await;
            assert_eq!(refused, Err(Errno::EINVAL), "to {to}, {mode:?}");
        }
    }
    assert_eq!(
        ground.rename(&path("a"), &path("a/b"), RenameMode::Replace).await,
        Err(Errno::EINVAL)
    );
    assert_eq!(ground.get("a/b/file").await, b"content");
    // A name that only begins the same is somewhere else.
    ground.dir("ab").await;
    ok("rename", "a", ground.rename(&path("a"), &path("ab/a"), RenameMode::Replace).await);
    assert_eq!(ground.get("ab/a/b/file").await, b"content");
}

/// What is in a directory does not take that directory's name.
pub async fn over_where_it_is_in_is_impossible(ground: &Ground) {
    ground.dir("a").await;
    ground.dir("a/b").await;
    let up = ground.rename(&path("a/b"), &path("a"), RenameMode::Replace).await;
    assert_eq!(up, Err(Errno::ENOTEMPTY));
    let up = ground.rename(&path("a/b"), &path("a"), RenameMode::NoReplace).await;
    assert_eq!(up, Err(Errno::EEXIST));
    assert!(ground.exists("a/b").await);
}

/// The directory that is to have the new name must be there and be one.
pub async fn both_parents_must_be_there(ground: &Ground) {
    ground.put("a", b"content").await;
    ground.put("file", b"").await;
    ground.dir("dir").await;
    for mode in MODES {
        for (from, to, errno) in [
            ("a", "absent/b", Errno::ENOENT),
            ("dir", "absent/b", Errno::ENOENT),
            ("a", "file/b", Errno::ENOTDIR),
            ("dir", "file/b", Errno::ENOTDIR),
            ("absent/a", "b", Errno::ENOENT),
            ("file/a", "b", Errno::ENOTDIR),
        ] {
            let refused = ground.rename(&path(from), &path(to), mode).await;
            assert_eq!(refused, Err(errno), "{from} to {to}, {mode:?}");
        }
    }
    assert_eq!(ground.names("").await, [&b"a"[..], b"dir", b"file"]);
}

/// A whole tree has its new name at once.
pub async fn a_directory_moves_with_all_that_is_in_it(ground: &Ground) {
    for (mode, from, to) in
        [(RenameMode::Replace, "a", "elsewhere/b"), (RenameMode::NoReplace, "c", "elsewhere/d")]
    {
        if !ground.exists("elsewhere").await {
            ground.dir("elsewhere").await;
        }
        ground.dir(from).await;
        ground.dir(&format!("{from}/x")).await;
        ground.put(&format!("{from}/x/y"), b"content").await;
        ok("rename", from, ground.rename(&path(from), &path(to), mode).await);
        assert!(!ground.exists(from).await);
        assert_eq!(ground.get(&format!("{to}/x/y")).await, b"content");
    }
}
