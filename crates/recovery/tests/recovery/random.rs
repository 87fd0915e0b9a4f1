//! Random operations with random losses, compared with a remote without losses: the results and the
//! final content must be equal. Over one link, and over two gateways of one server with a link
//! each.
//!
//! Excluded are cases that a loss may change by contract: files that are open when their name is
//! removed or replaced, and changes of open files by their other hard links. No path goes through a
//! symbolic link.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::{Access, AttrChange, Create, Errno, Fh, OpenFlags, Remote, RenameMode, Result};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use recovery::Recovering;
use replicas::{Gateway, Replicas};
use testkit::faulty::Fault;
use testkit::{FaultyRemote, MemRemote, path};

use super::stage::{Started, poll_once};

const NAMES: &[&str] = &["a", "b", "c", "a/a", "a/b", "b/a", "c/b", "a/a/a"];
const SLOTS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    Open {
        slot: usize,
        name: &'static str,
        flags: OpenFlags,
    },
    Close {
        slot: usize,
    },
    /// Several writes in flight at once.
    Write {
        slot: usize,
        parts: Vec<(u64, usize, u8)>,
    },
    Read {
        slot: usize,
        offset: u64,
        len: u32,
    },
    Cut {
        slot: usize,
        size: u64,
    },
    Fstat {
        slot: usize,
    },
    Fsync {
        slot: usize,
    },
    Flush {
        slot: usize,
    },
    Copy {
        from: usize,
        to: usize,
        len: u64,
    },
    Lstat {
        name: &'static str,
    },
    List {
        name: &'static str,
    },
    Mkdir {
        name: &'static str,
    },
    Rmdir {
        name: &'static str,
    },
    Unlink {
        name: &'static str,
    },
    Symlink {
        name: &'static str,
        target: &'static str,
    },
    Link {
        from: &'static str,
        to: &'static str,
    },
    Rename {
        from: &'static str,
        to: &'static str,
        mode: RenameMode,
    },
    Chmod {
        name: &'static str,
        perm: u32,
    },
}

impl Op {
    /// The names that it creates, renames or removes.
    fn names(&self) -> Vec<&'static str> {
        match *self {
            Op::Mkdir { name }
            | Op::Rmdir { name }
            | Op::Unlink { name }
            | Op::Open { name, .. }
            | Op::Symlink { name, .. } => vec![name],
            Op::Link { from, to } | Op::Rename { from, to, .. } => vec![from, to],
            _ => Vec::new(),
        }
    }
}

/// A broken link loses all following calls. A single call can only be lost where no other is in
/// flight.
fn as_of_a_link(fault: Fault, op: &Op) -> Fault {
    match (op, fault) {
        (Op::Write { parts, .. }, Fault::Unsent(nth) | Fault::Unanswered(nth))
            if parts.len() > 1 =>
        {
            Fault::Cut(nth as usize, 0)
        }
        (Op::Write { parts, .. }, Fault::CutAndUnanswered(turns, nth)) if parts.len() > 1 => {
            Fault::Cut(turns, nth)
        }
        (_, fault) => fault,
    }
}

