//! The replies of a server.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{BufMut, Bytes, BytesMut};

use super::attrs::FileAttrs;
use super::status::StatusCode;
use super::wire::{Field, Fields, Malformed, put_sized, put_string};

const STATUS: u8 = 101;
const HANDLE: u8 = 102;
const DATA: u8 = 103;
const NAME: u8 = 104;
const ATTRS: u8 = 105;
const EXTENDED_REPLY: u8 = 201;

/// Longest handle that the protocol allows, in bytes.
const MAX_HANDLE_BYTES: usize = 256;

/// Minimum bytes of an entry in a NAME reply: two empty strings and the flags of its attributes.
const MIN_ENTRY_BYTES: usize = 12;

/// The beginning of a language tag that names an errno.
const ERRNO_TAG: &str = "x-errno-";

/// The greatest errno; Linux has none beyond it.
const MAX_ERRNO: i32 = 4095;

/// Maximum length of a STATUS text that is kept, in bytes; enough for a sentence in an error
/// message.
const MAX_STATUS_TEXT_BYTES: usize = 1024;

/// The server's handle of an open file or directory: opaque bytes. Clones are the same handle; a
/// later handle may have the same bytes, since servers reuse them.
#[derive(Clone)]
pub struct RemoteHandle(Arc<Inner>);

struct Inner {
    bytes: Box<[u8]>,
    /// CLOSE was sent.
    is_closed: AtomicBool,
}

impl RemoteHandle {
    /// Copies the server's bytes; at most 256, the limit of the protocol.
    pub fn new(bytes: &[u8]) -> Result<RemoteHandle, Malformed> {
        if bytes.len() > MAX_HANDLE_BYTES {
            return Err(Malformed::BadValue("a handle longer than 256 bytes"));
        }
        let is_closed = AtomicBool::new(false);
        Ok(RemoteHandle(Arc::new(Inner { bytes: bytes.into(), is_closed })))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0.bytes
    }

    /// Whether CLOSE was sent. Valid while the output of the connection is locked.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Relaxed)
    }

    /// CLOSE is being sent, while the output of the connection is locked.
    pub(crate) fn set_closed(&self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }
}

/// Compares the bytes.
impl PartialEq for RemoteHandle {
    fn eq(&self, other: &RemoteHandle) -> bool {
        self.0.bytes == other.0.bytes
    }
}

impl Eq for RemoteHandle {}

impl fmt::Debug for RemoteHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteHandle({})", self.as_bytes().escape_ascii())
    }
}

/// One entry of a NAME reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameEntry {
    /// The name, or the path for requests that return one; not validated.
    pub name: Bytes,
    /// The entry as `ls -l` shows it, for people: free text, which is ignored when decoding.
    pub longname: Bytes,
    /// Attributes as returned by LSTAT.
    pub attrs: FileAttrs,
}

/// Any reply except VERSION.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The result of a request without other content, or an error.
    Status {
        /// The code.
        code: StatusCode,
        /// The server's message.
        message: String,
        /// The errno of Linux, if the server has sent it: as a private language tag of the message
        /// (`x-errno-28`; RFC 5646, section 2.2.7), which other clients ignore.
        errno: Option<i32>,
    },
    /// The handle of the opened file or directory.
    Handle(RemoteHandle),
    /// Content; shares the packet's memory.
    Data(Bytes),
    /// Names or paths; share the packet's memory.
    Names(Vec<NameEntry>),
    /// Attributes.
    Attrs(FileAttrs),
    /// The body of an extension's reply; shares the packet's memory.
    Extended(Bytes),
}

impl Reply {
    /// A reply with this body.
    pub fn extended(body: &impl Body) -> Reply {
        Reply::Extended(body.encode())
    }

