//! The types of requests that the proxy distinguishes.

/// A type of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the message of the same name")]
pub enum Message {
    Open,
    Close,
    Read,
    Write,
    Lstat,
    Fstat,
    Setstat,
    Fsetstat,
    Opendir,
    Readdir,
    Remove,
    Mkdir,
    Rmdir,
    Realpath,
    Stat,
    Rename,
    Readlink,
    Symlink,
    PosixRename,
    Statvfs,
    Fstatvfs,
    Hardlink,
    Fsync,
    Lsetstat,
    Limits,
    ExpandPath,
    CopyData,
    /// Any other type.
    Unknown,
    /// Matches all types; no request has this type itself.
    Any,
}

impl Message {
    /// The type of a client's packet, without its length; `None` for INIT, which is not a request.
    pub(super) fn of(packet: &[u8]) -> Option<Message> {
        Some(match packet.first()? {
            1 => return None,
            3 => Message::Open,
            4 => Message::Close,
            5 => Message::Read,
            6 => Message::Write,
            7 => Message::Lstat,
            8 => Message::Fstat,
            9 => Message::Setstat,
            10 => Message::Fsetstat,
            11 => Message::Opendir,
            12 => Message::Readdir,
            13 => Message::Remove,
            14 => Message::Mkdir,
            15 => Message::Rmdir,
            16 => Message::Realpath,
            17 => Message::Stat,
            18 => Message::Rename,
            19 => Message::Readlink,
            20 => Message::Symlink,
            200 => Message::extended(packet),
            _ => Message::Unknown,
        })
    }

    /// The extension, by its name after type and id.
    fn extended(packet: &[u8]) -> Message {
        let name = packet.get(5..9).and_then(|len| {
            let len = u32::from_be_bytes(len.try_into().ok()?) as usize;
            packet.get(9..9 + len)
        });
        match name.unwrap_or_default() {
            b"posix-rename@openssh.com" => Message::PosixRename,
            b"statvfs@openssh.com" => Message::Statvfs,
            b"fstatvfs@openssh.com" => Message::Fstatvfs,
            b"hardlink@openssh.com" => Message::Hardlink,
            b"fsync@openssh.com" => Message::Fsync,
            b"lsetstat@openssh.com" => Message::Lsetstat,
            b"limits@openssh.com" => Message::Limits,
            b"expand-path@openssh.com" => Message::ExpandPath,
            b"copy-data" => Message::CopyData,
            _ => Message::Unknown,
        }
    }
}

/// The id of a request or a reply, without its length.
pub(super) fn id(packet: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(packet.get(1..5)?.try_into().ok()?))
}
