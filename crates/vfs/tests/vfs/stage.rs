//! What several tests share: a mount over a faulty remote in memory, and its listings.

use std::sync::Arc;

use base::FileKind;
use testkit::{FaultyRemote, MemRemote};
use vfs::{Config, Entry, EntrySink, Ino, Invalidate, ListedEntry, Vfs};

/// A mount, and what is below it.
pub(crate) struct Mount {
    pub(crate) remote: Arc<MemRemote>,
    pub(crate) faulty: Arc<FaultyRemote<MemRemote>>,
    pub(crate) vfs: Vfs,
}

/// A mount of an empty remote.
pub(crate) fn mounted(config: Config) -> Mount {
    let remote = Arc::new(MemRemote::new());
    let faulty = Arc::new(FaultyRemote::new(remote.clone()));
    let vfs = Vfs::new(faulty.clone(), config);
    Mount { remote, faulty, vfs }
}

/// A mount with a kernel's caches.
pub(crate) struct KernelMount<K> {
    pub(crate) remote: Arc<MemRemote>,
    pub(crate) faulty: Arc<FaultyRemote<MemRemote>>,
    pub(crate) kernel: Arc<K>,
    pub(crate) vfs: Vfs,
}

impl<K: Invalidate + Default + 'static> KernelMount<K> {
    pub(crate) fn new(remote: MemRemote, config: Config) -> KernelMount<K> {
        let remote = Arc::new(remote);
        let faulty = Arc::new(FaultyRemote::new(remote.clone()));
        let vfs = Vfs::new(faulty.clone(), config);
        let kernel = Arc::<K>::default();
        vfs.set_invalidate(kernel.clone());
        KernelMount { remote, faulty, kernel, vfs }
    }
}

/// The entries that a listing has shown.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) entries: Vec<(Vec<u8>, FileKind, Option<Entry>)>,
    pub(crate) next: u64,
}

impl EntrySink for Names {
    fn has_room(&self, _: &[u8]) -> bool {
        true
    }
    fn push(&mut self, entry: ListedEntry<'_>) {
        if entry.name != b"." && entry.name != b".." {
            let kind = entry.kind.expect("an entry with attributes");
            self.entries.push((entry.name.to_vec(), kind, entry.entry));
        }
        self.next = entry.next_offset;
    }
}

/// The entries of a directory, without `.` and `..`; with `plus`, with their attributes.
pub(crate) async fn list(
    vfs: &Vfs,
    dir: Ino,
    plus: bool,
) -> Vec<(Vec<u8>, FileKind, Option<Entry>)> {
    let handle = vfs.opendir(dir).await.unwrap();
    let mut names = Names::default();
    loop {
        let before = names.next;
        vfs.readdir(handle, before, plus, &mut names).await.unwrap();
        if names.next == before {
            break;
        }
    }
    vfs.releasedir(handle);
    names.entries
}
