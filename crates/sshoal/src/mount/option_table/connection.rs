//! How to connect to the server, and which SFTP requests to send.

use super::Effect::{Custom, Flag, Number, Seconds, Text};
use super::{MountOption, option};
use crate::mount::draft::Draft;
use crate::mount::request::Transport;

/// More sessions gain nothing, and a server delays or refuses that many logins.
const MAX_CONNS: u32 = 64;

pub(super) const OPTIONS: &[MountOption] = &[
    option(
        "reconnect",
        "reconnect when the connection is lost (default)",
        Flag(|draft| draft.request.host.reconnect = true),
    ),
    option(
        "noreconnect",
        "do not reconnect; all access fails once the connection is lost",
        Flag(|draft| draft.request.host.reconnect = false),
    )
    .also(&["no_reconnect"])
    .prominent(),
    option(
        "request_timeout",
        "disconnect a server that does not answer a request for this long (default 60)",
        Seconds(|draft, time| draft.request.host.request_timeout = time),
    )
    .also(&["stall"])
    .prominent(),
    option(
        "max_conns",
        "open up to N SSH connections, adding them while throughput improves (default 8)",
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
        "do not check before mounting that the remote directory exists",
        Flag(|draft| draft.request.host.check_root = false),
    ),
    option("ssh_config", "configuration file of ssh (-F)", Text("FILE", Draft::set_ssh_config)),
    option(
        "sftp_server",
        "SFTP subsystem, or a command if it contains a '/' ('sudo /usr/lib/sftp-server')",
        Text("SERVER", |draft, value| draft.request.ssh.sftp_server = Some(value)),
    )
    .prominent(),
    option(
        "ssh_command",
        "run this command instead of ssh; spaces separate arguments, '\\ ' is a space",
        Text("COMMAND", Draft::set_ssh_command),
    ),
    option(
        "ssh_protocol",
        "version of the SSH protocol; OpenSSH supports only 2 since 2017",
        Custom("2", |_, version| match version {
            "2" => Ok(()),
            "1" => Err("no ssh supports version 1 any more; omit the option".to_owned()),
            _ => Err("must be 2".to_owned()),
        }),
    ),
    option(
        "password_stdin",
        "read the password from standard input (as pam_mount needs)",
        Flag(|draft| draft.request.ssh.password_stdin = true),
    ),
    option(
        "directport",
        "connect to this TCP port of the host, without ssh or encryption",
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
        "use standard input and output as the SFTP connection; implies -f",
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
        "maximum bytes of one SFTP READ; 0: the server's limit (default)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.host.max_read_bytes = (bytes > 0).then_some(bytes);
        }),
    ),
    option(
        "max_write",
        "maximum bytes of one SFTP WRITE; 0: the server's limit (default)",
        Number(0, u32::MAX, |draft, bytes| {
            draft.request.host.max_write_bytes = (bytes > 0).then_some(bytes);
        }),
    ),
    option(
        "sync_readdir",
        "send one READDIR request at a time",
        Flag(|draft| draft.request.host.sync_readdir = true),
    ),
    option(
        "workaround",
        "colon-separated list of [no]rename, [no]renamexdev, none, all (default none)",
        Custom("LIST", Draft::set_workarounds),
    ),
];
