//! The lane of two clients, whose server has a small disk: each has a tree of its own, and both
//! share files ([`shared`](crate::shared)).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use testkit::model::Lists;

use crate::Soak;
use crate::callers::kill_callers;
use crate::disturb::{Done, Target, pause};
use crate::ledger::close;
use crate::mount::Mount;
use crate::process::run_within;
use crate::scene::Scene;
use crate::shared::Shared;
use crate::worker::{MOST_OPS, Worker};
use crate::world::program;

const LANE: &str = "pair";

const CLIENTS: usize = 2;

/// How long the mounts are kept.
const ROUND: Duration = Duration::from_secs(25);

/// What makes an open after a close read what was closed (C1), with and without the other modes.
const OPTIONS: [&str; 3] =
    ["open_revalidate=0", "open_revalidate=0,cache=disk", "consistency=strict"];

/// The server's disk.
const DISK_BYTES: u64 = 512 << 20;

/// What is left of it while it is full, and what each client writes then.
const ROOM_BYTES: u64 = 1 << 20;
const FULL_BYTES: usize = 2 << 20;
const BLOCK_BYTES: usize = 64 << 10;

/// How long a disk may take to have room again.
const ROOM_WITHIN: Duration = Duration::from_secs(10);

/// How long what is written may be on its way when the links are well again.
const WRITTEN_WITHIN: Duration = Duration::from_secs(60);

/// See the [module](self).
pub fn lane(soak: &Soak) {
    let scene = Scene::with_disk(soak, LANE, CLIENTS, DISK_BYTES);
    let mut dice = soak.dice(LANE, 0);
    let mut outages = soak.dice("pair outages", 0);
    let mut callers = soak.dice("pair callers", 0);
    let worker = |number| {
        let seed = soak.dice(LANE, 1 + number).any();
        Worker::new(LANE, &soak.tally, number, Lists::by_one_name(seed, MOST_OPS), false)
    };
    let mut clients: Vec<_> = (0..CLIENTS as u64)
        .map(|number| (number, worker(number), soak.dice("shared", number)))
        .collect();
    let shared = Shared::of_clients(LANE, &soak.tally, CLIENTS as u64);
    while soak.has_time(LANE) {
        let options = dice.pick(&OPTIONS);
        let mounts: Vec<Mount> = (0..CLIENTS).map(|client| scene.mount(client, options)).collect();
        let served = scene.served("");
        shared.prepare(&served);
        let done = AtomicBool::new(false);
        let calm = &RwLock::new(());
        let until = Instant::now() + soak.until_end(ROUND);
        std::thread::scope(|scope| {
            let _ends = Done(&done);
            let (done, served, shared) = (&done, &served, &shared);
            for ((number, worker, dice), mount) in clients.iter_mut().zip(&mounts) {
                let goes_on = || !done.load(Ordering::Relaxed) && !soak.tally.is_hopeless();
                let place = mount.place();
                scope.spawn(move || {
                    while goes_on() {
                        worker.list(place, served, &|| false);
                    }
                });
                scope.spawn(move || {
                    while goes_on() {
                        shared.once(*number, place, calm, dice);
                    }
                });
            }
            let (mount, callers) = (&mounts[0], &mut callers);
            scope.spawn(|| kill_callers(&soak.tally, LANE, mount, "callers", callers, done));
            let target =
                Target { links: scene.links(), sshd: scene.sshd(), tally: &soak.tally, calm };
            let outages = &mut outages;
            scope.spawn(move || target.disturb(outages, done));
            pause(until.saturating_duration_since(Instant::now()), done);
        });
        if soak.damages {
            shared.damage(&served);
        }
        shared.inspect(&served);
        // What a caller that was killed has written is still on its way, and would be refused.
        mounts.iter().for_each(|mount| wait_written(&scene, mount));
        fill_up(&scene, &mounts);
        for mount in mounts {
            scene.unmount(mount);
        }
        let _ = fs::remove_dir_all(served.join("callers"));
    }
    scene.end();
}

/// Fills the server's disk up while both clients write; each of them learns of it by ENOSPC, what
/// `fsync` has acknowledged is there, and the same open file goes on when there is room again.
fn fill_up(scene: &Scene, mounts: &[Mount]) {
    let filler = scene.served("filler");
    let free = free_bytes(scene);
    if free <= ROOM_BYTES {
        scene.divergence("the disk is full without a filler");
        return;
    }
    let file = File::create(&filler).unwrap();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, free - ROOM_BYTES)
        .unwrap();
    drop(file);
    scene.soak.tally.full_disks.add(1);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (mounts.iter().zip(0..))
            .map(|(mount, number)| {
                let name = PathBuf::from(format!("full{number}"));
                scope.spawn(move || Writer::begin(scene, mount, name))
            })
            .collect();
        let writers: Vec<Writer> =
            writers.into_iter().filter_map(|writer| writer.join().unwrap()).collect();
        if writers.iter().all(|writer| writer.errors == 0) {
            scene.divergence("no client was refused with ENOSPC");
        }
        fs::remove_file(&filler).unwrap();
        // The last user of the file frees its blocks, which may be a process that is just starting.
        let deadline = Instant::now() + ROOM_WITHIN;
        while free_bytes(scene) < free / 2 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for writer in writers {
            scope.spawn(move || writer.finish());
        }
    });
}

