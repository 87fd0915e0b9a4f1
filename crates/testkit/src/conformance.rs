//! The rules for every [`Remote`](base::Remote), one test each.
//!
//! [`conformance!`](crate::conformance!) generates the tests for one kind of remote:
//!
//! ```
//! mod memory {
//!     use std::sync::Arc;
//!     use testkit::MemRemote;
//!     use testkit::conformance::Fixture;
//!
//!     async fn fixture() -> Fixture {
//!         let remote = Arc::new(MemRemote::new());
//!         let counted = remote.clone();
//!         Fixture::new(remote).counting(move || counted.open_handles())
//!     }
//!
//!     testkit::conformance!(fixture);
//! }
//! ```
//!
//! The rules are those of [`base::remote`] and of its methods' documentation. A kind of remote
//! declares in its [`Expectations`] what it does not support; the rule then checks that it fails
//! instead of doing something else.

pub mod attributes;
pub mod cancelling;
pub mod copying;
pub mod directories;
pub mod extensions;
mod fixture;
pub mod handles;
pub mod links;
pub mod locking;
pub mod names;
pub mod opening;
pub mod ordering;
pub mod reading;
pub mod renaming;
pub mod writing;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use fixture::{Expectations, Fixture};

/// Time limit of a rule: far longer than any rule needs, so that a hanging one fails.
const RULE_LIMIT: Duration = Duration::from_secs(120);

/// A rule's future.
pub type Check<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Runs `rule` on a new fixture with its own runtime, and then checks for leaked handles.
///
/// # Panics
///
/// If the rule is broken, or takes two minutes.
pub fn run_rule<F: Future<Output = Fixture>>(
    rule: impl for<'a> FnOnce(&'a Fixture) -> Check<'a>,
    make: impl FnOnce() -> F,
) {
    // Two threads, so that background tasks of the remote run concurrently with the rule.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let in_time = tokio::time::timeout(RULE_LIMIT, async {
            let fixture = make().await;
            rule(&fixture).await;
            fixture.no_handle_leaked().await;
        });
        in_time.await.expect("the rule was not done in time");
    });
}

/// The list of all rules. `$d` is a dollar sign, needed by the macro inside.
macro_rules! rules {
    ($d:tt $($family:ident: $($rule:ident)*;)*) => {
        /// Generates a `#[test]` for each rule. The argument is an `async fn() ->
        /// `[`Fixture`](crate::conformance::Fixture).
        #[macro_export]
        macro_rules! conformance {
            ($d make:expr) => {
                $($(
                    #[test]
                    fn $rule() {
                        $d crate::conformance::run_rule(
                            |fixture| Box::pin($d crate::conformance::$family::$rule(fixture)),
                            $d make,
                        );
                    }
                )*)*
            };
        }

        /// The names of all rules, by module.
        #[cfg(test)]
        const RULES: &[(&str, &[&str])] =
            &[$((stringify!($family), &[$(stringify!($rule)),*]),)*];
    };
}

rules! { $
    opening:
        a_new_file_is_empty_with_at_most_its_permissions
        opening_an_existing_file_changes_nothing
        exclusive_means_new
        truncating_at_open_empties
        only_regular_files_are_opened
        the_attributes_of_an_open_are_the_files;
    reading:
        reads_of_any_size_return_what_was_written
        reads_are_short_only_at_the_end
        a_hole_reads_as_zeros
        access_is_limited_to_the_open_mode
        a_small_file_is_read_whole_or_by_more_requests;
    writing:
        writes_of_any_size_arrive_whole
        a_write_changes_its_range_and_nothing_else
        appends_go_to_the_end
        a_file_is_truncated_and_extended
        fsync_works_or_is_unsupported;
    ordering:
        overlapping_writes_end_as_the_last
        a_read_sees_the_writes_before_it
        appends_keep_their_order
        a_size_change_keeps_its_order
        many_calls_at_once_do_not_mix;
    handles:
        an_unlinked_file_remains_usable
        a_replaced_file_remains_usable
        a_renamed_file_is_still_open
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
        paths_can_be_deep
        an_absent_name_is_enoent
        a_file_is_no_directory
        names_are_removed_by_their_type;
    links:
        a_target_is_kept_unchanged
        links_are_not_followed
        only_links_are_read
        an_existing_name_is_not_replaced_by_a_link
        two_names_are_one_file;
    renaming:
        every_type_onto_every_type
        onto_itself_changes_nothing
        into_itself_is_impossible
        over_a_parent_is_impossible
        both_parents_must_exist
        a_directory_moves_with_all_that_is_in_it
        names_are_exchanged;
    extensions:
        special_files_are_created
        space_is_reserved
        holes_are_made_and_found
        an_attribute_is_set_and_removed
        an_attribute_of_a_link_is_not_that_of_its_target;
    attributes:
        each_part_is_set_alone
        an_open_file_is_changed_by_handle
        an_open_file_without_a_name_is_changed_by_handle
        times_are_kept
        permissions_are_kept
        a_link_is_changed_itself
        a_change_updates_mtime
        owners_are_set
        statvfs_is_plausible
        a_file_keeps_its_identity;
    copying:
        a_copy_equals_its_source
        a_copy_changes_only_its_range;
    locking:
        locks_exclude_each_other_by_range_and_kind
        both_families_are_apart
        a_failed_conversion_of_flock_removes_the_old_lock
        a_waiting_lock_is_set_after_an_unlock
        a_dropped_call_leaves_the_locks_as_they_were
        locks_end_with_their_handles;
    cancelling:
        a_dropped_call_leaves_nothing
        a_dropped_write_is_not_executed_late
        a_dropped_read_does_not_confuse_the_next;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rule that is not in the list would never run.
    #[test]
    fn every_rule_is_in_the_list() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
        for (family, rules) in RULES {
            let source = std::fs::read_to_string(format!("{directory}/{family}.rs")).unwrap();
            let written = source.lines().filter_map(|line| line.strip_prefix("pub async fn "));
            let written: Vec<&str> =
                written.map(|rest| rest.split('(').next().unwrap_or(rest)).collect();
            assert_eq!(&written, rules, "rules of {family}.rs");
        }
    }
}
