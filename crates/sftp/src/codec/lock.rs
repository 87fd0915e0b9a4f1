//! The bodies of `lock@sshoal` (`docs/protocol.md`).

use base::{LockFamily, LockKind, LockOwner, LockRange};
use bytes::{BufMut, BytesMut};

use super::wire::{Field, Fields, Malformed};

const SET: u8 = 1;
const TEST: u8 = 2;
const CANCEL: u8 = 3;
const LEASE: u8 = 4;

/// What a request does with the locks of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockRequest {
    /// Sets a lock, or removes what is locked in the range.
    Set {
        /// The owner of the lock.
        owner: LockOwner,
        /// The locked bytes.
        range: LockRange,
        /// The lock; `None` removes it.
        kind: Option<LockKind>,
        /// How long the server may wait for the lock, in milliseconds.
        wait_ms: u32,
    },
    /// Searches a lock of another owner that excludes this one.
    Test {
        /// The owner of the lock.
        owner: LockOwner,
        /// The bytes to lock.
        range: LockRange,
        /// The lock.
        kind: LockKind,
    },
    /// Undoes an earlier request to set a lock, which may wait or have been answered.
    Cancel {
        /// Its request id.
        id: u32,
    },
    /// From now on the server ends the session if it holds locks and gets no request for this time.
    /// The handle is not used.
    Lease {
        /// Zero: never.
        seconds: u32,
    },
}

fn kind_number(kind: Option<LockKind>) -> u8 {
    match kind {
        None => 0,
        Some(LockKind::Read) => 1,
        Some(LockKind::Write) => 2,
    }
}

fn decode_kind(number: u8) -> Result<Option<LockKind>, Malformed> {
    match number {
        0 => Ok(None),
        1 => Ok(Some(LockKind::Read)),
        2 => Ok(Some(LockKind::Write)),
        _ => Err(Malformed::BadValue("an unknown kind of lock")),
    }
}

fn decode_range(f: &mut Fields<'_>) -> Result<LockRange, Malformed> {
    let range = LockRange::new(f.u64()?, f.u64()?);
    range.ok_or(Malformed::BadValue("an empty range of a lock"))
}

impl LockRequest {
    pub(super) fn operation(&self) -> u8 {
        match self {
            LockRequest::Set { .. } => SET,
            LockRequest::Test { .. } => TEST,
            LockRequest::Cancel { .. } => CANCEL,
            LockRequest::Lease { .. } => LEASE,
        }
    }

    /// Appends the fields behind the handle.
    pub(super) fn encode(&self, out: &mut BytesMut) {
        let (owner, range, kind) = match self {
            LockRequest::Set { owner, range, kind, .. } => (owner, range, *kind),
            LockRequest::Test { owner, range, kind } => (owner, range, Some(*kind)),
            LockRequest::Cancel { id } => return out.put_u32(*id),
            LockRequest::Lease { seconds } => return out.put_u32(*seconds),
        };
        out.put_u8(match owner.family {
            LockFamily::Posix => 1,
            LockFamily::Flock => 2,
        });
        out.put_u64(owner.number);
        out.put_u8(kind_number(kind));
        out.put_u64(range.start());
        out.put_u64(range.last());
        if let LockRequest::Set { wait_ms, .. } = self {
            out.put_u32(*wait_ms);
        }
    }

    /// Decodes the fields behind the handle.
    pub(super) fn decode(operation: u8, f: &mut Fields<'_>) -> Result<LockRequest, Malformed> {
        match operation {
            SET | TEST => {}
            CANCEL => return Ok(LockRequest::Cancel { id: f.u32()? }),
            LEASE => return Ok(LockRequest::Lease { seconds: f.u32()? }),
            _ => return Err(Malformed::BadValue("an unknown operation on a lock")),
        }
        let family = match f.u8()? {
            1 => LockFamily::Posix,
            2 => LockFamily::Flock,
            _ => return Err(Malformed::BadValue("an unknown family of locks")),
        };
        let owner = LockOwner { family, number: f.u64()? };
        let kind = decode_kind(f.u8()?)?;
        let range = decode_range(f)?;
        if operation == SET {
            return Ok(LockRequest::Set { owner, range, kind, wait_ms: f.u32()? });
        }
        let kind = kind.ok_or(Malformed::BadValue("a test for no lock"))?;
        Ok(LockRequest::Test { owner, range, kind })
    }
}

/// The reply to [`LockRequest::Test`]: a lock that excludes the requested one, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockFound(pub Option<(LockRange, LockKind)>);

impl Field<'_> for LockFound {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(kind_number(self.0.map(|(_, kind)| kind)));
        let range = self.0.map_or(LockRange::WHOLE, |(range, _)| range);
        (range.start(), range.last()).put(out);
    }

    fn get(fields: &mut Fields<'_>) -> Result<LockFound, Malformed> {
        let kind = decode_kind(fields.u8()?)?;
        let range = decode_range(fields)?;
        Ok(LockFound(kind.map(|kind| (range, kind))))
    }
}