/// Returns when nothing that was written through the mount is on its way.
fn wait_written(scene: &Scene, mount: &Mount) {
    let deadline = Instant::now() + WRITTEN_WITHIN;
    while unwritten_bytes(mount) != Some(0) {
        if Instant::now() > deadline {
            scene.divergence("something stays unwritten");
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Bytes that are not at the server yet; `None` if the daemon does not say.
fn unwritten_bytes(mount: &Mount) -> Option<u64> {
    let status =
        run_within(WRITTEN_WITHIN, program().args(["status", "--json"]).arg(mount.place()));
    let status: serde_json::Value = serde_json::from_str(&status.stdout).ok()?;
    status["mounts"][0]["status"]["unwritten"]["bytes"].as_u64()
}

/// What is free of the server's disk.
fn free_bytes(scene: &Scene) -> u64 {
    let stat = rustix::fs::statvfs(scene.served("").as_path()).unwrap();
    stat.f_bavail * stat.f_frsize
}

/// A client that writes while there is no room.
struct Writer<'a> {
    scene: &'a Scene<'a>,
    file: File,
    name: PathBuf,
    content: Vec<u8>,
    synced: usize,
    errors: u32,
}

impl<'a> Writer<'a> {
    fn begin(scene: &'a Scene, mount: &Mount, name: PathBuf) -> Option<Writer<'a>> {
        let tally = &scene.soak.tally;
        let file = match tally.call(LANE, "create", || File::create(mount.at(&name))) {
            Ok(file) => file,
            Err(error) if is_full(&error) => return None,
            Err(error) => {
                scene.divergence(&format!("create on a full disk: {error}"));
                return None;
            }
        };
        let content = (0..FULL_BYTES).map(|at| ((at * 7) ^ (at >> 8)) as u8 | 1).collect();
        let mut writer = Writer { scene, file, name, content, synced: 0, errors: 0 };
        for at in (0..FULL_BYTES).step_by(BLOCK_BYTES) {
            let block = &writer.content[at..at + BLOCK_BYTES];
            let written = tally.call(LANE, "pwrite", || writer.file.write_all_at(block, at as u64));
            // Also after a refused write: what went wrong is reported before there is room again.
            let synced = tally.call(LANE, "fsync", || writer.file.sync_all());
            let outcomes = format!("write {written:?}, fsync {synced:?}");
            match written.and(synced) {
                Ok(()) if writer.errors == 0 => writer.synced = at + BLOCK_BYTES,
                Ok(()) => {}
                Err(error) if is_full(&error) => writer.errors += 1,
                Err(error) => {
                    let free = free_bytes(scene);
                    let text = format!("write to a full disk ({free} bytes are free): {error}");
                    scene.divergence(&format!("{text} ({outcomes})"));
                    writer.errors += 1;
                }
            }
        }
        writer.inspect("while the disk is full", writer.synced);
        Some(writer)
    }

    /// There is room again: what was refused is written once more.
    fn finish(self) {
        let (tally, rest) = (&self.scene.soak.tally, &self.content[self.synced..]);
        let written =
            tally.call(LANE, "pwrite", || self.file.write_all_at(rest, self.synced as u64));
        if let Err(error) = written.and_then(|()| self.file.sync_all()) {
            let free = free_bytes(self.scene);
            self.scene.divergence(&format!(
                "write when there is room again ({free} bytes are free): {error}"
            ));
            return;
        }
        self.inspect("when there is room again", self.content.len());
        if let Err(error) = close(self.file) {
            self.scene.divergence(&format!("close when there is room again: {error}"));
        }
        let _ = fs::remove_file(self.scene.served(&self.name));
    }

    fn inspect(&self, when: &str, synced: usize) {
        let found = fs::read(self.scene.served(&self.name)).unwrap_or_default();
        let pairs = self.content[..synced].iter().zip(&found);
        let right = pairs.filter(|(one, other)| one == other).count();
        if right < synced {
            self.scene.soak.tally.lost_bytes.add((synced - right) as u64);
            self.scene.divergence(&format!("{when}: {} synced bytes are lost", synced - right));
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOSPC)
}
