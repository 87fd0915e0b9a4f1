//! How to reach the server, and what to ask of it.

use super::Effect::{Custom, Flag, Number, Seconds, Text};
use super::{MountOption, option};
use crate::mount::draft::Draft;
use crate::mount::request::Transport;

/// More sessions than this gain nothing, and a server lets so many logins wait or drops them.
const MAX_CONNS: u32 = 64;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "reconnect",
        "make a lost connection again (the default)",
        Flag(|draft| draft.request.host.reconnect = true),
    ),
    option(
        "noreconnect",
        "a lost connection stays lost, and all access fails",
        Flag(|draft| draft.request.host.reconnect = false),
    )
    .also(&["no_reconnect"])
    .prominent(),
    option(
        "request_timeout",
        "a server silent this long while a request waits counts as lost (60)",
        Seconds(|draft, time| draft.request.host.request_timeout = time),
    )
    .also(&["stall"])
    .prominent(),
    option(
        "max_conns",
        "use up to N ssh connections at once, as far as they gain (8)",
        Number(1, MAX_CONNS, |draft, number| draft.request.host.max_conns = Some(number)),
    )
    .prominent(),
    option(
        "delay_connect",
        "connect at the first access, not before mounting",
        Flag(|draft| draft.request.host.delay_connect = true),
    ),
    option(
        "no_check_root",
        "mount without a look whether the remote directory is there",
        Flag(|draft| draft.request.host.check_root = false),
    ),
    option("ssh_config", "ssh's configuration file, as -F", Text("FILE", Draft::set_ssh_config)),
    option(
        "sftp_server",
        "a subsystem, or, with a '/' in it, a command ('sudo /usr/lib/sftp-server')",
        Text("SERVER", |draft, value| draft.request.ssh.sftp_server = Some(value)),
    )
    .prominent(),
    option(
        "ssh_command",
        "run this instead of ssh; spaces part its words, '\\ ' is a space",
        Text("COMMAND", Draft::set_ssh_command),
    ),
    option(
        "ssh_protocol",
        "version of the ssh protocol; OpenSSH has only 2 since 2017",
        Custom("2", |_, version| match version {
            "2" => Ok(()),
            "1" => Err("version 1 is no longer in any ssh; leave the option away".to_owned()),
            _ => Err("needs 2".to_owned()),
        }),
    ),
    option(
        "password_stdin",
        "read the password from standard input (for pam_mount)",
        Flag(|draft| draft.request.ssh.password_stdin = true),
    ),
    option(
        "directport",
        "connect to this TCP port of the host, without ssh and its encryption",
        Number(1, u16::MAX as u32, |draft, port| {
            if let Ok(port) = u16::try_from(port) {
                draft.set_transport(Transport::DirectPort(port));
            }
        }),
    ),
    option(
        "vsock",
        "connect to this vsock address of a virtual machine or its host, without ssh",
        Custom("CID:PORT", |draft, text| {
            let address = text.split_once(':');
            let parsed =
                address.and_then(|(cid, port)| Some((cid.parse().ok()?, port.parse().ok()?)));
            let (cid, port) =
                parsed.ok_or_else(|| "needs two numbers, as in vsock=3:5000".to_owned())?;
            draft.set_transport(Transport::Vsock { cid, port });
            Ok(())
        }),
    ),
    option(
        "passive",
        "speak SFTP over standard input and output; implies -f",
        Flag(|draft| draft.set_transport(Transport::Passive)),
    )
    .also(&["slave"]),
    option(
        "disable_hardlink",
        "link(2) fails with ENOSYS",
        Flag(|draft| draft.request.host.disable_hardlink = true),
    ),
    option(
        "max_read",
        "most bytes of one SFTP READ; 0: what the server allows (the default)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.host.max_read_bytes = (bytes > 0).then_some(bytes);
        }),
    ),
    option(
        "max_write",
        "most bytes of one SFTP WRITE; 0: what the server allows (the default)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.host.max_write_bytes = (bytes > 0).then_some(bytes);
        }),
    ),
    option(
        "sync_readdir",
        "one READDIR at a time",
        Flag(|draft| draft.request.host.sync_readdir = true),
    ),
    option(
        "workaround",
        "list parted by colons of [no]rename, [no]renamexdev, none, all (none)",
        Custom("LIST", Draft::set_workarounds),
    ),
];