fn op() -> impl Strategy<Value = Op> {
    let name = || select(NAMES);
    let slot = || 0..SLOTS;
    let create = prop_oneof![
        3 => Just(Create::IfAbsent(0o644)),
        1 => Just(Create::Exclusive(0o600)),
        1 => Just(Create::Never),
    ];
    let flags = (create, proptest::bool::weighted(0.2), proptest::bool::weighted(0.3));
    let flags = flags.prop_map(|(create, truncate, append)| OpenFlags {
        access: Access::ReadWrite,
        create,
        truncate,
        append,
    });
    let parts = prop::collection::vec((0..40u64, 0..20usize, any::<u8>()), 1..5);
    let mode = select(vec![RenameMode::Replace, RenameMode::NoReplace]);
    prop_oneof![
        6 => (slot(), name(), flags).prop_map(|(slot, name, flags)| Op::Open { slot, name, flags }),
        1 => slot().prop_map(|slot| Op::Close { slot }),
        8 => (slot(), parts).prop_map(|(slot, parts)| Op::Write { slot, parts }),
        4 => (slot(), 0..50u64, 0..50u32)
            .prop_map(|(slot, offset, len)| Op::Read { slot, offset, len }),
        2 => (slot(), 0..50u64).prop_map(|(slot, size)| Op::Cut { slot, size }),
        1 => slot().prop_map(|slot| Op::Fstat { slot }),
        1 => slot().prop_map(|slot| Op::Fsync { slot }),
        2 => slot().prop_map(|slot| Op::Flush { slot }),
        1 => (slot(), slot(), 0..50u64).prop_map(|(from, to, len)| Op::Copy { from, to, len }),
        3 => name().prop_map(|name| Op::Lstat { name }),
        2 => name().prop_map(|name| Op::List { name }),
        4 => name().prop_map(|name| Op::Mkdir { name }),
        2 => name().prop_map(|name| Op::Rmdir { name }),
        3 => name().prop_map(|name| Op::Unlink { name }),
        2 => (name(), select(vec!["x", "nowhere"])).prop_map(|(name, target)| Op::Symlink { name, target }),
        2 => (name(), name()).prop_map(|(from, to)| Op::Link { from, to }),
        5 => (name(), name(), mode).prop_map(|(from, to, mode)| Op::Rename { from, to, mode }),
        2 => (name(), select(vec![0o600, 0o644, 0o755]))
            .prop_map(|(name, perm)| Op::Chmod { name, perm }),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        3 => Just(Fault::None),
        2 => (1..5u64).prop_map(Fault::Unsent),
        3 => (1..5u64).prop_map(Fault::Unanswered),
        3 => (0..8usize, 0..3u64).prop_map(|(turns, secs)| Fault::Cut(turns, secs)),
        2 => (0..8usize, 1..6u64).prop_map(|(turns, nth)| Fault::CutAndUnanswered(turns, nth)),
    ]
}

/// A remote with its open files.
struct Side {
    remote: Arc<dyn Remote>,
    open: [Option<Fh>; SLOTS],
}

fn bytes(len: usize, fill: u8) -> Bytes {
    (0..len).map(|at| fill.wrapping_add(at as u8) | 1).collect()
}

impl Side {
    fn new(remote: Arc<dyn Remote>) -> Side {
        Side { remote, open: [None; SLOTS] }
    }

    fn fh(&self, slot: usize) -> Result<Fh> {
        self.open[slot].ok_or(Errno::EBADF)
    }

    /// Runs the operation, and returns the part of the result that must be equal.
    async fn apply(&mut self, op: &Op) -> Result<String> {
        let done = |()| "done".to_owned();
        match op {
            Op::Open { slot, name, flags } => {
                self.close(*slot);
                let opened = self.remote.open(&path(name), *flags).await?;
                self.open[*slot] = Some(opened.fh);
                Ok(format!("{} {:o}", opened.attr.size, opened.attr.perm))
            }
            Op::Close { slot } => {
                self.close(*slot);
                Ok(String::new())
            }
            Op::Write { slot, parts } => self.write(*slot, parts).await.map(done),
            Op::Read { slot, offset, len } => {
                let data = self.remote.read(self.fh(*slot)?, *offset, *len).await?;
                Ok(format!("{:?}", data.to_vec()))
            }
            Op::Cut { slot, size } => {
                let change = AttrChange { size: Some(*size), ..AttrChange::default() };
                self.remote.fsetattr(self.fh(*slot)?, change).await.map(done)
            }
            Op::Fstat { slot } => {
                let attr = self.remote.fstat(self.fh(*slot)?).await?;
                Ok(format!("{} {:o}", attr.size, attr.perm))
            }
            Op::Fsync { slot } => self.remote.fsync(self.fh(*slot)?).await.map(done),
            Op::Flush { slot } => match self.remote.flush(self.fh(*slot)?).await {
                // A file without a name.
                Err(Errno::EOPNOTSUPP) => Ok("done".to_owned()),
                flushed => flushed.map(done),
            },
            Op::Copy { from, to, len } => {
                let (from, to) = (self.fh(*from)?, self.fh(*to)?);
                let copied = self.remote.copy((from, 3), (to, 5), *len).await?;
                Ok(copied.to_string())
            }
            Op::Lstat { name } => {
                let attr = self.remote.lstat(&path(name)).await?;
                Ok(format!("{:?} {:o}", attr.kind, attr.perm))
            }
            Op::List { name } => Ok(format!("{:?}", self.list(name).await?)),
            Op::Mkdir { name } => self.remote.mkdir(&path(name), 0o755).await.map(done),
            Op::Rmdir { name } => self.remote.rmdir(&path(name)).await.map(done),
            Op::Unlink { name } => self.remote.unlink(&path(name)).await.map(done),
            Op::Symlink { name, target } => {
                self.remote.symlink(target.as_bytes(), &path(name)).await.map(done)
            }
            Op::Link { from, to } => self.remote.link(&path(from), &path(to)).await.map(done),
            Op::Rename { from, to, mode } => {
                self.remote.rename(&path(from), &path(to), *mode).await.map(done)
            }
            Op::Chmod { name, perm } => {
                let change = AttrChange { perm: Some(*perm), ..AttrChange::default() };
                self.remote.setattr(&path(name), change).await.map(done)
            }
        }
    }

