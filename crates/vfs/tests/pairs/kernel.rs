//! A mount with its kernel, the programs that use it, and the history of the server.
//!
//! The simulated kernel does what matters here: it keeps names for as long as it may, walks a path
//! again after `ESTALE` once, keeps pages over opens if it may, and serializes changes and lookups
//! of names, but not opens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base::{Access, Errno, FileKind, RenameMode, Result, Timestamp};
use bytes::Bytes;
use testkit::dice::Dice;
use testkit::mem::Options;
use testkit::tree::Limits;
use testkit::{Clock, FaultyRemote, ManualClock, MemRemote};
use tokio::time::Instant;
use vfs::{
    Config, Entry, EntrySink, Ino, Invalidate, ListedEntry, LookupResult, OpenRequest, Opened,
    Timeout, Vfs,
};

pub(crate) const NAMES: [&str; 3] = ["a", "b", "c"];

/// Bytes of a token: a version of a file is one token, repeated.
const TOKEN: usize = 4;

/// The longest time that a program takes between two calls after its open was sent back to the
/// lookup. Within it, the mount cannot distinguish another program's open of that name from its
/// second one.
const SENT_BACK: Duration = Duration::from_millis(100);

/// Calls of each program.
const STEPS: usize = 14;

/// The state of a name: a file's content, or absent.
pub(crate) type Version = Option<Vec<u8>>;

/// The states of a name, each with the time from which it had it.
type Versions = Vec<(Instant, Version)>;

