//! Sealed processes, killed and restarted while they talk, as in `cycles`, and their keys changed under them: the key file is
//! replaced three times, as `docs/security.md` says. On hosts of their own (namespaces) a process with a wrong key and one with
//! none try to take part: they do not, they learn nothing, and they are counted.
//!
//! Needs root for namespaces; without, only shared memory is tried.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common;
use crate::talk::{self, NODES, Over, Place, Talker, cluster_file, run};
use tsumuji_link::shm::{ShmConfig, ShmJob};
use tsumuji_node::bootstrap::{ENV_CLUSTER, ENV_KEY, ENV_NODE, ENV_OPEN};
use tsumuji_node::{Channel, NodeId, endpoint_from_env};

const CYCLES: u32 = 12;
/// Nodes check their key file once a second; this much later all that run have checked, or nearly: a slow one comes later, as an
/// operator's slow host does.
const CHECKED: Duration = Duration::from_millis(1_500);
/// How long an intruder tries.
const TRIES: Duration = Duration::from_secs(2);
/// Set for the processes that try to take part without being able to.
const INTRUDER_ENV: &str = "TSUMUJI_KEYED_TEST_INTRUDER";
/// Hosts beside those of the nodes: of the one with a wrong key, and of the one without.
const INTRUDERS: u16 = 2;

/// The test that a started process runs: there it becomes a worker or an intruder, and ends.
const ENTRY: &str = "keyed::keyed_restarts_over_shared_memory";

/// What an intruder does; it does not return to its test. Its exit code tells if it was kept out.
fn intrude_if_started() {
    if std::env::var_os(INTRUDER_ENV).is_none() {
        return;
    }
    let mut endpoint = endpoint_from_env(talk::options()).expect("an endpoint");
    let me = endpoint.me();
    let begun = Instant::now();
    while begun.elapsed() < TRIES {
        for peer in (0..NODES).map(NodeId).filter(|peer| *peer != me) {
            let _ = endpoint.try_send(peer, Channel::ordered(0), &[0xff; 500]); // nobody takes it
            assert!(!endpoint.is_up(peer), "{peer} took us in");
        }
        let heard = endpoint.recv(Duration::from_millis(1)).expect("the link");
        assert!(heard.is_none(), "{heard:?}");
    }
    let counters = endpoint.counters();
    match counters.seal {
        Some(seal) => assert_eq!(
            (
                seal.opened,
                seal.control,
                seal.handshakes,
                seal.handshake_frames
            ),
            (0, 0, 0, 0),
            "{seal:?}"
        ),
        None => assert_eq!(counters.engine.delivered_messages, 0, "{counters:?}"),
    }
    drop(endpoint);
    std::process::exit(0);
}

/// A key file as `tsumuji key` makes it; its content.
fn new_key(folder: &Path, name: &str) -> String {
    let path = folder.join(name);
    let made = common::tsumuji(&["key", path.to_str().expect("text")]);
    assert!(made.status.success());
    std::fs::read_to_string(path).expect("the key")
}

/// Replaces the file at once, as an operator's script does.
fn replace(path: &Path, text: &str) {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let beside = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(&beside)
        .expect("a file");
    file.write_all(text.as_bytes()).expect("write");
    std::fs::rename(&beside, path).expect("rename");
}

fn talk_for(talker: &mut Talker, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        talker.talk_once();
    }
}

/// Kills, restarts and rotates; `later` is called in the end of it, under the new key.
fn rotate(
    place: &Place,
    folder: &Path,
    seed: u64,
    mut later: impl FnMut(&mut Talker),
) -> tsumuji_node::Counters {
    let key = place.key.as_deref().expect("a key");
    let (old, new) = (
        std::fs::read_to_string(key).expect("the key"),
        new_key(folder, "new"),
    );
    run(place, CYCLES, seed, |cycle, talker| {
        let rekeys = |talker: &Talker| talker.endpoint.counters().seal.expect("sealed").rekeys;
        match cycle {
            2 => {
                replace(key, &format!("{old}{new}"));
                talk_for(talker, CHECKED);
            }
            4 => {
                let before = rekeys(talker);
                replace(key, &format!("{new}{old}"));
                let begun = Instant::now();
                // All three of the others live, so each has a session to be renewed.
                while rekeys(talker) < before + u64::from(NODES) - 1 {
                    assert!(
                        begun.elapsed() < common::PATIENCE,
                        "sessions are not renewed"
                    );
                    talker.talk_once();
                }
            }
            6 => {
                replace(key, &new);
                talk_for(talker, CHECKED);
            }
            8 => later(talker),
            _ => {}
        }
    })
}

