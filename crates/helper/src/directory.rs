//! Listings: batches of names with their attributes, and each as a line of `ls -l`.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::thread;

use bytes::Bytes;
use rustix::fs::{Dir, FileType};
use rustix::io::Errno;
use sftp::NameEntry;
use sftp::codec::{ExactAttrs, FileAttrs};

use crate::attributes::of_entry;
use crate::paths::Paths;
use crate::status::{Failure, Result};

/// Bytes of a reply after which no further entry is added.
const REPLY_BYTES: usize = 32 << 10;

/// Bytes of an entry beside its name: attributes with all fields, and lengths.
const ENTRY_BYTES: usize = 180;

/// Bytes of a line of `ls -l` beside the name.
const LINE_BYTES: usize = 80;

/// Threads that query the entries of a reply together. The first one is cheap where the kernel
/// knows the attributes; a network file system takes a round trip or more for each entry.
const LOCAL_THREADS: usize = 2;
const REMOTE_THREADS: usize = 8;

/// The fewest entries that are worth a thread.
const LOCAL_SHARE: usize = 50;
const REMOTE_SHARE: usize = 4;

/// What a line of `ls -l` contains beside the attributes of the protocol.
const LINE_FIELDS: u32 = ExactAttrs::MTIME | ExactAttrs::LINKS;

/// The state of a listing.
#[derive(Debug)]
pub(crate) struct Listing {
    dir: Dir,
    /// Set at the end of the directory, or by an error that ends the listing.
    end: Option<Failure>,
    owners: Owners,
    is_local: bool,
    /// Its parent is outside of what the client sees.
    is_root: bool,
}

impl Listing {
    /// A listing of a directory, which may be on the local file system, or the client's root.
    pub(crate) fn new(dir: OwnedFd, is_local: bool, is_root: bool) -> Result<Listing> {
        let dir = Dir::new(dir)?;
        Ok(Listing { dir, end: None, owners: Owners::default(), is_local, is_root })
    }

    /// The next entries, `.` and `..` included, with these fields of `attrs@sshoal`. With any of
    /// these, the client is a program, and gets no lines of `ls -l`.
    pub(crate) fn next(&mut self, fields: u32, paths: &Paths) -> Result<Vec<NameEntry>> {
        loop {
            let names = self.names(fields);
            let shown = if fields == 0 { LINE_FIELDS } else { fields };
            let attrs = self.attributes(&names, shown, paths)?;
            let named = names.into_iter().zip(attrs);
            let entries: Vec<_> =
                named.filter_map(|(name, attrs)| self.entry(name, attrs, fields)).collect();
            // The entries before an error are returned; the next request returns it.
            match &self.end {
                _ if !entries.is_empty() => return Ok(entries),
                Some(end) => return Err(end.clone()),
                // All of them were removed meanwhile.
                None => (),
            }
        }
    }

    /// The next names, as many as fit into a reply.
    fn names(&mut self, fields: u32) -> Vec<Bytes> {
        let mut names = Vec::new();
        let mut len = 0;
        while self.end.is_none() && len < REPLY_BYTES {
            match self.dir.read() {
                None => self.end = Some(Failure::End),
                Some(Ok(found)) => {
                    let name = found.file_name().to_bytes();
                    len += ENTRY_BYTES + name.len();
                    len += if fields == 0 { LINE_BYTES + name.len() } else { 0 };
                    names.push(Bytes::copy_from_slice(name));
                }
                Some(Err(errno)) => self.end = Some(errno.into()),
            }
        }
        names
    }

    /// The attributes of the entries of these names.
    fn attributes(
        &self,
        names: &[Bytes],
        fields: u32,
        paths: &Paths,
    ) -> Result<Vec<rustix::io::Result<FileAttrs>>> {
        let dir = self.dir.fd()?;
        // Nearly all entries are on one device.
        let first = OnceLock::new();
        let numbers = |device| {
            let of_device = || paths.numbers(device, dir);
            let (first, numbers) = *first.get_or_init(|| (device, of_device()));
            if device == first { numbers } else { of_device() }
        };
        Ok(query_entries(names, self.is_local, |name| {
            let shown = if self.is_root && name == b".." { b"." } else { name };
            of_entry(dir, shown, fields, self.is_local, numbers)
        }))
    }

    /// The entry; `None` if it was removed meanwhile. One whose attributes cannot be read is listed
    /// without any, so that the client does not take it to be absent.
    fn entry(
        &mut self,
        name: Bytes,
        attrs: rustix::io::Result<FileAttrs>,
        fields: u32,
    ) -> Option<NameEntry> {
        let (longname, attrs) = match attrs {
            Ok(attrs) if fields == 0 => {
                let line = self.owners.line(&name, &attrs);
                (line.into(), FileAttrs { exact: ExactAttrs::default(), ..attrs })
            }
            Ok(attrs) => (Bytes::new(), attrs),
            Err(Errno::NOENT) => return None,
            Err(_) => (name.clone(), FileAttrs::default()),
        };
        Some(NameEntry { name, longname, attrs })
    }
}