    fn close(&mut self, slot: usize) {
        if let Some(fh) = self.open[slot].take() {
            self.remote.close(fh);
        }
    }

    async fn write(&self, slot: usize, parts: &[(u64, usize, u8)]) -> Result<()> {
        let fh = self.fh(slot)?;
        let mut calls: Vec<Started<'_, Result<()>>> = Vec::new();
        let mut result = Ok(());
        for (offset, len, fill) in parts {
            let mut call = self.remote.write(fh, *offset, bytes(*len, *fill));
            match poll_once(&mut call) {
                std::task::Poll::Ready(written) => result = result.and(written),
                std::task::Poll::Pending => calls.push(call),
            }
        }
        for call in calls {
            result = result.and(call.await);
        }
        result
    }

    async fn list(&self, name: &str) -> Result<Vec<String>> {
        let dh = self.remote.opendir(&path(name)).await?;
        let mut names = Vec::new();
        let listed = loop {
            match self.remote.readdir(dh).await {
                Ok(Some(entries)) => {
                    names.extend(entries.into_iter().map(|entry| entry.name.to_string()));
                }
                Ok(None) => break Ok(()),
                Err(errno) => break Err(errno),
            }
        };
        self.remote.closedir(dh);
        names.sort();
        listed.map(|()| names)
    }
}

/// The content of a remote: kinds, permissions, contents, targets.
fn snapshot(memory: &MemRemote, at: &str, into: &mut BTreeMap<String, String>) {
    for name in memory.names(at) {
        let below = if at.is_empty() { name } else { format!("{at}/{name}") };
        let attr = memory.attr(&below);
        let what = match attr.kind {
            base::FileKind::Regular => format!("{:o} {:?}", attr.perm, memory.content(&below)),
            kind => format!("{:o} {kind:?} {}", attr.perm, attr.size),
        };
        into.insert(below.clone(), what);
        if attr.is_dir() {
            snapshot(memory, &below, into);
        }
    }
}

/// The names of the open files, and the names that lead, or may lead, to a file with several names.
#[derive(Default)]
struct OpenNames([Option<String>; SLOTS], BTreeSet<String>);

impl OpenNames {
    fn is_within(name: &str, top: &str) -> bool {
        name == top || name.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'))
    }

    fn any_within(&self, top: &str) -> bool {
        self.0.iter().flatten().any(|name| OpenNames::is_within(name, top))
    }

    /// Whether a file may be open by another hard link of it, apart from this slot.
    fn is_open_by_another(&self, name: &str, but_for: Option<usize>) -> bool {
        let others = self.0.iter().enumerate().filter(|(slot, _)| Some(*slot) != but_for);
        let mut others = others.filter_map(|(_, open)| open.as_ref());
        self.1.contains(name) && others.any(|open| open != name && self.1.contains(open))
    }

    /// Whether a loss may change the result of the operation by contract.
    fn forbids(&self, op: &Op) -> bool {
        match op {
            Op::Open { slot, name, .. } => self.is_open_by_another(name, Some(*slot)),
            Op::Chmod { name, .. } => self.is_open_by_another(name, None),
            Op::Unlink { name } => self.any_within(name),
            // Also a rename to a hard link of the same file, which has no effect.
            Op::Rename { from, to, .. } => self.any_within(to) || from == to,
            Op::Link { to, .. } => self.any_within(to),
            _ => false,
        }
    }

    fn follow(&mut self, op: &Op, went_well: bool) {
        match op {
            Op::Open { slot, name, .. } => self.0[*slot] = went_well.then(|| (*name).to_owned()),
            Op::Close { slot } => self.0[*slot] = None,
            Op::Link { from, to } => self.1.extend([*from, *to].map(str::to_owned)),
            Op::Rename { from, to, .. } if went_well => {
                let linked = self.1.iter().filter(|name| OpenNames::is_within(name, from));
                let moved: Vec<_> =
                    linked.map(|name| format!("{to}{}", &name[from.len()..])).collect();
                self.1.extend(moved);
                for name in self.0.iter_mut().flatten() {
                    if OpenNames::is_within(name, from) {
                        *name = format!("{to}{}", &name[from.len()..]);
                    }
                }
            }
            _ => {}
        }
    }
}

