//! The conformance suite over a `Recovering`.

use std::sync::Arc;

use recovery::{Config, Recovering};
use testkit::conformance::Fixture;
use testkit::{FaultyRemote, MemRemote};

/// Over a remote that answers at once.
mod at_once {
    use super::*;

    async fn ground() -> Fixture {
        let memory = Arc::new(MemRemote::new());
        let counted = memory.clone();
        let recovering = Recovering::new(memory, Config::default());
        Fixture::new(recovering).counting(move || counted.open_handles())
    }

    testkit::conformance!(ground);
}

/// Over a remote that answers later, through a faulty one without faults.
mod later {
    use super::*;

    async fn ground() -> Fixture {
        let memory = Arc::new(MemRemote::new());
        memory.set_pending(true);
        let counted = memory.clone();
        let faulty = FaultyRemote::new(memory);
        faulty.set_write_verifier("this one");
        let recovering = Recovering::new(Arc::new(faulty), Config::default());
        Fixture::new(recovering).counting(move || counted.open_handles())
    }

    testkit::conformance!(ground);
}

/// Over a remote whose link breaks all the time.
mod blinking {
    use super::*;
    use base::Errno;
    use std::time::Duration;
    use testkit::conformance::Expectations;
    use testkit::mem::Options;

    /// Minimum time between two breaks: long enough for progress.
    const LINK_STANDS: Duration = Duration::from_millis(20);

    /// Minimum number of calls between two breaks, as long as calls are made: on a busy machine,
    /// time alone does not ensure progress.
    const CALLS: u64 = 16;

    /// Two listings of 5,000 entries take fewer than [`CALLS`] calls: a listing that is interrupted
    /// begins again.
    const LISTING_BATCH: usize = 1_000;

    /// The link breaks when no call was made for this time.
    const IDLE: Duration = Duration::from_millis(200);

    struct Blinking(tokio::task::JoinHandle<()>);

    impl Drop for Blinking {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    async fn ground() -> Fixture {
        let options = Options { listing_batch: LISTING_BATCH, ..Options::default() };
        let memory = Arc::new(MemRemote::with(options));
        memory.set_pending(true);
        let counted = memory.clone();
        let faulty = Arc::new(FaultyRemote::new(memory));
        let blinked = faulty.clone();
        let blinking = tokio::spawn(async move {
            loop {
                let before = blinked.round_trips();
                tokio::time::sleep(LINK_STANDS).await;
                let (mut last, mut idle) = (before, Duration::ZERO);
                while last < before + CALLS && idle < IDLE {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    idle += Duration::from_millis(1);
                    let calls = blinked.round_trips();
                    if calls != last {
                        (last, idle) = (calls, Duration::ZERO);
                    }
                }
                blinked.cut();
                tokio::task::yield_now().await;
                blinked.restore_without_handles(Errno::ESTALE);
            }
        });
        let recovering = Recovering::new(faulty, Config::default());
        Fixture::new(recovering)
            .expecting(Expectations::default())
            .counting(move || counted.open_handles())
            .keeping(Blinking(blinking))
    }

    /// The rules that do not continue with a file without a name, which cannot be reopened.
    macro_rules! rules {
        ($($family:ident: $($rule:ident)*;)*) => {
            $($(
                #[test]
                fn $rule() {
                    testkit::conformance::run_rule(
                        |ground| Box::pin(testkit::conformance::$family::$rule(ground)),
                        ground,
                    );
                }
            )*)*
        };
    }

    rules! {
        opening: exclusive_means_new truncating_at_open_empties
            the_attributes_of_an_open_are_the_files;
        reading: reads_of_any_size_return_what_was_written reads_are_short_only_at_the_end;
        writing: writes_of_any_size_arrive_whole a_write_changes_its_range_and_nothing_else
            a_file_is_truncated_and_extended;
        ordering: overlapping_writes_end_as_the_last a_size_change_keeps_its_order
            many_calls_at_once_do_not_mix;
        handles: a_renamed_file_is_still_open a_closed_handle_is_an_error
            a_handle_is_finished_behind_its_writes a_dropped_finish_closes_the_handle;
        directories: a_directory_is_created_and_removed
            a_listing_is_complete_and_without_duplicates;
        names: names_are_removed_by_their_type an_absent_name_is_enoent;
        links: an_existing_name_is_not_replaced_by_a_link;
        renaming: every_type_onto_every_type a_directory_moves_with_all_that_is_in_it;
        attributes: each_part_is_set_alone an_open_file_is_changed_by_handle;
        cancelling: a_dropped_write_is_not_executed_late a_dropped_read_does_not_confuse_the_next;
    }
}
