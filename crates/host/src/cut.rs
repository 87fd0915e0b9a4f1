//! Replaces the sessions of a link that is cut without an end.
//!
//! When a laptop wakes up in another network, or a firewall has forgotten a connection, nothing
//! reports that: what is sent gets no acknowledgement, and ssh notices it after 45 s. But a new
//! connection works at once. So while requests wait and nothing arrives, the kernel is asked whether
//! it sends the same data again and again. If so, a new session is opened beside the old one, and
//! takes its place if the old one is still silent then. If the link is down, both wait for it, and
//! the one that works first is used.
//!
//! A server that is slow acknowledges what is sent, so its sessions stay.

use std::sync::{Arc, Weak};

use crate::connector::{Cause, Role};
use crate::error::Error;
use crate::pool::Pool;
use crate::session::{SILENT, Session};

/// The task of a first session, and of those that replace it. Ends with the session.
pub(crate) async fn watch(pool: Weak<Pool>, mut session: Weak<Session>) {
    loop {
        let of_session = |it: Arc<Session>| (it.client.closed(), it.is_silent.clone());
        let Some((closed, silence)) = session.upgrade().map(of_session) else { return };
        tokio::select! {
            _ = closed => return,
            () = silence.notified() => {}
        }
        let (Some(pool), Some(old)) = (pool.upgrade(), session.upgrade()) else { return };
        if !is_cut(&old).await {
            continue;
        }
        let name = &pool.config.name;
        tracing::debug!("{name}: what is sent is not acknowledged; a new connection is attempted");
        match pool.begin_beside().await {
            Ok(new) if old.is_alive() && is_silent(&old) => {
                session = Arc::downgrade(&new);
                pool.switch(&old, new);
            }
            // It has come back, or ended.
            Ok(_) => {}
            // As for any other attempt, it is not repeated soon.
            Err(why) if matches!(why.cause(), Cause::Refused | Cause::Permanent) => {
                tracing::debug!("{name}: no new connection: {why}");
                return;
            }
            Err(why) => tracing::debug!("{name}: no new connection: {why}"),
        }
    }
}

fn is_silent(session: &Session) -> bool {
    session.client.activity().silent >= SILENT
}

async fn is_cut(session: &Session) -> bool {
    let Some(link) = session.link().filter(|_| is_silent(session)).cloned() else { return false };
    // It reads a table of the kernel that may be long.
    tokio::task::spawn_blocking(move || link.is_cut()).await.unwrap_or(false)
}

impl Pool {
    /// Another first session, while there is one. Over ssh: an ssh session of a direct one is cut,
    /// too.
    async fn begin_beside(&self) -> Result<Arc<Session>, Error> {
        let limit = self.config.stall_limit;
        let mut host_alive = self.host_alive.clone();
        let session = tokio::select! {
            begun = self.begin_later(Role::Reconnect, 0) => begun?,
            () = tokio::time::sleep(limit) => {
                let source = sftp::Error::Stalled(limit);
                return Err(Error::Session { source, diagnosis: None });
            }
            _ = host_alive.changed() => {
                let source = sftp::Error::Disconnected("it is not used any more".into());
                return Err(Error::Session { source, diagnosis: None });
            }
        };
        self.prefer_direct(session).await
    }

    /// Uses `new` in place of the first session, whose link is cut, and gives up all others of that
    /// link.
    fn switch(&self, old: &Arc<Session>, new: Arc<Session>) {
        let silent = old.client.activity().silent;
        tracing::warn!(
            "{}: nothing gets through the connection for {:.0} s; a new one replaces it",
            self.config.name,
            silent.as_secs_f64()
        );
        let others: Vec<_> = (1..self.max_sessions()).filter_map(|slot| self.live(slot)).collect();
        self.attempt_ended(0, 0, Ok(new));
        old.give_up(silent);
        if let Some(carrier) = old.live_carrier() {
            carrier.give_up(silent);
        }
        for other in others {
            other.give_up(other.client.activity().silent);
        }
    }
}