type Link = Arc<FaultyRemote<MemRemote>>;

/// An operation, the link that breaks during it, and how.
type Step = (Op, prop::sample::Index, Fault);

/// A gateway that is away for longer, or comes back with another write verifier, may have lost
/// unsynced data (L6).
const LONGEST_OF_A_POOL_SECS: u64 = 2;

/// Time within which a gateway with a restored link is used again.
const A_POOL_SETTLES: Duration = Duration::from_secs(2);

/// The remote over these links: itself over one, a pool of gateways over several.
fn over(links: &[Link]) -> Arc<dyn Remote> {
    if let [link] = links {
        return link.clone();
    }
    let gateway = |link: &Link| Gateway { name: "gateway".to_owned(), remote: link.clone() };
    let gateways = links.iter().map(gateway).collect();
    Arc::new(Replicas::new(gateways, replicas::Config::default()).unwrap())
}

async fn compare(links: usize, steps: &[Step]) -> std::result::Result<(), TestCaseError> {
    let reference = Arc::new(MemRemote::new());
    let memory = Arc::new(MemRemote::new());
    memory.set_pending(true);
    let links: Vec<Link> =
        (0..links).map(|_| Arc::new(FaultyRemote::new(memory.clone()))).collect();
    links.iter().for_each(|link| link.set_write_verifier("the only one"));
    let mut plain = Side::new(reference.clone());
    let mut recovering = Side::new(Recovering::new(over(&links), recovery::Config::default()));
    let mut names = OpenNames::default();
    for (index, (op, link, fault)) in steps.iter().enumerate() {
        if names.forbids(op) {
            continue;
        }
        // The two files may be at two gateways, which cannot copy between them.
        if links.len() > 1 && matches!(op, Op::Copy { .. }) {
            continue;
        }
        // As the kernel does before it changes a name.
        for name in op.names() {
            let _ = recovering.remote.lstat(&path(name)).await;
        }
        let expected = plain.apply(op).await;
        let fault = match as_of_a_link(*fault, op) {
            Fault::Cut(turns, secs) if links.len() > 1 => {
                Fault::Cut(turns, secs.min(LONGEST_OF_A_POOL_SECS))
            }
            fault => fault,
        };
        let breaking = fault.happen(&links[link.index(links.len())]);
        // The fault is injected before the operation begins.
        let both = async { tokio::join!(biased; breaking, recovering.apply(op)).1 };
        let in_time = tokio::time::timeout(Duration::from_secs(3600), both).await;
        let got = in_time.map_err(|_| TestCaseError::fail(format!("{index} {op:?} hangs")))?;
        links.iter().for_each(|link| link.clear());
        if links.len() > 1 {
            // Outages without a pause between them would be one long outage.
            tokio::time::sleep(A_POOL_SETTLES).await;
        }
        prop_assert_eq!(&got, &expected, "operation {} {:?} with {:?}", index, op, fault);
        names.follow(op, expected.is_ok());
    }
    for slot in 0..SLOTS {
        plain.close(slot);
        recovering.close(slot);
    }
    let (mut expected, mut got) = (BTreeMap::new(), BTreeMap::new());
    snapshot(&reference, "", &mut expected);
    snapshot(&memory, "", &mut got);
    prop_assert_eq!(got, expected);
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    prop_assert_eq!(memory.open_handles(), 0, "handles leaked");
    Ok(())
}

/// Without proptest's line for each brace.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace("}, ), (", "}),\n(")
}

/// `RECOVERY_CASES` sets the number of lists of operations.
#[track_caller]
fn agrees(links: usize) {
    let cases = std::env::var("STEADY_CASES").map_or(150, |cases| cases.parse().unwrap());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let steps = prop::collection::vec((op(), any::<prop::sample::Index>(), fault()), 1..80);
    let result = TestRunner::new(config).run(&steps, |steps| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(compare(links, &steps))
    });
    if let Err(why) = result {
        panic!("{}", one_line(&why.to_string()));
    }
}

#[test]
fn cuts_change_nothing() {
    agrees(1);
}

#[test]
fn cuts_of_the_links_of_two_gateways_change_nothing() {
    agrees(2);
}
