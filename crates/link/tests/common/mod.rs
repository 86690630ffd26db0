//! One test per check of the conformance suite, for a factory.

/// Makes the tests. `skip if` an expression gives a reason: they print it and test nothing.
#[macro_export]
macro_rules! conformance_tests {
    ($make:expr) => {
        conformance_tests!(skip if None::<String>; $make);
    };
    (skip if $lacking:expr; $make:expr) => {
        conformance_tests!(@each $lacking; $make;
            caps_are_sane
            frames_arrive_intact
            burst_arrives
            full_link_refuses_and_recovers
            declined_fill_sends_nothing
            wait_ends_without_frames
            broadcast_reaches_all_others
            counters_add_up
            garbage_addresses_do_no_harm
            many_peers_talk
            stream_between_threads
            no_wake_is_lost
            no_wake_through_fd_is_lost
        );
    };
    (@each $lacking:expr; $make:expr; $($check:ident)*) => {
        $(
            #[test]
            fn $check() {
                if let Some(reason) = $lacking {
                    eprintln!("{reason}");
                    return;
                }
                tsumuji_link::conformance::$check(&$make);
            }
        )*
    };
}