/// The results of a `query` for each of these entries of a directory, in the same order. Several
/// threads share the work where that is faster.
pub(crate) fn query_entries<T: Send>(
    names: &[Bytes],
    is_local: bool,
    query: impl Fn(&[u8]) -> T + Sync,
) -> Vec<T> {
    let (threads, share) = match is_local {
        true => (LOCAL_THREADS, LOCAL_SHARE),
        false => (REMOTE_THREADS, REMOTE_SHARE),
    };
    let share = names.len().div_ceil(threads).max(share);
    let query = |names: &[Bytes]| names.iter().map(|name| query(name)).collect::<Vec<_>>();
    let query = &query;
    thread::scope(|scope| {
        let (own, others) = names.split_at(share.min(names.len()));
        let start = |names| thread::Builder::new().spawn_scoped(scope, move || query(names));
        let others: Vec<_> = others.chunks(share).map(|names| (names, start(names))).collect();
        let mut results = query(own);
        for (names, thread) in others {
            results.extend(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // There are no further threads.
                Err(_) => query(names),
            });
        }
        results
    })
}

/// Names of users and groups that were looked up.
#[derive(Debug, Default)]
struct Owners {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl Owners {
    /// The entry as `ls -l` shows it. Times are in UTC.
    fn line(&mut self, name: &[u8], attrs: &FileAttrs) -> Vec<u8> {
        let FileAttrs { size, owner, permissions, times, exact } = *attrs;
        let (uid, gid) = owner.map_or((0, 0), |owner| (owner.uid, owner.gid));
        let user = self.users.entry(uid).or_insert_with(|| user_name(uid));
        let group = self.groups.entry(gid).or_insert_with(|| group_name(gid));
        let whole = times.map_or(0, |times| times.mtime.into());
        let line = format!(
            "{} {:>4} {user:<8} {group:<8} {:>8} {} ",
            mode(permissions.unwrap_or(0)),
            exact.links.unwrap_or(1),
            size.unwrap_or(0),
            date(exact.mtime.map_or(whole, |mtime| mtime.secs)),
        );
        [line.as_bytes(), name].concat()
    }
}

/// The name of a user; its number if it has none.
pub(crate) fn user_name(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

/// The name of a group; its number if it has none.
pub(crate) fn group_name(gid: u32) -> String {
    let group = nix::unistd::Group::from_gid(gid.into()).ok().flatten();
    group.map_or_else(|| gid.to_string(), |group| group.name)
}

/// `drwxr-xr-x`
fn mode(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode as _) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharacterDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// `2023-05-09 14:30`
fn date(secs: i64) -> String {
    let (days, of_day) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}", of_day / 3600, of_day / 60 % 60)
}

/// The date of a number of days since 1970-01-01, in the Gregorian calendar. Years begin in March,
/// so that the day that may be missing is the last one.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    let days = days + 719_468;
    let era = days.div_euclid(DAYS_OF_400_YEARS);
    let of_era = days.rem_euclid(DAYS_OF_400_YEARS);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use base::Timestamp;
    use sftp::codec::Owner;

    use super::*;

    #[test]
    fn entries_of_other_machines_are_queried_together() {
        let name = |number: usize| Bytes::from(number.to_string());
        for entries in [0, 1, REMOTE_SHARE, 8 * REMOTE_SHARE, 1000] {
            let names: Vec<_> = (0..entries).map(name).collect();
            let results = query_entries(&names, false, <[u8]>::to_vec);
            assert!(results == names, "{entries}: {results:?}");
        }
        // Each query waits for those of the other threads.
        let together = Barrier::new(REMOTE_THREADS);
        let names: Vec<_> = (0..REMOTE_THREADS * REMOTE_SHARE).map(name).collect();
        query_entries(&names, false, |_| together.wait());
    }

    #[test]
    fn an_entry_is_shown_as_ls_does() {
        assert_eq!(mode(0o040_755), "drwxr-xr-x");
        assert_eq!(mode(0o100_644), "-rw-r--r--");
        assert_eq!(mode(0o104_711), "-rws--x--x");
        assert_eq!(mode(0o041_776), "drwxrwxrwT");
        assert_eq!(mode(0o120_777), "lrwxrwxrwx");
        let attrs = FileAttrs {
            size: Some(1234),
            // No user and no group.
            owner: Some(Owner { uid: u32::MAX - 7, gid: u32::MAX - 8 }),
            permissions: Some(0o100_644),
            times: None,
            exact: ExactAttrs {
                links: Some(2),
                mtime: Some(Timestamp { secs: -1, nanos: 0 }),
                ..ExactAttrs::default()
            },
        };
        let line = Owners::default().line(b"name", &attrs);
        let shown = "-rw-r--r--    2 4294967288 4294967287     1234 1969-12-31 23:59 name";
        assert_eq!(String::from_utf8(line).unwrap(), shown);
        for (secs, shown) in [
            (0, "1970-01-01 00:00"),
            (951_782_399, "2000-02-28 23:59"),
            (951_782_400, "2000-02-29 00:00"),
            (1_700_000_000, "2023-11-14 22:13"),
            (-1, "1969-12-31 23:59"),
            (4_102_444_800, "2100-01-01 00:00"),
        ] {
            assert_eq!(date(secs), shown);
        }
    }
}
