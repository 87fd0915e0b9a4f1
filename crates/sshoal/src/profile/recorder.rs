//! The daemon's side of `sshoal profile`: records requests while a profile is taken.
//!
//! Off, it costs one relaxed load for each request. On, each request takes a lock for a short time;
//! memory is bounded: if a table is full, the half of its entries that waited least is dropped, and
//! the profile says so.
//!
//! The name of a process is read when its first request arrives, since it cannot end before the
//! reply; on a thread of its own, since files of `/proc` may block their reader while a process is
//! in execve(2).

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use base::{Mutex, Name, RemotePath, printable};
use control::profile::{Entry, Profile, Share};
use fuse::Finished;

use crate::quantity::{micros, millis};

/// Maximum number of paths, of directories, and of threads that are kept. A path has up to 4 KiB,
/// and usually a hundredth of that.
const MAX_ENTRIES: usize = 4096;

/// Entries of each list that a profile has.
const SHOWN_ENTRIES: usize = 100;

/// Operations on a directory itself, and not on an entry of it.
const LISTINGS: [&str; 5] = ["OPENDIR", "READDIR", "READDIRPLUS", "RELEASEDIR", "FSYNCDIR"];

/// Records requests. See the [module](self).
#[derive(Default)]
pub struct Recorder {
    is_on: AtomicBool,
    tables: Mutex<Option<Tables>>,
}

/// A recording in progress. It ends when this is dropped.
pub struct Recording(Option<Arc<Recorder>>);

impl Drop for Recording {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Recording {
    /// Ends the recording; returns what was recorded.
    pub fn finish(mut self) -> Profile {
        self.stop().map(Tables::profile).unwrap_or_default()
    }

    /// Ends the recording once: the next one may begin before this is dropped.
    fn stop(&mut self) -> Option<Tables> {
        let recorder = self.0.take()?;
        let mut tables = recorder.tables.lock();
        recorder.is_on.store(false, Ordering::Relaxed);
        tables.take()
    }
}

impl Recorder {
    /// Begins a recording; `None` if there is one.
    pub fn start(self: &Arc<Recorder>) -> Option<Recording> {
        let mut tables = self.tables.lock();
        if tables.is_some() {
            return None;
        }
        *tables = Some(Tables::new());
        self.is_on.store(true, Ordering::Relaxed);
        Some(Recording(Some(self.clone())))
    }

    /// Whether a request of the thread `tid`, which waits for the reply, is to be recorded.
    pub fn is_on(&self, tid: u32) -> bool {
        if !self.is_on.load(Ordering::Relaxed) {
            return false;
        }
        if let Some(tables) = &mut *self.tables.lock()
            && let Some(process) = tables.new_thread(tid)
        {
            // Ends by itself; without a runtime (in tests) the name is not needed.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn_blocking(move || process.set(Process::of(tid)));
            }
        }
        true
    }

    /// Records a request. `path` is that of its inode.
    pub fn record(&self, finished: &Finished<'_>, path: Option<RemotePath>) {
        let path = match (path, finished.name.map(Name::new)) {
            (Some(dir), Some(Ok(name))) => Some(dir.join(&name)),
            (path, None) => path,
            _ => None,
        };
        let is_listing = LISTINGS.contains(&finished.operation);
        let directory = match &path {
            Some(path) if is_listing => Some(path.clone()),
            Some(path) => path.parent(),
            None => None,
        };
        if let Some(tables) = &mut *self.tables.lock() {
            tables.total.add(finished);
            tables.paths.add(path, finished);
            tables.directories.add(directory, finished);
            tables.threads.add(finished.pid, finished);
        }
    }
}

/// A process that has caused requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Process {
    pid: Option<u32>,
    name: String,
}

impl Process {
    /// The process of the thread `tid`.
    fn of(tid: u32) -> Process {
        let read = |pid: u32, file| std::fs::read(format!("/proc/{pid}/{file}")).ok();
        let status = read(tid, "status").unwrap_or_default();
        let pid = String::from_utf8_lossy(&status)
            .lines()
            .find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let comm = read(pid.unwrap_or(tid), "comm").or_else(|| read(tid, "comm"));
        let name = comm.unwrap_or_default();
        let name = name.strip_suffix(b"\n").unwrap_or(&name);
        Process { pid: pid.or(Some(tid)), name: printable(name) }
    }
}

/// Sums over requests.
#[derive(Clone, Default)]
struct Sum {
    operations: Vec<(&'static str, u64)>,
    errors: u64,
    waited: Duration,
    bytes: u64,
    requests: u64,
}

impl Sum {
    fn add(&mut self, finished: &Finished<'_>) {
        self.add_operation(finished.operation, 1);
        self.errors += u64::from(finished.failed);
        self.waited += finished.took;
        self.bytes += finished.bytes;
        self.requests += finished.requests;
    }

