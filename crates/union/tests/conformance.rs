//! The conformance suite over unions of fault-free remotes.

use std::sync::Arc;

use base::{Name, Remote};
use testkit::MemRemote;
use testkit::conformance::Fixture;
use testkit::mem::Options;
use union::{ActionPolicy, Branch, CreatePolicy, Mode, Policies, Presence, Union};

fn branch(number: usize, remote: Arc<dyn Remote>, mode: Mode) -> Branch {
    Branch {
        name: format!("host{number}:/d"),
        host: format!("host{number}"),
        place: Vec::new(),
        remote,
        mode,
        presence: Presence::Required,
    }
}

fn remotes(count: usize) -> Vec<Arc<MemRemote>> {
    // The first answers at once, the second from another task, in small batches and without
    // attributes.
    let remote = |number: usize| {
        let late = number % 2 == 1;
        let options = Options { listing_batch: 7, listing_attrs: !late, ..Options::default() };
        let remote = Arc::new(MemRemote::with(options));
        remote.set_pending(late);
        remote
    };
    (0..count).map(remote).collect()
}

fn ground(modes: &[Mode], policies: Policies) -> Fixture {
    let remotes = remotes(modes.len());
    let branches = remotes.iter().zip(modes).enumerate();
    let branches = branches.map(|(number, (remote, mode))| branch(number, remote.clone(), *mode));
    let union = Union::new(branches.collect(), policies).unwrap();
    let open = move || remotes.iter().map(|remote| remote.open_handles()).sum();
    Fixture::new(Arc::new(union)).counting(open)
}

fn policies(create: CreatePolicy, action: ActionPolicy) -> Policies {
    Policies { create, action }
}

use ActionPolicy::{All, First};
use CreatePolicy::{EpFf, EpMfs, Ff, Rand};
use Mode::{NoCreate, Ro, Rw};

mod one {
    use super::*;
    async fn make() -> Fixture {
        ground(&[Rw], policies(EpFf, First))
    }
    testkit::conformance!(make);
}

mod first_of_two {
    use super::*;
    async fn make() -> Fixture {
        ground(&[Rw, Rw], policies(EpFf, First))
    }
    testkit::conformance!(make);
}

mod first_of_three {
    use super::*;
    async fn make() -> Fixture {
        ground(&[Rw, Rw, Rw], policies(Ff, All))
    }
    testkit::conformance!(make);
}

/// The first two are empty, and stay so.
mod last_of_three {
    use super::*;
    async fn make() -> Fixture {
        ground(&[Ro, NoCreate, Rw], policies(EpMfs, First))
    }
    testkit::conformance!(make);
}

/// New entries are on any branch. Left out are the rules of renaming onto an entry of another
/// branch, which is `EXDEV` there, and what a rename does to open files.
mod spread {
    use super::*;
    use testkit::conformance::*;

    async fn make() -> Fixture {
        ground(&[Rw, Rw, Rw], policies(Rand, All))
    }

    macro_rules! rules {
        ($($family:ident: $($rule:ident)*;)*) => {
            $($(
                #[test]
                fn $rule() {
                    run_rule(|ground| Box::pin($family::$rule(ground)), make);
                }
            )*)*
        };
    }

    rules! {
        opening:
            a_new_file_is_empty_with_at_most_its_permissions
            opening_an_existing_file_changes_nothing
            exclusive_means_new
            truncating_at_open_empties
            only_regular_files_are_opened
            the_attributes_of_an_open_are_the_files;
        writing:
            a_write_changes_its_range_and_nothing_else;
        handles:
            an_unlinked_file_remains_usable
            a_closed_handle_is_an_error
            a_handle_is_finished_behind_its_writes
            a_dropped_finish_closes_the_handle;
        directories:
            a_directory_is_created_and_removed
            a_listing_is_complete_and_without_duplicates
            an_empty_listing_ends_at_once
            attributes_of_a_listing_are_those_of_lstat
            a_listing_continues_while_entries_are_removed
            only_directories_are_listed
            entries_are_synced;
        names:
            names_are_bytes
            names_can_be_too_long
            an_absent_name_is_enoent
            a_file_is_no_directory
            names_are_removed_by_their_type;
        links:
            a_target_is_kept_unchanged
            links_are_not_followed
            only_links_are_read
            an_existing_name_is_not_replaced_by_a_link;
        attributes:
            each_part_is_set_alone
            an_open_file_is_changed_by_handle
            an_open_file_without_a_name_is_changed_by_handle
            permissions_are_kept
            a_link_is_changed_itself
            a_change_updates_mtime
            owners_are_set
            statvfs_is_plausible;
        cancelling:
            a_dropped_call_leaves_nothing
            a_dropped_write_is_not_executed_late;
    }
}

/// In a place of its own, covering the entries of a branch at the root.
mod placed {
    use super::*;
    use crate::through::Through;

    async fn make() -> Fixture {
        let remotes = remotes(3);
        let mut branches: Vec<Branch> = remotes
            .iter()
            .enumerate()
            .map(|(number, remote)| {
                branch(number, remote.clone(), if number == 0 { Ro } else { Rw })
            })
            .collect();
        let name = |text: &str| Name::new(text.as_bytes()).unwrap();
        branches[1].place = vec![name("place"), name("of")];
        branches[2].place = vec![name("place"), name("of")];
        let union = Union::new(branches, Policies::default()).unwrap();
        let below = Through::new(union, [name("place"), name("of")]);
        let open = move || remotes.iter().map(|remote| remote.open_handles()).sum();
        Fixture::new(Arc::new(below)).counting(open)
    }
    testkit::conformance!(make);
}

/// Two real servers, which follow links in the middle of a path and when they list, and do not
/// distinguish `ENOTDIR` from `ENOENT`: a union of several checks for itself.
mod over_sftp {
    use super::*;
    use crate::server::Server;
    use testkit::conformance::Expectations;

    async fn make() -> Fixture {
        let servers = [Server::start().await, Server::start().await];
        let branches = servers.iter().enumerate();
        let branches = branches.map(|(number, server)| branch(number, server.host.clone(), Rw));
        let union = Union::new(branches.collect(), policies(EpFf, First)).unwrap();
        let expectations = Expectations {
            statvfs_follows_links: true,
            chown: rustix::process::getuid().is_root(),
            ..Expectations::default().of_plain_sftp()
        };
        let open = move || servers.iter().map(Server::open_handles).sum();
        Fixture::new(Arc::new(union)).expecting(expectations).counting(open)
    }
    testkit::conformance!(make);
}

#[path = "kit/server.rs"]
mod server;
#[path = "kit/through.rs"]
mod through;
