//! Translates the request into the settings of the layers below `vfs`.

use std::io::Write;

use cli::Problem;

use crate::mount::request::{
    ActionPolicy, CreatePolicy, MountRequest, Patience, SshOptions, Transport,
};
use crate::sources::{Mode, PoolMode, Presence};

pub(super) fn ssh_config(
    options: &SshOptions,
    destination: ssh::Destination,
    own_arguments: &[std::ffi::OsString],
    password: Option<ssh::Password>,
) -> Result<ssh::Config, Problem> {
    let sftp_server = options.sftp_server.as_ref().map(|server| {
        let text = server.to_str().map(str::to_owned);
        text.ok_or_else(|| Problem::new("option 'sftp_server'", "not valid UTF-8"))
    });
    Ok(ssh::Config {
        transport: match options.transport {
            Transport::Ssh => ssh::Transport::Ssh,
            Transport::DirectPort(port) => ssh::Transport::DirectPort(port),
            Transport::Vsock { cid, port } => ssh::Transport::Vsock { cid, port },
            Transport::Passive => ssh::Transport::Passive,
        },
        ssh_command: options.command.clone(),
        // ssh uses the first of two values.
        args: [own_arguments, &options.arguments].concat(),
        sftp_server: sftp_server.transpose()?,
        password,
        ..ssh::Config::new(destination)
    })
}

/// Reads the password from standard input; on a terminal with a prompt and without echo.
pub(super) fn password() -> Result<ssh::Password, Problem> {
    let problem = |why: String| Problem::new("password", why);
    let stdin = std::io::stdin();
    if rustix::termios::isatty(&stdin) {
        eprint!("Password: ");
        let _ = std::io::stderr().flush();
    }
    let read = ssh::Password::read(&stdin).map_err(|error| problem(error.to_string()))?;
    read.ok_or_else(|| {
        problem("standard input is empty".into())
            .hint("password_stdin reads the password from the first line of standard input")
    })
}

pub(super) fn host_config(request: &MountRequest, base: Vec<u8>) -> host::Config {
    let options = &request.host;
    host::Config {
        base,
        max_conns: options.max_conns.map_or(host::AUTOMATIC_CONNS, |conns| conns as usize),
        measure_gain: true,
        idle_limit: host::Config::default().idle_limit,
        follow_symlinks: options.follow_symlinks,
        sync_readdir: options.sync_readdir,
        max_read: options.max_read_bytes,
        max_write: options.max_write_bytes,
        disable_hardlink: options.disable_hardlink,
        rename_workaround: options.rename_workaround,
        renamexdev_workaround: options.renamexdev_workaround,
        stall_limit: options.request_timeout,
        reconnect: options.reconnect,
        delay_connect: options.delay_connect,
        check_root: options.check_root,
    }
}

pub(super) fn recovery_config(request: &MountRequest, name: String) -> recovery::Config {
    recovery::Config {
        retry_policy: match request.patience {
            // Nothing blocks here.
            _ if !request.host.reconnect => recovery::RetryPolicy::None,
            Patience::Hard => recovery::RetryPolicy::Hard,
            Patience::Soft(time) => recovery::RetryPolicy::Soft(time),
        },
        name,
        ..recovery::Config::default()
    }
}

pub(super) fn replicas_config(mode: PoolMode) -> replicas::Config {
    replicas::Config {
        mode: match mode {
            PoolMode::Balance => replicas::Mode::Balance,
            PoolMode::Hash => replicas::Mode::Hash,
            PoolMode::Failover => replicas::Mode::Failover,
        },
        ..replicas::Config::default()
    }
}

pub(super) fn policies(request: &MountRequest) -> union::Policies {
    union::Policies {
        create: match request.union.create {
            CreatePolicy::EpFf => union::CreatePolicy::EpFf,
            CreatePolicy::Ff => union::CreatePolicy::Ff,
            CreatePolicy::EpMfs => union::CreatePolicy::EpMfs,
            CreatePolicy::Mfs => union::CreatePolicy::Mfs,
            CreatePolicy::Rand => union::CreatePolicy::Rand,
        },
        action: match request.union.action {
            ActionPolicy::First => union::ActionPolicy::First,
            ActionPolicy::All => union::ActionPolicy::All,
        },
    }
}

pub(super) fn mode(mode: Mode) -> union::Mode {
    match mode {
        Mode::ReadWrite => union::Mode::Rw,
        Mode::ReadOnly => union::Mode::Ro,
        Mode::NoCreate => union::Mode::NoCreate,
    }
}

pub(super) fn presence(presence: Presence) -> union::Presence {
    match presence {
        Presence::Required => union::Presence::Required,
        Presence::Optional => union::Presence::Optional,
    }
}