/// Data written through a name, and the time when the write ended.
type Write = (&'static str, Vec<u8>, Option<Instant>);

/// The history of the server.
pub(crate) struct Server {
    pub(crate) remote: Arc<MemRemote>,
    clock: ManualClock,
    begun: (Instant, i64),
    /// Lengths of versions in tokens, in turn.
    lengths: &'static [usize],
    /// Seconds that the server's clock is ahead, if each step has a second of its own.
    ahead: Option<AtomicI64>,
    history: Mutex<BTreeMap<&'static str, Versions>>,
    versions: Mutex<usize>,
    /// Data written in place, perhaps to a file that had lost its name by then.
    written: Mutex<Vec<Write>>,
}

impl Server {
    /// A history with versions of these lengths. `apart`: each step has a second of its own.
    /// `shows_inodes`: attributes tell files apart.
    pub(crate) fn new(
        listing_attrs: bool,
        shows_inodes: bool,
        lengths: &'static [usize],
        apart: bool,
    ) -> Server {
        let begun = (Instant::now(), Timestamp::now().secs);
        let clock = ManualClock::at(begun.1);
        let options = Options {
            clock: Clock::from(clock.clone()),
            listing_batch: 2,
            listing_attrs,
            limits: Limits { shows_inodes, ..Limits::default() },
            ..Options::default()
        };
        let remote = Arc::new(MemRemote::with(options));
        let ahead = apart.then(AtomicI64::default);
        let (history, versions, written) = Default::default();
        let server = Server { remote, clock, begun, lengths, ahead, history, versions, written };
        server.remote.put_file("a", server.version());
        server.look();
        server
    }

    fn history(&self) -> MutexGuard<'_, BTreeMap<&'static str, Versions>> {
        self.history.lock().unwrap()
    }

    /// Records the present state.
    pub(crate) fn look(&self) {
        let now = Instant::now();
        for name in NAMES {
            let content = self.remote.exists(name).then(|| self.remote.content(name));
            let mut history = self.history();
            let versions = history.entry(name).or_default();
            if versions.last().is_none_or(|(_, last)| *last != content) {
                versions.push((now, content));
            }
        }
        // Also for files that are written under temporary names.
        let ahead = self.ahead.as_ref().map_or(0, |ahead| ahead.fetch_add(1, SeqCst));
        self.clock.set(self.begun.1 + (now - self.begun.0).as_secs() as i64 + ahead);
    }

    /// All states that `name` ever had.
    pub(crate) fn ever(&self, name: &str) -> Vec<Version> {
        self.history()[name].iter().map(|(_, content)| content.clone()).collect()
    }

    /// The states of `name` since `since`.
    pub(crate) fn since(&self, name: &str, since: Instant) -> Vec<Version> {
        self.look();
        let history = self.history();
        let versions = &history[name];
        let first = versions.iter().rposition(|(from, _)| *from <= since).unwrap_or(0);
        versions[first..].iter().map(|(_, content)| content.clone()).collect()
    }

    /// The contents that a file opened as `name` since `since` may have: it may have lost its name
    /// meanwhile, and be written to all the same.
    fn readable_since(&self, name: &str, since: Instant) -> Vec<Version> {
        let mut readable = self.since(name, since);
        let written = self.written.lock().unwrap();
        let under_way = written
            .iter()
            .filter(|(of, _, over)| *of == name && over.is_none_or(|over| over >= since));
        readable.extend(under_way.map(|(_, content, _)| Some(content.clone())));
        readable
    }

    /// A content that no other version has.
    pub(crate) fn version(&self) -> Vec<u8> {
        let mut versions = self.versions.lock().unwrap();
        *versions += 1;
        let token = format!("{:01$}", *versions, TOKEN);
        token.into_bytes().repeat(self.lengths[*versions % self.lengths.len()])
    }
}

/// Whether `read` is of these versions. If a file is written in place during a read, each part of
/// the read may be of another version; if it is truncated meanwhile, a read of two requests may end
/// between them.
fn was(read: &Version, versions: &[Version]) -> bool {
    let (false, Some(read)) = (versions.contains(read), read) else {
        return versions.contains(read);
    };
    let present = || versions.iter().flatten();
    let token = |content: &[u8], at: usize| content.get(at..at + TOKEN).map(<[u8]>::to_vec);
    let part = |at| present().any(|version| token(version, at) == token(read, at));
    let ends = |version: &Vec<u8>| version.is_empty() || version.len() == read.len();
    present().any(ends) && (0..read.len()).step_by(TOKEN).all(part)
}

/// A version in the message of a failure.
pub(crate) fn shown(version: &Version) -> Option<String> {
    let content = version.as_ref()?;
    let first = String::from_utf8_lossy(content.get(..TOKEN).unwrap_or_default());
    let last = String::from_utf8_lossy(&content[content.len().saturating_sub(TOKEN)..]);
    Some(format!("{} bytes, {first}...{last}", content.len()))
}

#[derive(Default)]
struct Pages(Mutex<BTreeMap<Ino, Vec<u8>>>);

impl Pages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Ino, Vec<u8>>> {
        self.0.lock().unwrap()
    }
}

impl Invalidate for Pages {
    fn content(&self, ino: Ino) {
        self.lock().remove(&ino);
    }
}

#[derive(Default)]
struct Names(Vec<String>, u64);

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.kind == Some(FileKind::Regular) {
            self.0.push(String::from_utf8(entry.name.to_vec()).unwrap());
        }
        self.1 = entry.next_offset;
    }
}

/// One mount, with its kernel.
pub(crate) struct Mount {
    server: Arc<Server>,
    vfs: Vfs,
    pages: Arc<Pages>,
    /// The kernel's names, and until when they are valid.
    dentries: Mutex<BTreeMap<&'static str, (Ino, Instant)>>,
    /// Held by a change or a lookup of a name.
    names: tokio::sync::Mutex<()>,
    number: usize,
}

impl Mount {
    /// Mount number N over `link`, configured so that the promises hold at once, and names are
    /// cached all the same.
    pub(crate) fn new(
        server: &Arc<Server>,
        link: &Arc<FaultyRemote<MemRemote>>,
        number: usize,
    ) -> Mount {
        let config = Config {
            open_revalidate: Duration::ZERO,
            negative: Duration::ZERO,
            dirs: Timeout::fixed(Duration::ZERO),
            login: Some((0, 0)),
            readahead_bytes: 0,
            ..Config::default()
        };
        let vfs = Vfs::new(link.clone(), config);
        let pages = Arc::<Pages>::default();
        vfs.set_invalidate(pages.clone());
        let (dentries, names) = (Mutex::default(), tokio::sync::Mutex::default());
        Mount { server: server.clone(), vfs, pages, dentries, names, number }
    }

