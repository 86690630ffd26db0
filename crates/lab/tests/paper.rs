//! The shipped descriptions beside the paper's numbers.

use std::path::Path;

use tsumuji_lab::beside::median_deviation_percent;
use tsumuji_lab::{Description, Setting, shipped};

fn named(name: &str) -> Description {
    shipped::named(name).expect("it is shipped")
}

fn us(description: &Description, variant: &str, bytes: u64) -> f64 {
    let variant = description.variant(variant).expect("a variant");
    description
        .outcome(variant, bytes, &Setting::default())
        .total_us
}

/// Every number of the paper's tables is met within 5 %.
#[test]
fn every_number_of_the_paper_is_met() {
    for (name, count) in [("myrinet", 18 + 9 + 4), ("rhinet", 13 + 3)] {
        let all = named(name).beside();
        assert_eq!(all.len(), count, "{name}");
        for one in &all {
            assert!(one.deviation_percent.abs() < 5.0, "{name}: {one:?}");
        }
        assert!(
            median_deviation_percent(&all).expect("there are some") < 2.0,
            "{name}"
        );
    }
}

/// Table 7: 102.056 us, with exactly four stages beside the critical path.
#[test]
fn rhinet_is_table_7() {
    let rhinet = named("rhinet");
    let now = rhinet.outcome(&rhinet.variants[0], 4096, &Setting::default());
    assert!((now.total_us - 102.056).abs() < 1e-6, "{}", now.total_us);
    let beside: Vec<&str> = now
        .stages
        .iter()
        .filter(|step| !step.is_critical)
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(
        beside,
        ["send setup", "send header", "send delay", "set up FIFO"]
    );
    let critical = now.stages.iter().filter(|step| step.is_critical);
    assert!((critical.map(|step| step.us).sum::<f64>() - now.total_us).abs() < 1e-9);
}

/// The forecast: 36.06 us at 33 MHz with long bursts.
#[test]
fn rhinet_improved_is_the_forecast() {
    let rhinet = named("rhinet");
    let improved = rhinet.improved.expect("it has a forecast");
    let then = rhinet.outcome(&rhinet.variants[0], 4096, &improved);
    assert!((then.total_us - 36.06).abs() < 0.05, "{}", then.total_us);
}

/// The bus moves 44 MB/s in bursts of 16 bytes; half of the LANai's memory is left for data, whatever the variant.
#[test]
fn ceilings_are_those_of_the_text() {
    let (rhinet, myrinet) = (named("rhinet"), named("myrinet"));
    let bus = rhinet.rate_mb_per_s(&rhinet.rates["bus"], &Setting::default());
    assert!((bus - 44.0).abs() < 1e-9, "{bus}");
    for variant in &myrinet.variants {
        let outcome = myrinet.outcome(variant, 16 << 20, &Setting::default());
        assert!(outcome.bandwidth < 133.0, "{}", variant.name);
    }
    let user = myrinet.outcome(&myrinet.variants[0], 16 << 20, &Setting::default());
    assert!(user.bandwidth > 120.0, "{}", user.bandwidth);
}

/// Copying the data wins for some tens of bytes, costs up to 5 % more at about 64, and gives a quarter at 10 KB.
#[test]
fn copying_wins_for_small_data_only() {
    let myrinet = named("myrinet");
    let pair = ["User:ST,DT", "User"].map(|name| myrinet.variant(name).expect("a variant"));
    let first = myrinet.crossover(pair, 0.0, 1 << 20, &Setting::default());
    assert!((16..=64).contains(&first.expect("they cross")), "{first:?}");
    let much = myrinet.crossover(pair, 5.0, 1 << 20, &Setting::default());
    assert!((64..=128).contains(&much.expect("they part")), "{much:?}");
    let share = us(&myrinet, "User", 10_000) / us(&myrinet, "User:ST,DT", 10_000);
    assert!((share - 0.25).abs() < 0.03, "{share}");
}

/// The user's start is slightly better than the kernel's, of all three pairs, and all work by the processor is best for 4 bytes only.
#[test]
fn user_is_slightly_ahead_of_the_kernel() {
    let myrinet = named("myrinet");
    for way in ["", ":ST", ":ST,DT"] {
        for bytes in [4, 64, 1024, 4096, 24576] {
            let user = us(&myrinet, &format!("User{way}"), bytes);
            let kernel = us(&myrinet, &format!("Syscall{way}"), bytes);
            assert!(
                kernel > user && kernel < user * 1.25,
                "{way}, {bytes} B: {user} {kernel}"
            );
        }
    }
    assert!(us(&myrinet, "Host", 8) < us(&myrinet, "User:ST,DT", 8));
    assert!(us(&myrinet, "Host", 16) > us(&myrinet, "User:ST,DT", 16));
}

/// A description of one's own: stages beside each other, and one that passes on the data of another by chunks.
#[test]
fn own_description_is_computed() {
    let text = "
        title = 'mine'
        [rate.fast]
        mb_per_s = 100
        [rate.slow]
        mb_per_s = 50
        [[variant]]
        name = 'v'
        stage = [
            { name = 'a', by = 'user', us = 1 },
            { name = 'b', by = 'interface', us = 3 },
            { name = 'c', by = 'kernel', us = 2, after = ['a'] },
            { name = 'd', by = 'interface', rates = ['fast'], after = ['b', 'c'] },
            { name = 'e', by = 'interface', rates = ['slow', 'fast'], overlaps = 'd', chunk_bytes = 100 },
        ]
        [[measured]]
        source = 'me'
        of = 'total_us'
        variant = 'v'
        bytes = 1000
        value = 20";
    let own = Description::parse(text, Path::new("mine")).expect("accepted");
    let found = own.outcome(&own.variants[0], 1000, &Setting::default());
    // a 0..1, b 1..4, c 1..3, d 4..14, e from 4 + 1 for 20.
    assert!((found.total_us - 25.0).abs() < 1e-9, "{found:?}");
    assert!((found.wait_us - 22.0).abs() < 1e-9, "{found:?}");
    let critical: Vec<bool> = found.stages.iter().map(|step| step.is_critical).collect();
    assert_eq!(critical, [true, true, false, true, true]);
    assert!((own.beside()[0].deviation_percent - 25.0).abs() < 1e-9);
    let empty = own.outcome(&own.variants[0], 0, &Setting::default());
    assert_eq!((empty.total_us, empty.bandwidth), (4.0, 0.0));
}

/// A clock that a description lacks cannot be changed.
#[test]
fn settings_without_effect_are_refused() {
    let mhz = Setting {
        mhz: Some(66.0),
        ..Setting::default()
    };
    assert!(named("rhinet").check(&mhz).is_ok());
    let refused = named("myrinet").check(&mhz).expect_err("it has no [clock]");
    assert!(refused.contains("no [clock]"), "{refused}");
}