    /// Appends the whole packet.
    pub fn encode(&self, id: u32, out: &mut BytesMut) {
        put_sized(out, 0, |out| {
            out.put_u8(self.message_type());
            out.put_u32(id);
            match self {
                Reply::Status { code, message, errno } => {
                    out.put_u32(code.0);
                    put_string(out, message.as_bytes());
                    let tag = errno.map(|errno| format!("{ERRNO_TAG}{errno}"));
                    put_string(out, tag.unwrap_or_default().as_bytes());
                }
                Reply::Handle(handle) => put_string(out, handle.as_bytes()),
                Reply::Data(data) => put_string(out, data),
                Reply::Names(entries) => {
                    out.put_u32(entries.len() as u32);
                    for entry in entries {
                        put_string(out, &entry.name);
                        put_string(out, &entry.longname);
                        entry.attrs.put(out);
                    }
                }
                Reply::Attrs(attrs) => attrs.put(out),
                Reply::Extended(body) => out.put_slice(body),
            }
        });
    }

    /// Appends the packet of a DATA reply up to its content, of which `len` bytes have to follow.
    pub fn encode_data_head(id: u32, len: usize, out: &mut BytesMut) {
        put_sized(out, len, |out| {
            out.put_u8(DATA);
            out.put_u32(id);
            out.put_u32(len as u32);
        });
    }

    fn message_type(&self) -> u8 {
        match self {
            Reply::Status { .. } => STATUS,
            Reply::Handle(_) => HANDLE,
            Reply::Data(_) => DATA,
            Reply::Names(_) => NAME,
            Reply::Attrs(_) => ATTRS,
            Reply::Extended(_) => EXTENDED_REPLY,
        }
    }

    /// Decodes a packet without its length field; returns its id too.
    pub fn decode(packet: &Bytes) -> Result<(u32, Reply), Malformed> {
        let mut fields = Fields::new(packet);
        let message_type = fields.u8()?;
        let id = fields.u32()?;
        let f = &mut fields;
        let reply = match message_type {
            STATUS => decode_status(f)?,
            HANDLE => Reply::Handle(RemoteHandle::new(f.string()?)?),
            DATA => Reply::Data(packet.slice_ref(f.string()?)),
            NAME => Reply::Names(decode_names(packet, f)?),
            ATTRS => Reply::Attrs(Field::get(f)?),
            EXTENDED_REPLY => Reply::Extended(packet.slice_ref(f.remainder())),
            other => return Err(Malformed::UnknownType(other)),
        };
        fields.finish()?;
        Ok((id, reply))
    }
}

/// The body of an EXTENDED_REPLY.
pub trait Body: Sized {
    /// Encodes the body.
    fn encode(&self) -> Bytes;

    /// Decodes the body.
    fn decode(body: &Bytes) -> Result<Self, Malformed>;
}

impl<T: for<'a> Field<'a>> Body for T {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.put(&mut out);
        out.freeze()
    }

    fn decode(body: &Bytes) -> Result<T, Malformed> {
        let mut fields = Fields::new(body);
        let decoded = T::get(&mut fields)?;
        fields.finish()?;
        Ok(decoded)
    }
}

fn decode_status(fields: &mut Fields<'_>) -> Result<Reply, Malformed> {
    let code = StatusCode(fields.u32()?);
    // Servers from the time of version 2 send no text, and some current ones omit the language.
    let mut text = || if fields.left() > 0 { fields.string() } else { Ok(&[][..]) };
    let message = text()?;
    let errno = errno_of_tag(text()?);
    let message = &message[..message.len().min(MAX_STATUS_TEXT_BYTES)];
    Ok(Reply::Status { code, message: String::from_utf8_lossy(message).into_owned(), errno })
}

/// The errno in a language tag.
fn errno_of_tag(tag: &[u8]) -> Option<i32> {
    let number = tag.strip_prefix(ERRNO_TAG.as_bytes())?;
    let errno = str::from_utf8(number).ok()?.parse().ok()?;
    (1..=MAX_ERRNO).contains(&errno).then_some(errno)
}

fn decode_names(packet: &Bytes, fields: &mut Fields<'_>) -> Result<Vec<NameEntry>, Malformed> {
    let count = fields.u32()? as usize;
    if count > fields.left() / MIN_ENTRY_BYTES {
        return Err(Malformed::BadValue("more names announced than fit into it"));
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let name = packet.slice_ref(fields.string()?);
        let _longname = fields.string()?;
        let longname = Bytes::new();
        entries.push(NameEntry { name, longname, attrs: Field::get(fields)? });
    }
    Ok(entries)
}