    /// Two concurrent programs, which choose their calls by the seed.
    pub(crate) async fn programs(&self, seed: u64) {
        tokio::join!(self.program(0, seed), self.program(1, seed + 1));
    }

    fn dentries(&self) -> MutexGuard<'_, BTreeMap<&'static str, (Ino, Instant)>> {
        self.dentries.lock().unwrap()
    }

    fn enter(&self, name: &'static str, entry: &Entry) {
        self.dentries().insert(name, (entry.ino, Instant::now() + entry.ttl));
    }

    async fn look_up(&self, name: &'static str, again: bool) -> Result<Option<Ino>> {
        let known = self.dentries().get(name).copied();
        if let Some((ino, until)) = known.filter(|_| !again)
            && Instant::now() < until
        {
            return Ok(Some(ino));
        }
        let _names = self.names.lock().await;
        match self.vfs.lookup(Ino::ROOT, name.as_bytes()).await? {
            LookupResult::Found(entry) => {
                self.enter(name, &entry);
                Ok(Some(entry.ino))
            }
            LookupResult::Absent(_) => {
                self.dentries().remove(name);
                Ok(None)
            }
        }
    }

    /// open(2); `None` if the name is absent.
    async fn open(
        &self,
        name: &'static str,
        request: OpenRequest,
        create: bool,
    ) -> Result<Option<(Ino, Opened)>> {
        for again in [false, true] {
            match self.look_up(name, again).await? {
                Some(ino) => match self.vfs.open(ino, request).await {
                    Err(Errno::ESTALE) if !again => {}
                    Err(Errno::ENOENT) if !create => return Ok(None),
                    opened => return Ok(Some((ino, opened?))),
                },
                None if create => {
                    let _names = self.names.lock().await;
                    let made =
                        self.vfs.create(Ino::ROOT, name.as_bytes(), 0o644, false, request).await;
                    match made {
                        Err(Errno::ESTALE) if !again => continue,
                        made => {
                            let (entry, opened) = made?;
                            self.enter(name, &entry);
                            return Ok(Some((entry.ino, opened)));
                        }
                    }
                }
                None => return Ok(None),
            }
        }
        Err(Errno::ESTALE)
    }

    async fn content(&self, ino: Ino, opened: &Opened) -> Result<Vec<u8>> {
        if !opened.keep_cache {
            self.pages.lock().remove(&ino);
        }
        let kept = self.pages.lock().get(&ino).cloned();
        if let Some(kept) = kept.filter(|_| !opened.direct_io) {
            return Ok(kept);
        }
        let content = self.vfs.read(opened.handle, 0, 1 << 20).await?.to_vec();
        if !opened.direct_io {
            self.pages.lock().insert(ino, content.clone());
        }
        Ok(content)
    }

    async fn read(&self, name: &'static str) {
        let begun = Instant::now();
        let plain = OpenRequest::plain(Access::Read);
        let read = match self.open(name, plain, false).await {
            Ok(Some((ino, opened))) => {
                let read = self.content(ino, &opened).await;
                self.vfs.release(opened.handle);
                read.map(Some)
            }
            Ok(None) => Ok(None),
            Err(error) => Err(error),
        };
        let possible = self.server.since(name, begun);
        let readable = self.server.readable_since(name, begun);
        // A kernel walks a path twice at most, and the name may lead elsewhere each time.
        if read == Err(Errno::ESTALE) && possible.len() > 1 {
            return;
        }
        let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(
            was(&read, &readable),
            "{name} was read as {:?}, and has been {:?}",
            shown(&read),
            readable.iter().map(shown).collect::<Vec<_>>()
        );
    }