    fn add_operation(&mut self, name: &'static str, times: u64) {
        match self.operations.iter_mut().find(|(known, _)| *known == name) {
            Some((_, count)) => *count += times,
            None => self.operations.push((name, times)),
        }
    }

    fn merge(&mut self, other: &Sum) {
        other.operations.iter().for_each(|(name, count)| self.add_operation(name, *count));
        self.errors += other.errors;
        self.waited += other.waited;
        self.bytes += other.bytes;
        self.requests += other.requests;
    }

    fn share(&self) -> Share {
        let operations = self.operations.iter();
        Share {
            operations: operations
                .map(|(name, count)| (name.to_ascii_lowercase(), *count))
                .collect(),
            errors: self.errors,
            waited_us: micros(self.waited),
            bytes: self.bytes,
            requests: self.requests,
        }
    }
}

/// Sums by key, of a bounded number of keys.
struct Table<K> {
    sums: HashMap<K, Sum>,
    is_incomplete: bool,
}

impl<K: Eq + Hash> Table<K> {
    fn new() -> Table<K> {
        Table { sums: HashMap::new(), is_incomplete: false }
    }

    fn add(&mut self, key: K, finished: &Finished<'_>) {
        self.sums.entry(key).or_default().add(finished);
        if self.sums.len() > MAX_ENTRIES {
            self.is_incomplete = true;
            let mut sums: Vec<(K, Sum)> = self.sums.drain().collect();
            sums.sort_unstable_by_key(|(_, sum)| std::cmp::Reverse(sum.waited));
            self.sums.extend(sums.into_iter().take(MAX_ENTRIES / 2));
        }
    }
}

/// The largest of these sums, the one that waited most first.
fn largest(sums: impl Iterator<Item = (Process, Sum)>) -> Vec<Entry> {
    let mut sums: Vec<_> = sums.collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.waited));
    sums.truncate(SHOWN_ENTRIES);
    let entry = |(process, sum): (Process, Sum)| Entry {
        name: process.name,
        pid: process.pid,
        share: sum.share(),
    };
    sums.into_iter().map(entry).collect()
}

struct Tables {
    began: Instant,
    total: Sum,
    /// `None`: a file without a name.
    paths: Table<Option<RemotePath>>,
    /// `None`: that of the root, or of a file without a name.
    directories: Table<Option<RemotePath>>,
    threads: Table<u32>,
    /// The processes of the threads, set as soon as they are read.
    processes: HashMap<u32, Arc<OnceLock<Process>>>,
}

impl Tables {
    fn new() -> Tables {
        Tables {
            began: Instant::now(),
            total: Sum::default(),
            paths: Table::new(),
            directories: Table::new(),
            threads: Table::new(),
            processes: HashMap::new(),
        }
    }

    /// Enters a thread; returns the place of its process if it was not known.
    fn new_thread(&mut self, tid: u32) -> Option<Arc<OnceLock<Process>>> {
        if tid == 0 || self.processes.len() >= MAX_ENTRIES || self.processes.contains_key(&tid) {
            return None;
        }
        let process = Arc::<OnceLock<Process>>::default();
        self.processes.insert(tid, process.clone());
        Some(process)
    }

