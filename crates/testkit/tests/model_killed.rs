//! The model's verdict on a killed subject: a local directory that behaves like a file system with
//! write-behind, which loses some writes when it is killed.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use base::{Access, Create, Errno, OpenFlags, Result};
use testkit::model::{DirSubject, Lists, Op, Wrapper, check_until_killed};

/// The effect of a kill.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kill {
    /// The operation in flight is not executed.
    Before,
    /// It is executed, and the caller gets no result.
    After,
}

/// A directory that is killed at one of its operations.
struct Mortal<'a> {
    inner: DirSubject,
    left: usize,
    kill: Kill,
    is_killed: &'a Cell<bool>,
}

impl Wrapper for Mortal<'_> {
    type Inner = DirSubject;

    fn inner(&self) -> &DirSubject {
        &self.inner
    }

    fn call<T>(
        &mut self,
        _: &'static str,
        act: impl FnOnce(&mut DirSubject) -> Result<T>,
    ) -> Result<T> {
        if self.is_killed.get() {
            return Err(Errno::ENOTCONN);
        }
        let Some(left) = self.left.checked_sub(1) else {
            self.is_killed.set(true);
            if self.kill == Kill::After {
                let _ = act(&mut self.inner);
            }
            return Err(Errno::ECONNABORTED);
        };
        self.left = left;
        act(&mut self.inner)
    }
}

/// A file system without write-behind loses nothing, wherever it is killed.
#[test]
fn acknowledged_writes_survive_any_kill() {
    let mut lists = Lists::any(24, 60);
    let mut kills = 0;
    for number in 0..300 {
        let dir = tempfile::tempdir().unwrap();
        let ops = lists.next();
        let is_killed = Cell::new(false);
        let kill = if number % 2 == 0 { Kill::Before } else { Kill::After };
        let inner = DirSubject::existing(dir.path(), true);
        let mut subject = Mortal { inner, left: number % 50, kill, is_killed: &is_killed };
        let aftermath = check_until_killed(&ops, &mut subject, || is_killed.get())
            .unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(aftermath.was_killed(), is_killed.get());
        kills += u32::from(is_killed.get());
        let mut found = DirSubject::existing(dir.path(), true);
        aftermath
            .inspect("afterwards", &mut found)
            .unwrap_or_else(|why| panic!("{why}\n{kill:?} in {ops:#?}"));
    }
    assert!(kills > 150, "{kills}");
}

const FILE: &str = "a";

fn write(offset: u64, len: usize, fill: u8) -> Op {
    Op::Pwrite { fd: 0, offset, len, fill }
}

fn open() -> Op {
    let flags = OpenFlags {
        access: Access::ReadWrite,
        create: Create::IfAbsent(0o644),
        truncate: false,
        append: false,
    };
    Op::Open { fd: 0, path: FILE, flags }
}

/// The model's verdict when `ops` were executed, the next one killed the file system, and `behind`
/// changed the rest out of band.
fn after(ops: &[Op], behind: impl FnOnce(&Path)) -> std::result::Result<(), u64> {
    let dir = tempfile::tempdir().unwrap();
    let is_killed = Cell::new(false);
    let inner = DirSubject::existing(dir.path(), true);
    let mut subject = Mortal { inner, left: ops.len(), kill: Kill::Before, is_killed: &is_killed };
    let ops = [ops, &[Op::Fsync { fd: 0 }]].concat();
    let aftermath = check_until_killed(&ops, &mut subject, || is_killed.get()).unwrap();
    assert!(aftermath.was_killed());
    behind(&dir.path().join(FILE));
    let mut found = DirSubject::existing(dir.path(), true);
    aftermath.inspect("afterwards", &mut found).map_err(|loss| loss.bytes)
}

fn overwrite(path: &Path, at: usize, byte: u8) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] = byte;
    fs::write(path, bytes).unwrap();
}

#[test]
fn unsynced_writes_may_be_lost_in_part() {
    let ops = [open(), write(0, 1000, 1), Op::Fsync { fd: 0 }, write(500, 1000, 2)];
    assert_eq!(after(&ops, |_| {}), Ok(()));
    // The second write is lost, wholly or partly.
    let cut = |size| {
        move |path: &Path| {
            fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap()
        }
    };
    assert_eq!(after(&ops, cut(1000)), Ok(()), "its end");
    let old: Vec<u8> =
        (0..1000usize).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ 1) as u8 | 1).collect();
    assert_eq!(after(&ops, |path| fs::write(path, &old).unwrap()), Ok(()), "all of it");
    assert_eq!(after(&ops, |path| overwrite(path, 1200, 0)), Ok(()), "a hole");
}

#[test]
fn synced_or_closed_writes_must_not_be_lost() {
    let synced = [open(), write(0, 1000, 1), Op::Fsync { fd: 0 }, write(500, 1000, 2)];
    let cut = |size| {
        move |path: &Path| {
            fs::File::options().write(true).open(path).unwrap().set_len(size).unwrap()
        }
    };
    assert_eq!(after(&synced, cut(999)), Err(1));
    assert_eq!(after(&synced, |path| overwrite(path, 17, 0)), Err(1));
    assert_eq!(
        after(&synced, |path| overwrite(path, 700, 0)),
        Err(1),
        "neither the old nor the new"
    );
    assert_eq!(after(&synced, |path| fs::remove_file(path).unwrap()), Err(0), "its name");
    let closed = [open(), write(0, 1000, 1), Op::Close { fd: 0 }, open(), write(2000, 10, 3)];
    assert_eq!(after(&closed, cut(1000)), Ok(()));
    assert_eq!(after(&closed, cut(990)), Err(10));
    assert_eq!(after(&closed, |path| overwrite(path, 1500, 7)), Err(1), "nobody wrote that");
}

/// A copy from behind the end of a file writes nothing, and so loses nothing.
#[test]
fn a_file_does_not_grow_to_the_offset_of_an_empty_write() {
    let copy = Op::CopyRange { from: 0, from_offset: 5000, to: 0, to_offset: 4097, len: 10 };
    let Op::Open { path, flags, .. } = open() else { unreachable!() };
    let unsynced = Op::Pwrite { fd: 1, offset: 0, len: 10, fill: 1 };
    let ops = [open(), Op::Open { fd: 1, path, flags }, unsynced, copy, Op::Close { fd: 0 }];
    assert_eq!(after(&ops, |_| {}), Ok(()));
}

/// A failure before the kill is not excused by it.
#[test]
fn an_error_without_a_kill_is_a_divergence() {
    let dir = tempfile::tempdir().unwrap();
    let is_killed = Cell::new(false);
    let inner = DirSubject::existing(dir.path(), true);
    let mut subject = Mortal { inner, left: 1, kill: Kill::Before, is_killed: &is_killed };
    let ops = [open(), write(0, 10, 1)];
    assert!(check_until_killed(&ops, &mut subject, || false).is_err());
}