    /// Through a descriptor that truncates the file, with one write.
    async fn write(&self, name: &'static str) {
        let request = OpenRequest { truncate: true, ..OpenRequest::plain(Access::Write) };
        let begun = Instant::now();
        let opened = match self.open(name, request, true).await {
            Err(Errno::ESTALE | Errno::ENOENT)
                if self.server.since(name, begun - SENT_BACK).len() > 1 =>
            {
                return;
            }
            opened => opened,
        };
        let (ino, opened) = opened.unwrap().expect("it was made");
        self.pages.lock().remove(&ino);
        let content = Bytes::from(self.server.version());
        let number = {
            let mut written = self.server.written.lock().unwrap();
            written.push((name, content.to_vec(), None));
            written.len() - 1
        };
        self.vfs.write(opened.handle, 0, content.clone()).await.unwrap();
        self.vfs.flush(opened.handle).await.unwrap();
        self.vfs.release(opened.handle);
        self.server.written.lock().unwrap()[number].2 = Some(Instant::now());
        let begun = Instant::now();
        let seen = match self.look_up(name, false).await.unwrap() {
            Some(ino) => self.vfs.getattr(ino).await.map(|stat| stat.attr.size),
            None => Err(Errno::ENOENT),
        };
        let there = self.server.since(name, begun);
        if there == [Some(content.to_vec())] {
            assert_eq!(seen, Ok(content.len() as u64), "{name} was just written here");
        }
    }

    /// As an editor saves.
    async fn replace(&self, name: &'static str, program: usize) {
        let temporary = format!("t{}{program}", self.number);
        let content = Bytes::from(self.server.version());
        {
            let request = OpenRequest::plain(Access::Write);
            let made = {
                let _names = self.names.lock().await;
                self.vfs.create(Ino::ROOT, temporary.as_bytes(), 0o644, true, request).await
            };
            let (_, opened) = made.unwrap();
            self.vfs.write(opened.handle, 0, content).await.unwrap();
            self.vfs.flush(opened.handle).await.unwrap();
            self.vfs.release(opened.handle);
        }
        let _names = self.names.lock().await;
        let from = (Ino::ROOT, temporary.as_bytes());
        self.vfs.rename(from, (Ino::ROOT, name.as_bytes()), RenameMode::Replace).await.unwrap();
        self.dentries().remove(name);
    }

    async fn remove(&self, name: &'static str) {
        let begun = Instant::now();
        let _names = self.names.lock().await;
        let removed = self.vfs.unlink(Ino::ROOT, name.as_bytes()).await;
        self.dentries().remove(name);
        assert!(matches!(removed, Ok(()) | Err(Errno::ENOENT)), "{name}: {removed:?}");
        let was_absent = self.server.since(name, begun).contains(&None);
        assert!(was_absent, "{name} was removed, or was not there");
    }

    async fn list(&self) {
        let begun = Instant::now();
        let handle = self.vfs.opendir(Ino::ROOT).await.unwrap();
        let mut names = Names::default();
        loop {
            let at = names.1;
            self.vfs.readdir(handle, at, true, &mut names).await.unwrap();
            if names.1 == at {
                break;
            }
        }
        self.vfs.releasedir(handle);
        let listed: BTreeSet<&str> = names.0.iter().map(String::as_str).collect();
        assert_eq!(listed.len(), names.0.len(), "twice: {:?}", names.0);
        for name in NAMES {
            let been = self.server.since(name, begun);
            let possible = been.iter().any(|content| content.is_some() == listed.contains(name));
            let been: Vec<_> = been.iter().map(shown).collect();
            assert!(possible, "{name} in {listed:?}, and has been {been:?}");
        }
    }

    async fn program(&self, number: usize, seed: u64) {
        let mut dice = Dice::new(seed);
        for _ in 0..STEPS {
            match dice.below(16) {
                0..=5 => self.read(dice.pick(&NAMES)).await,
                6..=8 => self.write(dice.pick(&NAMES)).await,
                9..=10 => self.replace(dice.pick(&NAMES), number).await,
                11..=12 => self.remove(dice.pick(&NAMES)).await,
                13..=14 => self.list().await,
                _ => tokio::time::sleep(Duration::from_millis(1 + dice.below(4000))).await,
            }
        }
    }
}
