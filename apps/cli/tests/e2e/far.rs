//! TCP's semantics through gateways: the cases of the sockets layer, between two gateways on this host that stand for two hosts. Kernel TCP is the oracle.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{command, free_ports, run, skipped, text};
use crate::groups::{self, GROUPS};
use crate::runs::library;

/// Cases that see something else, and why (docs/sockets.md, "Limits"). They must end all the same.
const OTHERS: [(&str, &str); 16] = [
    ("exec_", BACK),
    ("spawn", BACK),
    ("pass_descriptor_with_data", BACK),
    ("copy_to_standard_input", BACK),
    ("system_io_uring_when_carried", BACK),
    ("ready_full", ROOM),
    ("full_then_drained", ROOM),
    ("poll_room", ROOM),
    ("poll_for_room_after_shutdown", ROOM),
    ("poll_other_names", ROOM),
    ("epoll_room", ROOM),
    ("epoll_edge_after_fork", EDGE),
    ("epoll_edge_cold", EDGE),
    ("ready_cold_data_epoll_edge", EDGE),
    (
        "signal_of_input",
        "what is on its way when signals are asked for brings none",
    ),
    (
        "splice_both_ways",
        "a call that does not wait finds the other end's end later than over loopback",
    ),
];
const BACK: &str = "what is on its way cannot go back to TCP, so the connection ends";
const EDGE: &str =
    "an edge is reported once more when a gateway takes what was written, or both ends agree";
const ROOM: &str = "gateways hold more than a socket, so there is room again";

/// What depends on the moment at which both ends agree is tried so often; at least once all must be as the kernel has it.
const TRIES: usize = 6;

struct Gateways(Vec<Child>);

impl Drop for Gateways {
    fn drop(&mut self) {
        for gateway in &mut self.0 {
            let _ = gateway.kill(); // it may have ended
            let _ = gateway.wait();
        }
    }
}

/// Two gateways on this host: programs find the first, and the second has the loopback addresses. The error: why there are none.
fn gateways(folder: &Path) -> Result<Gateways, String> {
    let first = free_ports(2).start;
    let node = |id: u16| {
        let port = first + id;
        format!("[[node]]\nid = {id}\nhost = \"host{id}\"\naddr = \"udp:127.0.0.1:{port}\"\n")
    };
    let file = folder.join("hosts.toml");
    std::fs::write(&file, node(0) + &node(1)).unwrap();
    let file = file.to_str().unwrap();
    let words = ["gateway", "--open", "--hosts", file, "--id"];
    let first = [&words[..], &["0", "--stands-for", "192.0.2.1"]].concat();
    let second = [
        &words[..],
        &["1", "--second", "--stands-for", "127.0.0.1,::1"],
    ]
    .concat();
    let mut both = Gateways(Vec::new());
    for words in [first, second] {
        let child = command(&words).stderr(Stdio::piped()).spawn().unwrap();
        both.0.push(child);
    }
    for gateway in &mut both.0 {
        let mut told = String::new();
        let lines = BufReader::new(gateway.stderr.take().unwrap()).lines();
        let serves = lines.map_while(Result::ok).any(|line| {
            told += &line;
            line.starts_with("node ")
        });
        if !serves {
            return Err(told);
        }
    }
    Ok(both)
}

/// What each case has written.
fn seen(program: &Path, words: &[&str], library: Option<&Path>) -> BTreeMap<String, Vec<String>> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    if let Some(library) = library {
        command
            .env("LD_PRELOAD", library)
            .env("TSUMUJI_SOCKETS_LINK", "far")
            .env("SEMANTICS_PAUSE_MS", "5");
    }
    let output = run(&mut command);
    assert!(output.status.success(), "{words:?}: {}", output.status);
    groups::cases(&text(&output.stdout))
}

fn built(folder: &Path) -> Option<PathBuf> {
    let sources =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/sockets/tests/semantics");
    let files = std::fs::read_dir(sources).unwrap();
    let files = files.map(|file| file.unwrap().path());
    let program = folder.join("semantics");
    let status = Command::new("gcc")
        .args(["-std=gnu11", "-O1", "-Wno-stringop-overflow", "-o"])
        .arg(&program)
        .args(files.filter(|file| file.extension().is_some_and(|kind| kind == "c")))
        .arg("-lpthread")
        .status();
    assert!(status.ok()?.success());
    Some(program)
}

/// Every case ends, and sees through gateways what it sees over kernel TCP, but for those that are named.
#[test]
fn semantics_through_gateways() {
    let test = "semantics_through_gateways";
    let Some(library) = library(test) else { return };
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = built(folder.path()) else {
        return skipped(test, "gcc is not installed");
    };
    let _gateways = match gateways(folder.path()) {
        Ok(both) => both,
        Err(why) if why.contains("another gateway") => return skipped(test, &why),
        Err(why) => panic!("{why}"),
    };
    let mut wrong = String::new();
    let mut total = 0;
    for words in GROUPS {
        let kernel = seen(&program, words, None);
        let first = seen(&program, words, Some(&library));
        total += kernel.len();
        for (name, expected) in &kernel {
            let mut found = first.get(name).cloned();
            let is_other = OTHERS.iter().any(|(other, _)| name.starts_with(other));
            let mut tries = 1;
            let hangs = |found: &Option<Vec<String>>| {
                let last = found.as_ref().and_then(|lines| lines.last());
                last.is_none_or(|line| line.contains("signal ALRM"))
            };
            while found.as_ref() != Some(expected) && !hangs(&found) && !is_other && tries < TRIES {
                found = seen(&program, &[name], Some(&library)).remove(name);
                tries += 1;
            }
            if found.as_ref() != Some(expected) && (!is_other || hangs(&found)) {
                wrong += &format!(
                    "{name}, {tries} tries\n  kernel: {expected:?}\n  ours:   {found:?}\n"
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert!(total > 200, "{total} cases only");
    println!("{total} cases");
}
