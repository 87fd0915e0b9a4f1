//! The types of requests that the proxy distinguishes.

/// The type of SSH_FXP_EXTENDED.
const EXTENDED: u8 = 200;

macro_rules! messages {
    ($($code:literal $name:ident)*; $($extension:literal $extended:ident)*) => {
        /// A type of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the message of the same name")]
        pub enum Message {
            $($name,)*
            $($extended,)*
            /// Any other type.
            Unknown,
            /// Matches all types; no request has this type itself.
            Any,
        }

        impl Message {
            /// The type of a client's packet, without its length; `None` for INIT, which is not a
            /// request.
            pub(super) fn of(packet: &[u8]) -> Option<Message> {
                Some(match packet.first()? {
                    1 => return None,
                    $($code => Message::$name,)*
                    &EXTENDED => match extension(packet).unwrap_or_default() {
                        $($extension => Message::$extended,)*
                        _ => Message::Unknown,
                    },
                    _ => Message::Unknown,
                })
            }
        }
    };
}

messages! {
    3 Open 4 Close 5 Read 6 Write 7 Lstat 8 Fstat 9 Setstat 10 Fsetstat 11 Opendir 12 Readdir
    13 Remove 14 Mkdir 15 Rmdir 16 Realpath 17 Stat 18 Rename 19 Readlink 20 Symlink;
    b"posix-rename@openssh.com" PosixRename
    b"statvfs@openssh.com" Statvfs
    b"fstatvfs@openssh.com" Fstatvfs
    b"hardlink@openssh.com" Hardlink
    b"fsync@openssh.com" Fsync
    b"lsetstat@openssh.com" Lsetstat
    b"limits@openssh.com" Limits
    b"expand-path@openssh.com" ExpandPath
    b"copy-data" CopyData
}

/// The name of an extension, after type and id.
fn extension(packet: &[u8]) -> Option<&[u8]> {
    let len = u32::from_be_bytes(packet.get(5..9)?.try_into().ok()?) as usize;
    packet.get(9..9 + len)
}

/// The id of a request or a reply, without its length.
pub(super) fn id(packet: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(packet.get(1..5)?.try_into().ok()?))
}