/// In shared memory: every life agrees on keys anew.
#[test]
fn keyed_restarts_over_shared_memory() {
    talk::work_if_started();
    intrude_if_started();
    let folder = tempfile::tempdir().expect("folder");
    new_key(folder.path(), "key");
    let job = ShmJob::create(NODES.into(), ShmConfig::for_nodes(NODES.into())).expect("create");
    let place = Place {
        key: Some(folder.path().join("key")),
        ..Place::new(Over::Shm(job), ENTRY)
    };
    let counters = rotate(&place, folder.path(), 5, |_| {});
    let seal = counters.seal.expect("sealed");
    assert!(seal.handshakes > u64::from(CYCLES), "{seal:?}");
}

/// Takes the calling thread into a namespace.
fn enter(name: &str) {
    let namespace = std::fs::File::open(format!("/run/netns/{name}")).expect("the namespace");
    let kind = rustix::thread::LinkNameSpaceType::Network;
    rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(kind))
        .expect("setns");
}

/// An intruder on its host, as node 3 from there.
fn start_intruder(place: &Place, host: u16, cluster: &Path, key: Option<&Path>) -> Child {
    let mut command = place.command(host);
    command
        .env(INTRUDER_ENV, "1")
        .env(ENV_NODE, (NODES - 1).to_string())
        .env(ENV_CLUSTER, cluster)
        .env_remove(ENV_KEY);
    match key {
        Some(key) => command.env(ENV_KEY, key),
        None => command.env(ENV_OPEN, "1"),
    };
    command.spawn().expect("spawn")
}

fn keyed_restarts_over(link: &'static str) {
    let test = format!("keyed_restarts_over_{link}");
    let Some(testbed) = common::testbed(&test, NODES + INTRUDERS) else {
        return;
    };
    let hosts = testbed.hosts();
    let address = move |host: &tsumuji_testbed::Host| match link {
        "udp" => format!("addr = \"udp:{}:7000\"", host.ip()),
        _ => format!(
            "addr = \"{link}:{}\"\nmac = \"{}\"",
            host.interface(),
            host.mac()
        ),
    };
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    new_key(folder.path(), "key");
    new_key(folder.path(), "wrong");
    std::fs::copy(at("key"), at("old")).expect("copy");
    let cluster = cluster_file(folder.path(), |node| address(&hosts[usize::from(node)]));
    // As the intruders have it: node 3 lives where they do.
    let theirs: Vec<PathBuf> = (NODES..NODES + INTRUDERS)
        .map(|own| {
            let folder = at(&format!("host{own}"));
            std::fs::create_dir(&folder).expect("folder");
            cluster_file(&folder, |node| {
                let host = if node == NODES - 1 { own } else { node };
                address(&hosts[usize::from(host)])
            })
        })
        .collect();
    let place = Place {
        key: Some(at("key")),
        namespaces: hosts.iter().map(|host| host.netns().to_owned()).collect(),
        ..Place::new(Over::Cluster(cluster), ENTRY)
    };
    // The test's own thread stays where it is.
    let counters = std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            enter(hosts[0].netns());
            rotate(&place, folder.path(), 7, |talker| {
                let keys = [at("wrong"), at("old")];
                let start = |host: u16, key: Option<&PathBuf>| {
                    let cluster = &theirs[usize::from(host - NODES)];
                    start_intruder(&place, host, cluster, key.map(PathBuf::as_path))
                };
                let mut kept_out = |mut child: Child, who: &str| {
                    let status = loop {
                        match child.try_wait().expect("wait") {
                            Some(status) => break status,
                            None => talker.talk_once(),
                        }
                    };
                    assert!(status.success(), "{link}, {who} got in: {status}");
                };
                let keyless = start(NODES + 1, None);
                kept_out(start(NODES, Some(&keys[0])), "one with a wrong key");
                kept_out(keyless, "one without key");
                // Last, so that all have seen that the old key is gone.
                kept_out(start(NODES, Some(&keys[1])), "one with the old key");
            })
        });
        run.join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let seal = counters.seal.expect("sealed");
    assert!(seal.wrong_key > 0 && seal.unsealed > 0, "{seal:?}");
    assert!(seal.handshakes > u64::from(CYCLES), "{seal:?}");
    assert_eq!(seal.peers, u64::from(NODES) - 1, "{seal:?}");
    assert_eq!(
        counters.spoofed_source_frames, 0,
        "what nodes without the key sent came through"
    );
    let removed = testbed.down();
    assert!(removed.is_ok(), "{removed:?}");
}

/// Each life takes up the address of the one before it.
#[test]
fn keyed_restarts_over_udp() {
    keyed_restarts_over("udp");
}

/// The same over raw Ethernet, past the kernel.
#[test]
fn keyed_restarts_over_xdp() {
    keyed_restarts_over("xdp");
}
