//! The lane of disks that lie: bits of the cache's files flip, mounted and not, and no reader gets
//! a wrong byte, name or attribute.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::dice::Dice;

use crate::Soak;
use crate::disturb::{Done, pause};
use crate::scene::Scene;

const LANE: &str = "flips";

/// Longest life of a mount.
const MOST_LIFE: Duration = Duration::from_secs(6);

/// Options of the mounts. Not with passthrough: the kernel reads an open file past the daemon
/// there, which compares it when it is opened (docs/cache.md).
const OPTIONS: [&str; 3] = [
    "cache=disk",
    "cache=disk,consistency=immutable,ro,passthrough=no",
    "cache=disk,ro,passthrough=no",
];

const DIRS: u64 = 6;
const FILES_PER_DIR: u64 = 12;

/// Sizes of the files: none, around a page, a chunk of the cache, and of several.
const SIZES: [u64; 8] = [0, 1, 4_095, 20_000, 131_072, 131_073, 700_000, 2_500_000];

/// When all of them were changed last.
const TIME_SECS: u64 = 1_500_000_000;

const READERS: u64 = 2;

/// Bits that flip at once, before the flipper pauses, and while nothing is mounted.
const BATCH: u64 = 3;
const UNMOUNTED_BATCH: u64 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// What the server has: sizes and keys of contents by path.
type Expected = BTreeMap<PathBuf, (u64, u64)>;

fn content(key: u64, offset: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (at.wrapping_mul(29) ^ (at >> 9) ^ key.wrapping_mul(1 + (at >> 12))) as u8;
    (offset..offset + len as u64).map(byte).collect()
}

fn make_tree(root: &Path, dice: &mut Dice) -> Expected {
    let mut expected = Expected::new();
    for dir in 0..DIRS {
        let dir = PathBuf::from(format!("dir{dir}"));
        fs::create_dir(root.join(&dir)).unwrap();
        for file in 0..FILES_PER_DIR {
            let path = dir.join(format!("file{file}"));
            let (size, key) = (dice.pick(&SIZES), dice.any());
            fs::write(root.join(&path), content(key, 0, size as usize)).unwrap();
            let time = std::time::UNIX_EPOCH + Duration::from_secs(TIME_SECS);
            let opened = File::options().write(true).open(root.join(&path)).unwrap();
            opened.set_modified(time).unwrap();
            expected.insert(path, (size, key));
        }
    }
    expected
}

/// See the [module](self).
pub fn lane(soak: &Soak) {
    let scene = Scene::new(soak, LANE);
    let mut dice = soak.dice(LANE, 0);
    let expected = make_tree(&scene.served(""), &mut dice);
    let paths: Vec<&PathBuf> = expected.keys().collect();
    let mut readers: Vec<Dice> = (0..READERS).map(|number| soak.dice("readers", number)).collect();
    let mut flips = soak.dice("flipper", 0);
    while soak.has_time(LANE) {
        if soak.damages {
            for dir in 0..DIRS {
                let path = scene.served(format!("dir{dir}/file{}", dice.below(FILES_PER_DIR)));
                fs::write(path, "another content").unwrap();
            }
        }
        let mount = scene.mount(0, dice.pick(&OPTIONS));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Done(&done);
            let done = &done;
            for dice in &mut readers {
                let reader = Reader { scene: &scene, place: mount.place(), expected: &expected };
                let paths = &paths;
                scope.spawn(move || {
                    while !done.load(Ordering::Relaxed) && !soak.tally.is_hopeless() {
                        reader.once(paths, dice);
                    }
                });
            }
            let (scene, flips) = (&scene, &mut flips);
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    flip(scene, flips, BATCH);
                    pause(PAUSE, done);
                }
            });
            pause(soak.until_end(dice.time(MOST_LIFE)), done);
        });
        scene.unmount(mount);
        flip(&scene, &mut dice, UNMOUNTED_BATCH);
    }
    scene.end();
}

