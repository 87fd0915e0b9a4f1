//! Replaces the sessions of a link that is cut without an end.
//!
//! When a laptop wakes up in another network, or a firewall has forgotten a connection, nothing
//! reports that: what is sent gets no acknowledgement, and ssh notices it after 45 s. But a new
//! connection works at once. So while requests wait and nothing arrives, the kernel is asked
//! whether it sends the same data again and again. If so, a new session is opened beside the old
//! one, and takes its place if the old one is still silent then. If the link is down, both wait for
//! it, and the one that works first is used.
//!
//! A server that is slow acknowledges what is sent, so its sessions stay.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::connector::{Cause, Role};
use crate::error::Error;
use crate::flow_control::MAX_SLOTS;
use crate::pool::{Pool, within};
use crate::session::{SILENT, Session};

/// Time to the next attempt after one that was refused, as for any other login, or that would fail
/// again.
const PAUSE: Duration = Duration::from_secs(60);

/// The task of a session, and of those that replace it. Ends with the session.
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
        if old.slot > 0 {
            give_up_alone(&pool, &old).await;
            continue;
        }
        let Some(replaced) = pool.lifetime.run(replace(&pool, &old)).await else { return };
        let name = pool.config.name.clone();
        drop((pool, old));
        match replaced {
            Ok(Some(new)) => session = new,
            // It has come back, or ended.
            Ok(None) => {}
            Err(why) => {
                tracing::debug!("{name}: no new connection: {why}");
                let lasts = matches!(why.cause(), Cause::Refused | Cause::Permanent);
                if lasts || matches!(why, Error::NoDirect { .. }) {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// A further session is cut. If the first one works, only this one is; otherwise a request of the
/// first one waits now, and its task does the rest.
async fn give_up_alone(pool: &Pool, session: &Session) {
    let Some(first) = pool.live(0) else { return };
    let answer = tokio::time::timeout(SILENT, first.client.realpath(b".")).await;
    if answer.is_ok_and(|answer| answer.is_ok()) && is_cut(session).await {
        session.give_up(session.client.activity().silent).await;
    }
}

/// Opens another first session, and uses it if the old one is still cut then.
async fn replace(pool: &Pool, old: &Arc<Session>) -> Result<Option<Weak<Session>>, Error> {
    let name = &pool.config.name;
    tracing::debug!("{name}: what is sent is not acknowledged; a new connection is attempted");
    // Over ssh: the ssh session of a direct one is cut, too.
    let new = within(pool.config.stall_limit, pool.begin_later(Role::Reconnect, 0)).await?;
    if !is_cut(old).await {
        return Ok(None);
    }
    let arranged = pool.arrange_direct(new).await;
    pool.is_adoptable(&arranged)?;
    let silent = old.client.activity().silent;
    if silent < SILENT || !pool.retire(old, silent) {
        return Ok(None);
    }
    let new = pool.adopt_direct(arranged)?;
    tracing::warn!(
        "{name}: nothing gets through the connection for {:.0} s; a new one replaces it",
        silent.as_secs_f64()
    );
    let found = Arc::downgrade(&new);
    // Those that receive something have a link that works.
    let is_idle = |it: &Arc<Session>| it.client.activity().in_flight == 0 || is_silent(it);
    let others = (1..MAX_SLOTS).filter_map(|slot| pool.live(slot)).filter(is_idle);
    let given_up: Vec<_> =
        [old.clone()].into_iter().chain(old.live_carrier().cloned()).chain(others).collect();
    pool.attempt_ended(0, 0, Ok(new));
    for session in given_up {
        session.give_up(silent).await;
    }
    Ok(Some(found))
}

fn is_silent(session: &Session) -> bool {
    session.client.activity().silent >= SILENT
}

async fn is_cut(session: &Session) -> bool {
    let Some(link) = session.link().filter(|_| is_silent(session)).cloned() else { return false };
    // It reads a table of the kernel that may be long.
    tokio::task::spawn_blocking(move || link.is_cut()).await.unwrap_or(false)
}
