//! The server side: a private sshd behind a link, or somebody's host.
