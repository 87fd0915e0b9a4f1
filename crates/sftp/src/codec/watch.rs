//! The bodies of `watch@sshoal` (`docs/protocol.md`).

use bytes::{BufMut, Bytes, BytesMut};

use super::wire::{Field, Fields, Malformed, fields_of, put_string};

const ADD: u8 = 1;
const REMOVE: u8 = 2;
const NEXT: u8 = 3;

/// What a request does with the watches of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchRequest<'a> {
    /// Watches the directory at a path; a symbolic link is not followed.
    Add {
        /// The path.
        path: &'a [u8],
    },
    /// Ends a watch.
    Remove {
        /// Its id.
        id: WatchId,
    },
    /// The next events; answered when there are any.
    Next,
}

impl<'a> Field<'a> for WatchRequest<'a> {
    fn put(&self, out: &mut BytesMut) {
        match self {
            WatchRequest::Add { path } => {
                out.put_u8(ADD);
                put_string(out, path);
            }
            WatchRequest::Remove { id } => {
                out.put_u8(REMOVE);
                out.put_u32(id.0);
            }
            WatchRequest::Next => out.put_u8(NEXT),
        }
    }

    fn get(f: &mut Fields<'a>) -> Result<WatchRequest<'a>, Malformed> {
        match f.u8()? {
            ADD => Ok(WatchRequest::Add { path: f.string()? }),
            REMOVE => Ok(WatchRequest::Remove { id: WatchId(f.u32()?) }),
            NEXT => Ok(WatchRequest::Next),
            _ => Err(Malformed::BadValue("an unknown operation on a watch")),
        }
    }
}

/// The id of a watch, and the reply to [`WatchRequest::Add`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId(pub u32);

impl WatchId {
    /// Of an event that concerns all watches: events were lost.
    pub const ALL: WatchId = WatchId(u32::MAX);
}

fields_of! {
    WatchId { 0 }
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    /// The watch.
    pub id: WatchId,
    /// What happened: the bits of `inotify(7)`.
    pub kind: u32,
    /// The same for both parts of a rename, otherwise zero.
    pub cookie: u32,
    /// The name in the watched directory; empty for the directory itself.
    pub name: Bytes,
}

/// The reply to [`WatchRequest::Next`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchEvents {
    /// The number of this reply in the session, from 1.
    pub number: u64,
    /// The events in their order.
    pub events: Vec<WatchEvent>,
}

impl Field<'_> for WatchEvents {
    fn put(&self, out: &mut BytesMut) {
        out.put_u64(self.number);
        for event in &self.events {
            out.put_u32(event.id.0);
            out.put_u32(event.kind);
            out.put_u32(event.cookie);
            put_string(out, &event.name);
        }
    }

    fn get(fields: &mut Fields<'_>) -> Result<WatchEvents, Malformed> {
        let (number, mut events) = (fields.u64()?, Vec::new());
        while fields.left() > 0 {
            let (id, kind, cookie) = (WatchId(fields.u32()?), fields.u32()?, fields.u32()?);
            let name = Bytes::copy_from_slice(fields.string()?);
            events.push(WatchEvent { id, kind, cookie, name });
        }
        Ok(WatchEvents { number, events })
    }
}