/// Flips bits of files of the cache, each file as likely as any other.
fn flip(scene: &Scene, dice: &mut Dice, count: u64) {
    let mut files = Vec::new();
    collect(&scene.local("cache0"), &mut files);
    if files.is_empty() {
        return;
    }
    // The same for the same seed, as far as the cache is.
    files.sort();
    for _ in 0..count {
        // A file may have been evicted, or thrown away, since it was listed.
        if flip_one(&files[dice.below(files.len() as u64) as usize], dice).is_ok() {
            scene.soak.tally.flips.add(1);
        }
    }
}

fn flip_one(path: &Path, dice: &mut Dice) -> io::Result<()> {
    let file = File::options().read(true).write(true).open(path)?;
    let size = file.metadata()?.len();
    if size == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let at = dice.below(size);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << dice.below(8);
    file.write_all_at(&byte, at)
}

fn collect(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => collect(&entry.path(), files),
            Ok(kind) if kind.is_file() => files.push(entry.path()),
            _ => {}
        }
    }
}

/// Who reads the mount and knows what must be there.
struct Reader<'a> {
    scene: &'a Scene<'a>,
    place: &'a Path,
    expected: &'a Expected,
}

impl Reader<'_> {
    fn once(&self, paths: &[&PathBuf], dice: &mut Dice) {
        let path = dice.pick(paths);
        let outcome = match dice.below(10) {
            0 => self.list(path.parent().unwrap()),
            1 => self.stat(path),
            2..=4 => self.read(path, None, false, dice),
            _ => {
                let range = Some((dice.below(3_000_000), 1 + dice.below(200_000)));
                self.read(path, range, dice.chance(20), dice)
            }
        };
        if let Err(why) = outcome {
            self.scene.divergence(&format!("{}: {why}", path.display()));
        }
    }

    fn list(&self, dir: &Path) -> io::Result<()> {
        let tally = &self.scene.soak.tally;
        let mut names = tally.call(LANE, "readdir", || {
            fs::read_dir(self.place.join(dir))?
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<Vec<_>>>()
        })?;
        names.sort();
        let known = self.expected.keys().filter(|path| path.starts_with(dir));
        let known: Vec<_> = known.map(|path| path.file_name().unwrap()).collect();
        if names != known {
            self.scene.divergence(&format!("wrong listing of {}: {names:?}", dir.display()));
        }
        Ok(())
    }

    fn stat(&self, path: &Path) -> io::Result<()> {
        let tally = &self.scene.soak.tally;
        let meta = tally.call(LANE, "stat", || fs::symlink_metadata(self.place.join(path)))?;
        let known = (self.expected[path].0, TIME_SECS as i64, true);
        let got = (meta.len(), meta.mtime(), meta.is_file());
        if got != known {
            let text = format!("wrong attributes of {}: {got:?}, not {known:?}", path.display());
            self.scene.divergence(&text);
        }
        Ok(())
    }

    /// Reads all, or `offset` and length; some without pages of before, some past them.
    fn read(
        &self,
        path: &Path,
        range: Option<(u64, u64)>,
        direct: bool,
        dice: &mut Dice,
    ) -> io::Result<()> {
        let tally = &self.scene.soak.tally;
        let (size, key) = self.expected[path];
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let mut options = File::options();
        options.read(true).custom_flags(flags);
        let file = tally.call(LANE, "open", || options.open(self.place.join(path)))?;
        if dice.chance(70) {
            // The kernel keeps pages over opens.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let (offset, len) = range.unwrap_or((0, size + 1));
        let mut bytes = vec![0; len as usize];
        let mut read = 0;
        while read < bytes.len() {
            let count = tally
                .call(LANE, "pread", || file.read_at(&mut bytes[read..], offset + read as u64))?;
            if count == 0 {
                break;
            }
            read += count;
        }
        let left = size.saturating_sub(offset).min(len) as usize;
        let known = content(key, offset, left);
        let wrong = known.iter().zip(&bytes[..read]).filter(|(one, other)| one != other).count()
            + left.abs_diff(read);
        if wrong > 0 {
            tally.wrong_bytes.add(wrong as u64);
            let text = format!("{wrong} wrong bytes in {} from {offset}", path.display());
            self.scene.divergence(&text);
        }
        Ok(())
    }
}
