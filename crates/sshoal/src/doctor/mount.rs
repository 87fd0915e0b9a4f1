//! A mount: what its daemon reports, and its hosts, to which this process logs in as the daemon does.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use cli::printable;
use control::client;
use control::place::Connection;
use control::seen;
use control::status::{HostStatus, SourceStatus, State};
use mountinfo::Mount;

use super::machine::{CACHE, check_other_cache, dead};
use super::server::check_host;
use super::{Check, Checks};
use crate::process;
use crate::quantity::{count, latency};

/// Checks the mount at `place`.
pub fn check(checks: &mut Checks, place: &Path) -> anyhow::Result<()> {
    let shown = printable(place);
    let seen = match seen::at(place) {
        Ok(seen) => seen,
        Err(problem) => {
            checks.add(Check::wrong("mount", problem.to_string()));
            return Ok(());
        }
    };
    let Some(state) = &seen.status else {
        let check = dead(&seen, place).unwrap_or_else(|| {
            let why = seen.why.unwrap_or_default();
            Check::unknown("mount", format!("{shown}: {why}"))
        });
        // One that is dead or hangs was usually reported with all others.
        if checks.all.iter().all(|it| it.found != check.found) {
            checks.add(check);
        }
        return Ok(());
    };
    checks.add(Check::fine("mount", format!("{shown}: sshoal {}", state.version)));
    if let Some(lost) = &state.lost {
        checks.add(Check::wrong("lost data", lost));
    }
    let own = own_mount(place);
    match &state.disk {
        Some(disk) if !disk.on => {
            let why = disk.why.as_deref().unwrap_or_default();
            checks.add(Check::wrong(CACHE, format!("{}: not used: {why}", disk.dir)));
        }
        // That of another user is for that user to check; an escaped name leads nowhere.
        Some(disk) if own.is_ok() && !disk.dir.contains('\\') => {
            check_other_cache(checks, Path::new(&disk.dir));
        }
        _ => {}
    }
    let reached = own.and_then(|mount| connections(place, &mount));
    let runtime = process::runtime(1)?;
    for source in &state.sources {
        runtime.block_on(check_source(checks, source, &reached));
    }
    runtime.shutdown_background();
    Ok(())
}

/// The mount at `place`, if it is one of this user. Its daemon names the program that would be run
/// here; `seen` may be of another mount.
fn own_mount(place: &Path) -> Result<Mount, String> {
    let mount = client::mount_at(place).map_err(|problem| problem.to_string())?;
    client::only_own(&mount, "log in as it does")?;
    Ok(mount)
}

/// How the daemon of the mount at `place` connects. The error is why no other process may do so.
fn connections(place: &Path, mount: &Mount) -> Result<Vec<Connection>, String> {
    let connections = client::find(mount).and_then(|found| client::connections(&found));
    connections.map_err(|why| client::problem(place, why).to_string())
}

async fn check_source(
    checks: &mut Checks,
    source: &SourceStatus,
    reached: &Result<Vec<Connection>, String>,
) {
    for (index, host) in source.hosts.iter().enumerate() {
        checks.names.extend([source.source.clone(), host.host.clone()]);
        checks.add(self::host(host));
        match &host.direct {
            Some(address) => checks.add(Check::fine("direct", format!("TLS 1.3 to {address}"))),
            None => host.not_direct.iter().for_each(|why| checks.add(Check::note("direct", why))),
        }
        let unreached = match reached {
            Err(why) => why.clone(),
            Ok(_) if host.state == State::Idle => "the mount is not connected to it".to_owned(),
            Ok(all) => {
                let mut of_source = all.iter().filter(|it| it.source == source.source);
                match of_source.nth(index).map(config) {
                    Some(Ok((config, directory))) => {
                        checks.names.push(base::printable(directory));
                        checks.names.push(directory.escape_ascii().to_string());
                        check_host(checks, config, directory, None).await;
                        continue;
                    }
                    Some(Err(why)) => why,
                    None => "it is no longer a source of the mount".to_owned(),
                }
            }
        };
        // Without a login there is what the daemon has measured.
        if let Some(us) = host.round_trip_us {
            checks.add(Check::fine("round trip", format!("{}, of the mount", latency(us))));
        }
        checks.add(Check::unknown("login", format!("not tried: {unreached}")));
    }
}

/// How this process connects to a host, and the directory there. The error is why it cannot.
fn config(connection: &Connection) -> Result<(ssh::Config, &[u8]), String> {
    let Connection { user, name, port, .. } = connection;
    let command = connection.ssh_command.as_ref().ok_or("the mount does not reach it by ssh")?;
    if connection.has_password {
        return Err("the mount logs in with a password, which is not known here".to_owned());
    }
    let destination = ssh::Destination::new(user.as_deref(), name, *port);
    let text = |bytes: &control::place::Bytes| OsString::from_vec(bytes.0.clone());
    let config = ssh::Config {
        ssh_command: text(command),
        args: connection.arguments.iter().map(text).collect(),
        sftp_server: connection.sftp_server.clone(),
        ..ssh::Config::new(destination.map_err(|error| error.to_string())?)
    };
    Ok((config, &connection.directory.0))
}

/// A check of a host of a mount.
fn host(host: &HostStatus) -> Check {
    let name = &host.host;
    match (host.state, &host.why) {
        (State::Connected, _) => Check::fine(
            "host",
            format!("{name}: connected, {}", count(host.sessions.len() as u64, "session")),
        ),
        (State::Idle, _) => Check::fine("host", format!("{name}: not connected, since not needed")),
        (State::Returning, _) => Check::note("host", format!("{name}: answers again")),
        (State::Reconnecting | State::Lost | State::LeftOut, why) => {
            Check::wrong("host", format!("{name}: {}", why.as_deref().unwrap_or("unreachable")))
        }
    }
}
