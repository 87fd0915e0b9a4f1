//! One thread of random operations, compared with the reference model.

use std::fs;
use std::path::Path;

use base::Result;
use testkit::model::{Aftermath, DirSubject, Lists, Op, Wrapper, check_until_killed, story};

use crate::tally::Tally;

/// Most operations of a list.
pub const MOST_OPS: usize = 300;

/// A directory whose calls are counted and timed.
struct Timed<'a> {
    inner: DirSubject,
    tally: &'a Tally,
    lane: &'static str,
}

impl Wrapper for Timed<'_> {
    type Inner = DirSubject;

    fn inner(&self) -> &DirSubject {
        &self.inner
    }

    fn call<T>(
        &mut self,
        name: &'static str,
        act: impl FnOnce(&mut DirSubject) -> Result<T>,
    ) -> Result<T> {
        self.tally.call(self.lane, name, || act(&mut self.inner))
    }
}

/// What a list has left to be compared, after the mount was killed.
struct Remains {
    name: String,
    ops: Vec<Op>,
    aftermath: Aftermath,
}

/// See the [module](self).
pub struct Worker<'a> {
    lane: &'static str,
    tally: &'a Tally,
    name: String,
    lists: Lists,
    begun: u64,
    remains: Option<Remains>,
    /// Directories that stay: of lists that a kill has ended before they were removed.
    left: Vec<String>,
    /// Whether a file at the server is cut before it is compared next.
    damages: bool,
}

impl<'a> Worker<'a> {
    pub fn new(
        lane: &'static str,
        tally: &'a Tally,
        number: u64,
        lists: Lists,
        damages: bool,
    ) -> Worker<'a> {
        let name = format!("worker{number}");
        Worker { lane, tally, name, lists, begun: 0, remains: None, left: Vec::new(), damages }
    }

    /// Does one list of operations in the mount, and compares it with what the server has. The
    /// answer is whether the mount is still there.
    pub fn list(&mut self, mount: &Path, served: &Path, is_killed: &dyn Fn() -> bool) -> bool {
        let name = format!("{}-{}", self.name, self.begun);
        self.begun += 1;
        let root = mount.join(&name);
        if let Err(why) = fs::create_dir(&root) {
            self.left.push(name);
            return self.excused(&format!("mkdir of a list: {why}"), is_killed);
        }
        let ops = self.lists.next();
        let mut subject =
            Timed { inner: DirSubject::existing(&root, false), tally: self.tally, lane: self.lane };
        let aftermath = match check_until_killed(&ops, &mut subject, is_killed) {
            Ok(aftermath) => aftermath,
            Err(why) => {
                let text = format!("{name}: {why}\n{}", story(&ops, &why));
                self.tally.divergence(self.lane, &text);
                return true;
            }
        };
        drop(subject);
        let remains = Remains { name, ops, aftermath };
        if remains.aftermath.was_killed() {
            self.remains = Some(remains);
            return false;
        }
        if self.damages {
            self.damages = !cut_a_file(&served.join(&remains.name));
        }
        let is_right =
            self.inspect(&remains, "at the server", &served.join(&remains.name), &|| false);
        let removed = self.tally.call(self.lane, "rm -r", || fs::remove_dir_all(&root));
        match removed {
            Ok(()) if !is_right || !served.join(&remains.name).exists() => true,
            Ok(()) => {
                let text = format!("{} was removed, and is at the server", remains.name);
                self.tally.divergence(self.lane, &text);
                true
            }
            Err(why) => {
                let text = format!("rm -r {}: {why}", remains.name);
                self.left.push(remains.name);
                self.excused(&text, is_killed)
            }
        }
    }

    /// After a kill: compares what is at the server with what must be there.
    pub fn inspect_at_server(&mut self, served: &Path) {
        if let Some(remains) = self.remains.take() {
            let root = served.join(&remains.name);
            self.inspect(&remains, "at the server after a kill", &root, &|| false);
            self.remains = Some(remains);
        }
    }

    /// The same through the new mount. Then nothing is left of it, unless that was killed, too.
    pub fn inspect_in_mount(&mut self, mount: &Path, served: &Path, is_killed: &dyn Fn() -> bool) {
        if let Some(remains) = self.remains.take() {
            self.inspect(&remains, "in the next mount", &mount.join(&remains.name), is_killed);
            if is_killed() {
                self.remains = Some(remains);
                return;
            }
            self.left.push(remains.name);
        }
        for name in self.left.drain(..) {
            let _ = fs::remove_dir_all(served.join(name));
        }
    }

    /// Whether what is there is right.
    fn inspect(
        &self,
        remains: &Remains,
        when: &str,
        root: &Path,
        is_killed: &dyn Fn() -> bool,
    ) -> bool {
        let Remains { name, ops, aftermath } = remains;
        let mut subject = DirSubject::existing(root, false);
        match aftermath.inspect(when, &mut subject) {
            Ok(()) => true,
            Err(_) if is_killed() => true,
            Err(loss) => {
                self.tally.lost_bytes.add(loss.bytes);
                let done = usize::try_from(aftermath.operations()).unwrap().min(ops.len());
                let text = format!("{name}: {loss}\n{}", story(&ops[..done], &loss.divergence));
                self.tally.divergence(self.lane, &text);
                false
            }
        }
    }

    /// An error is one of the mount's, unless it was killed.
    fn excused(&self, what: &str, is_killed: &dyn Fn() -> bool) -> bool {
        if is_killed() {
            return false;
        }
        self.tally.divergence(self.lane, what);
        true
    }
}

/// Changes the last byte of some file below a directory; whether there was one.
fn cut_a_file(dir: &Path) -> bool {
    fs::read_dir(dir).unwrap().flatten().any(|entry| {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            return cut_a_file(&entry.path());
        }
        let size = entry.metadata().unwrap().len();
        if !kind.is_file() || size == 0 {
            return false;
        }
        // Its time stays, as if the byte had never come.
        let mut bytes = fs::read(entry.path()).unwrap();
        let time = entry.metadata().unwrap().modified().unwrap();
        let last = bytes.last_mut().unwrap();
        *last ^= 0x40;
        fs::write(entry.path(), bytes).unwrap();
        fs::File::options().write(true).open(entry.path()).unwrap().set_modified(time).unwrap();
        true
    })
}
