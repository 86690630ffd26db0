//! Thresholds of endpoints: those that a program states, and those of the profile that the environment names.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{LONG, Over, inet, pair, udp};
use tsumuji_node::{Channel, Endpoint, Membership, NodeId, Options, Tuning};

const CHANNEL: Channel = Channel::ordered(0);
const ENTER: &str = "TSUMUJI_TEST_TUNING";
/// The test that a spawned process runs: there it opens an endpoint, and ends.
const ENTRY: &str = "tuning::profiles_are_read";

/// What a spawned process does; it does not return to its test.
fn open_if_spawned() {
    if std::env::var_os(ENTER).is_none() {
        return;
    }
    let link = udp();
    let membership = Membership::inet(NodeId(0), &[inet(&link)]);
    match Endpoint::new(link, membership, Options::default()) {
        Ok(endpoint) => println!("\ntuning: {:?}", endpoint.tuning()),
        Err(error) => println!("\nrefused: {error}"),
    }
    std::process::exit(0);
}

/// What an endpoint has in a process of its own. `home` has the user's profiles.
fn tuning_of(named: Option<&Path>, home: &Path) -> String {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
        .env(ENTER, "1")
        .env("XDG_CONFIG_HOME", home)
        .env_remove("TSUMUJI_TUNE");
    if let Some(path) = named {
        command.env("TSUMUJI_TUNE", path);
    }
    let Output { stdout, .. } = command.output().expect("run");
    let text = String::from_utf8_lossy(&stdout);
    let line = text
        .lines()
        .find(|line| line.starts_with("tuning: ") || line.starts_with("refused: "));
    line.unwrap_or_default().to_owned()
}

/// The named file comes before the user's own, `none` before both; a profile of another machine does not count, and what is none is an error.
#[test]
fn profiles_are_read() {
    open_if_spawned();
    let folder = std::env::temp_dir().join(format!("tsumuji-tuning-{}", std::process::id()));
    let own = folder.join("tsumuji/tune.toml");
    std::fs::create_dir_all(own.parent().expect("folder")).expect("folder");
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("written");
    let named = folder.join("named.toml");
    let of = |spin_us| {
        let tuning = Tuning {
            spin_us,
            ..Tuning::default()
        };
        format!("tuning: {tuning:?}")
    };
    assert_eq!(tuning_of(None, &folder), of(50), "there is no profile");
    write(&own, "[link.udp]\nspin_us = 30\n");
    assert_eq!(tuning_of(None, &folder), of(30));
    write(
        &named,
        "[link.udp]\nspin_us = 20\n\n[[rule]]\noperation = \"reduce\"\nalgorithm = \"tree\"\n",
    );
    assert_eq!(tuning_of(Some(&named), &folder), of(20));
    assert_eq!(tuning_of(Some(Path::new("none")), &folder), of(50));
    let foreign = "[machine]\ncpu = \"No such CPU\"\nprocessors = 3\n\n[link.udp]\nspin_us = 10\n";
    write(&own, foreign);
    assert_eq!(tuning_of(None, &folder), of(50), "of another machine");
    write(&own, "[link.udp]\nspin_us = 0\n");
    let refused = tuning_of(None, &folder);
    let wanted = format!(
        "refused: {}: line 2: 0: accepted are 2 to 1000",
        own.display()
    );
    assert_eq!(refused, wanted);
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// What a program states beyond the bounds counts as the bound: endpoints work with anything.
#[test]
fn thresholds_have_bounds() {
    let of = |[
        reference_bytes,
        borrow_bytes,
        frame_bytes,
        poll_frames,
        unscheduled_frames,
        spin_us,
        elements,
    ]: [usize; 7]| Tuning {
        reference_bytes,
        borrow_bytes,
        frame_bytes,
        poll_frames,
        unscheduled_frames,
        spin_us,
        elements,
    };
    for (value, wanted) in [
        (0, [4096, 1024, 1024, 4, 1, 2, 1]),
        (usize::MAX, [2 << 20, 32768, 65535, 64, 65536, 1000, 8192]),
    ] {
        let options = Options {
            tuning: Some(of([value; 7])),
            ..Options::default()
        };
        let (mut a, mut b) = pair(Over::Udp, &options);
        assert_eq!(a.tuning(), of(wanted));
        a.send(NodeId(1), CHANNEL, &[7; 20_000]).expect("sent");
        let got = b.recv(LONG).expect("recv").expect("message");
        assert_eq!(got.body, [7; 20_000]);
    }
}

/// Frames are as small as either side states; messages of all lengths arrive by any thresholds, over both kinds of links.
#[test]
fn thresholds_change_no_message() {
    let tight = Tuning {
        reference_bytes: 4096,
        borrow_bytes: 1024,
        frame_bytes: 1024,
        poll_frames: 4,
        unscheduled_frames: 1,
        spin_us: 2,
        elements: 1,
    };
    for (over, tuning) in [
        (Over::Udp, tight),
        (Over::Shm, tight),
        (Over::Udp, Tuning::default()),
    ] {
        let options = Options {
            tuning: Some(tuning),
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        assert_eq!(a.tuning(), tuning);
        let lengths = [0, 1, 900, 1024, 5000, 40_000, 300_000];
        for (number, length) in (0_u8..).zip(lengths) {
            let message = vec![number; length];
            let to = NodeId(1);
            std::thread::scope(|scope| {
                let received = scope.spawn(|| b.recv(LONG).expect("recv").expect("message"));
                if number % 2 == 0 {
                    a.send(to, CHANNEL, &message).expect("sent");
                } else {
                    a.send_shared(to, CHANNEL, message.clone().into())
                        .expect("sent");
                }
                assert!(a.flush(LONG).expect("flushed"));
                assert_eq!(received.join().expect("received").body, message);
            });
        }
        let (frames, least) = (a.counters().link.sent_frames, 300_000 / 1024);
        assert_eq!(
            frames > least,
            over == Over::Udp && tuning == tight,
            "{frames} frames of {tuning:?}"
        );
    }
}