    fn profile(self) -> Profile {
        let path = |(path, sum): (Option<RemotePath>, Sum)| {
            let name = match path {
                Some(path) => format!("/{}", printable(path.as_bytes())),
                None => "(no name)".to_owned(),
            };
            (Process { pid: None, name }, sum)
        };
        let (mut processes, mut programs) =
            (HashMap::<Process, Sum>::new(), HashMap::<Process, Sum>::new());
        for (tid, sum) in &self.threads.sums {
            let known = self.processes.get(tid).and_then(|process| process.get()).cloned();
            let process = known.unwrap_or_else(|| Process {
                pid: Some(*tid).filter(|tid| *tid != 0),
                name: "(unknown)".to_owned(),
            });
            let program = Process { pid: None, ..process.clone() };
            programs.entry(program).or_default().merge(sum);
            processes.entry(process).or_default().merge(sum);
        }
        Profile {
            ms: millis(self.began.elapsed()),
            total: self.total.share(),
            is_incomplete: self.paths.is_incomplete
                || self.directories.is_incomplete
                || self.threads.is_incomplete,
            paths: largest(self.paths.sums.into_iter().map(path)),
            directories: largest(self.directories.sums.into_iter().map(path)),
            processes: largest(processes.into_iter()),
            programs: largest(programs.into_iter()),
            ..Profile::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finished<'a>(operation: &'static str, name: &'a [u8], ms: u64) -> Finished<'a> {
        Finished {
            operation,
            pid: std::process::id(),
            ino: 1,
            name: Some(name).filter(|name| !name.is_empty()),
            took: Duration::from_millis(ms),
            bytes: 3,
            requests: 2,
            failed: operation == "UNLINK",
        }
    }

    fn path(text: &str) -> Option<RemotePath> {
        let names = text.split('/').filter(|name| !name.is_empty());
        Some(
            names.fold(RemotePath::root(), |path, name| {
                path.join(&Name::new(name.as_bytes()).unwrap())
            }),
        )
    }

    #[tokio::test]
    async fn requests_are_summed_by_path_directory_and_process() {
        let recorder = Arc::<Recorder>::default();
        let pid = std::process::id();
        assert!(!recorder.is_on(pid));
        let recording = recorder.start().unwrap();
        assert!(recorder.start().is_none(), "one at a time");
        assert!(recorder.is_on(pid) && recorder.is_on(0));
        let place = recorder.tables.lock().as_ref().unwrap().processes[&pid].clone();
        while place.get().is_none() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        recorder.record(&finished("LOOKUP", b"f", 5), path("a/b"));
        recorder.record(&finished("READ", b"", 7), path("a/b/f"));
        recorder.record(&finished("READDIR", b"", 1), path("a/b"));
        recorder.record(&finished("UNLINK", b"\x1b[2J", 2), path(""));
        recorder.record(&Finished { pid: 0, ..finished("READ", b"", 1) }, None);
        let profile = recording.finish();
        assert!(!recorder.is_on(pid));
        let names = |entries: &[Entry]| -> Vec<String> {
            entries.iter().map(|entry| entry.name.clone()).collect()
        };
        assert_eq!(profile.paths[0].name, "/a/b/f");
        assert_eq!(profile.paths[0].share.count(), 2);
        assert_eq!(profile.paths[0].share.waited_us, 12_000);
        assert!(names(&profile.paths).contains(&"/\\u{1b}[2J".to_owned()), "{profile:?}");
        assert!(names(&profile.paths).contains(&"(no name)".to_owned()));
        assert_eq!(
            (profile.directories[0].name.as_str(), profile.directories[0].share.count()),
            ("/a/b", 3)
        );
        assert_eq!((profile.processes[0].pid, profile.processes[0].share.count()), (Some(pid), 4));
        assert_eq!(profile.processes[0].name, Process::of(pid).name);
        assert_eq!((profile.programs.len(), profile.programs[0].share.count()), (2, 4));
        assert_eq!(
            (profile.processes[1].pid, profile.processes[1].name.as_str()),
            (None, "(unknown)")
        );
        assert_eq!(
            (profile.total.requests, profile.total.errors, profile.total.bytes),
            (10, 1, 15)
        );
        assert!(!profile.is_incomplete);
        assert!(recorder.start().is_some());
    }

    #[test]
    fn the_end_of_a_recording_leaves_the_next_one_alone() {
        let recorder = Arc::<Recorder>::default();
        let mut first = recorder.start().unwrap();
        assert!(first.stop().is_some());
        assert!(!recorder.is_on(0));
        let second = recorder.start().unwrap();
        drop(first);
        assert!(recorder.is_on(0));
        recorder.record(&finished("READ", b"f", 1), path(""));
        assert_eq!(second.finish().total.count(), 1);
    }

    #[test]
    fn memory_is_bounded_and_the_largest_stay() {
        let recorder = Arc::<Recorder>::default();
        let recording = recorder.start().unwrap();
        for number in 0..3 * MAX_ENTRIES {
            let name = format!("small{number}");
            recorder.record(&finished("LOOKUP", name.as_bytes(), 1), path(""));
            recorder.record(&finished("READ", b"large", 100), path(""));
        }
        let kept = recorder.tables.lock().as_ref().unwrap().paths.sums.len();
        assert!(kept <= MAX_ENTRIES, "{kept}");
        let profile = recording.finish();
        assert!(profile.is_incomplete);
        assert_eq!(
            (profile.paths.len(), profile.paths[0].name.as_str()),
            (SHOWN_ENTRIES, "/large")
        );
        assert_eq!(profile.paths[0].share.operations["read"], 3 * MAX_ENTRIES as u64);
        assert_eq!(profile.total.count(), 6 * MAX_ENTRIES as u64);
    }
}
