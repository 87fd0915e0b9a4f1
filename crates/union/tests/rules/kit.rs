//! Branches whose remotes can be inspected and made to fail, and short forms.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use base::{Access, Create, Errno, Name, OpenFlags, Remote, Result};
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{FaultyRemote, MemRemote, path};
use union::{ActionPolicy, Branch, CreatePolicy, Mode, Policies, Presence, Union};

use crate::through::Through;

/// One source: the content of its server, the link to it, and its configuration.
pub(crate) struct Source {
    pub(crate) mem: Arc<MemRemote>,
    pub(crate) link: Arc<Through<FaultyRemote<MemRemote>>>,
}

impl Source {
    pub(crate) fn new() -> Source {
        Source::of(MemRemote::new())
    }

    pub(crate) fn of(mem: MemRemote) -> Source {
        let mem = Arc::new(mem);
        let link = Arc::new(Through::new(FaultyRemote::new(mem.clone()), []));
        Source { mem, link }
    }

    /// One that tells files apart, or one that does not.
    pub(crate) fn identifying(shows_inodes: bool) -> Source {
        let limits = Limits { shows_inodes, ..Limits::default() };
        Source::of(MemRemote::with(Options { limits, ..Options::default() }))
    }

    pub(crate) fn faults(&self) -> &FaultyRemote<MemRemote> {
        &self.link.remote
    }

    /// As the branch of that number, at the root.
    pub(crate) fn branch(&self, number: usize) -> Branch {
        Branch {
            name: format!("gw{number}:/d"),
            host: format!("gw{number}"),
            place: Vec::new(),
            remote: self.link.clone(),
            mode: Mode::Rw,
            presence: Presence::Required,
        }
    }
}

/// A union and its sources.
pub(crate) struct Built {
    pub(crate) sources: Vec<Source>,
    pub(crate) union: Arc<Union>,
}

impl Built {
    /// With `count` branches at the root, each changed by `change`.
    pub(crate) fn with(
        count: usize,
        policies: Policies,
        change: impl Fn(usize, &mut Branch),
    ) -> Built {
        let sources: Vec<Source> = (0..count).map(|_| Source::new()).collect();
        Built::of(sources, policies, change)
    }

    pub(crate) fn of(
        sources: Vec<Source>,
        policies: Policies,
        change: impl Fn(usize, &mut Branch),
    ) -> Built {
        let branch = |(number, source): (usize, &Source)| {
            let mut branch = source.branch(number);
            change(number, &mut branch);
            branch
        };
        let branches = sources.iter().enumerate().map(branch).collect();
        Built { union: Arc::new(Union::new(branches, policies).unwrap()), sources }
    }

    pub(crate) fn new(count: usize) -> Built {
        Built::with(count, Policies::default(), |_, _| {})
    }

    pub(crate) fn mem(&self, number: usize) -> &MemRemote {
        &self.sources[number].mem
    }

    pub(crate) fn faults(&self, number: usize) -> &FaultyRemote<MemRemote> {
        self.sources[number].faults()
    }

    pub(crate) fn reset_calls(&self) {
        self.sources.iter().for_each(|source| source.faults().reset_calls());
    }

    /// The number of requests so far, for each branch.
    pub(crate) fn requests(&self) -> Vec<u64> {
        self.sources.iter().map(|source| source.faults().round_trips()).collect()
    }

    pub(crate) fn open_handles(&self) -> usize {
        self.sources.iter().map(|source| source.mem.open_handles()).sum()
    }

    /// Starts `call` on the union in a task beside the test.
    pub(crate) fn start<T, F>(
        &self,
        call: impl FnOnce(Arc<Union>) -> F,
    ) -> tokio::task::JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        tokio::spawn(call(self.union.clone()))
    }

    pub(crate) async fn get(&self, at: &str) -> Result<Vec<u8>> {
        let opened = self.union.open(&path(at), OpenFlags::existing(Access::Read)).await?;
        let data = self.union.read(opened.fh, 0, 1 << 20).await;
        self.union.close(opened.fh);
        Ok(data?.to_vec())
    }

    /// Creates a file with this content, or overwrites it.
    pub(crate) async fn put(&self, at: &str, content: &'static [u8]) -> Result<()> {
        let flags = OpenFlags {
            create: Create::IfAbsent(0o644),
            truncate: true,
            ..OpenFlags::existing(Access::Write)
        };
        let opened = self.union.open(&path(at), flags).await?;
        let written = self.union.write(opened.fh, 0, content.into()).await;
        self.union.close(opened.fh);
        written
    }

    /// The names in a directory, sorted.
    pub(crate) async fn names(&self, at: &str) -> Result<Vec<String>> {
        let dh = self.union.opendir(&path(at)).await?;
        let mut names = Vec::new();
        let listed = loop {
            match self.union.readdir(dh).await {
                Ok(Some(batch)) => {
                    assert!(!batch.is_empty());
                    names.extend(batch.iter().map(|entry| entry.name.to_string()));
                }
                Ok(None) => break Ok(()),
                Err(errno) => break Err(errno),
            }
        };
        self.union.closedir(dh);
        names.sort();
        listed.map(|()| names)
    }
}

pub(crate) fn place(text: &str) -> Vec<Name> {
    path(text).names().map(|name| Name::new(name).unwrap()).collect()
}

pub(crate) fn create(create: CreatePolicy) -> Policies {
    Policies { create, ..Policies::default() }
}

pub(crate) fn all() -> Policies {
    Policies { action: ActionPolicy::All, ..Policies::default() }
}

/// Bounds a call, so that a defect fails the test instead of hanging it.
pub(crate) async fn soon<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), call).await.expect("it waits for something")
}

pub(crate) const ABSENT: Errno = Errno::ENOENT;
