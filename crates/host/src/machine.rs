//! Whether two sessions have reached the same machine.
//!
//! A name may stand for many machines (the login nodes of a cluster), and each connection may reach
//! another. What they share is then a network file system, on which one does not see at once what
//! another has written. So one file is only used over sessions that are of one machine.

use std::sync::Arc;

use crate::session::Session;

/// On Linux, what tells a running kernel from all others. Nothing is known of a machine that does
/// not show it.
const BOOT_ID: &[u8] = b"/proc/sys/kernel/random/boot_id";

/// Bytes of it that are read: a UUID and a line's end.
const BOOT_ID_BYTES: u32 = 64;

/// Whether nothing says that the two are of different machines.
pub(crate) async fn same(one: &Arc<Session>, other: &Arc<Session>) -> bool {
    let (one, other) = tokio::join!(of(one), of(other));
    one.is_none() || other.is_none() || one == other
}

/// What tells this run of its machine from all others, asked once.
pub(crate) async fn of(session: &Arc<Session>) -> Option<&[u8]> {
    let ask = async || {
        let id = session.read_small(BOOT_ID, BOOT_ID_BYTES).await?;
        (!id.is_empty()).then(|| id.as_ref().into())
    };
    session.machine.get_or_init(ask).await.as_deref()
}
