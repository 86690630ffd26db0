//! Processes that find each other by a cluster file, with losses and captures asked for by the environment.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tsumuji_node::{Channel, NodeId, Options, endpoint_from_env};

#[path = "../../../link/tests/common/ports.rs"]
mod ports;
use ports::free_ports;

const CHANNEL: Channel = Channel::ordered(0);
const LONG: Duration = Duration::from_secs(60);
const ENTER: &str = "TSUMUJI_TEST_CLUSTER_WORKER";
const MESSAGES: u32 = 200;

/// The test that a spawned process runs: there it talks, and ends.
const ENTRY: &str = "cluster::cluster_file_joins_processes";

/// What a spawned process does; it does not return to its test.
fn talk_if_spawned() {
    if std::env::var_os(ENTER).is_none() {
        return;
    }
    let code = match talk() {
        Ok(impaired) => {
            println!("impaired={impaired}");
            0
        }
        Err(error) => {
            eprintln!("failed: {error}");
            2
        }
    };
    std::process::exit(code);
}

/// Node 0 sends messages of many sizes, node 1 sends each back. Returns the frames dropped on purpose.
fn talk() -> Result<u64, Box<dyn std::error::Error>> {
    let mut endpoint = endpoint_from_env(Options::default())?;
    let peer = NodeId(1 - endpoint.me().0);
    for number in 0..MESSAGES {
        let message = vec![number as u8; (number * number) as usize];
        if endpoint.me() == NodeId(0) {
            endpoint.send(peer, CHANNEL, &message)?;
        }
        let got = endpoint.recv(LONG)?.ok_or("no message")?;
        if got.body != message {
            return Err("a wrong message".into());
        }
        if endpoint.me() == NodeId(1) {
            endpoint.send(peer, CHANNEL, &message)?;
        }
    }
    endpoint.flush(LONG)?;
    let impaired = endpoint.counters().link.impaired_frames;
    let _ = endpoint.close(Duration::from_secs(5));
    Ok(impaired)
}

fn start(cluster: &Path, node: &str, env: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().expect("own path"))
        .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
        .env(ENTER, "1")
        .env("TSUMUJI_CLUSTER", cluster)
        .env("TSUMUJI_NODE", node)
        .envs(env.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("spawn")
}

fn finish(mut child: Child) -> Output {
    let begun = Instant::now();
    while child.try_wait().expect("wait").is_none() {
        if begun.elapsed() > 2 * LONG {
            child.kill().expect("kill");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("output")
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tsumuji-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("folder");
        Self(path)
    }

    /// A cluster file of two nodes on free ports of loopback.
    fn cluster(&self) -> PathBuf {
        let nodes = free_ports(2).enumerate().map(|(id, port)| {
            format!("[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:127.0.0.1:{port}\"\n")
        });
        let path = self.0.join("cluster.toml");
        std::fs::write(&path, nodes.collect::<String>()).expect("write");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs both nodes; returns how many frames each dropped on purpose.
fn run(cluster: &Path, env: &[(&str, &str)]) -> [u64; 2] {
    ["0", "1"]
        .map(|node| start(cluster, node, env))
        .map(|child| {
            let output = finish(child);
            let text = String::from_utf8_lossy(&output.stdout);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{complaint}\n{text}");
            let impaired = text.split("impaired=").nth(1).expect("a count");
            let digits = impaired.split_whitespace().next().expect("digits");
            digits.parse().expect("a number")
        })
}

/// Frames of a capture: those that came and those that went, each with its Ethernet header. Panics on a damaged file.
fn frames(path: &Path) -> [Vec<Vec<u8>>; 2] {
    let file = std::fs::read(path).expect("capture");
    let word =
        |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes")) as usize;
    let mut frames = [Vec::new(), Vec::new()];
    let mut at = 0;
    while at < file.len() {
        let length = word(at + 4);
        assert!(
            length >= 12 && word(at + length - 4) == length,
            "a damaged block"
        );
        if word(at) == 6 {
            let captured = word(at + 20);
            let frame = file[at + 28..at + 28 + captured].to_vec();
            // The first option of ours says which way: 1 in, 2 out.
            let options = at + 28 + captured.next_multiple_of(4);
            frames[word(options + 4) - 1].push(frame);
        }
        at += length;
    }
    frames
}

/// How many packets tshark finds, where it is installed.
fn tshark_count(path: &Path) -> Option<usize> {
    let output = Command::new("tshark")
        .arg("-n")
        .arg("-r")
        .arg(path)
        .args(["-T", "fields", "-e", "frame.number"])
        .output()
        .ok()?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && !complaint.contains("appears"),
        "{complaint}"
    );
    Some(String::from_utf8_lossy(&output.stdout).lines().count())
}

/// Two processes, one cluster file: all messages arrive, also when frames are dropped on purpose.
#[test]
fn cluster_file_joins_processes() {
    talk_if_spawned();
    let folder = Folder::new("cluster");
    assert_eq!(run(&folder.cluster(), &[]), [0, 0]);
    let dropped = run(
        &folder.cluster(),
        &[("TSUMUJI_LOSS", "0.2"), ("TSUMUJI_SEED", "3")],
    );
    assert!(dropped.iter().all(|count| *count > 20), "{dropped:?}");
}

/// Each node's capture holds every frame that its program sent or got: after the losses, readable by tshark, frames as on the wire.
#[test]
fn captures_hold_all_frames() {
    let folder = Folder::new("capture");
    for loss in ["0", "0.2"] {
        let path = folder.0.join("trace.pcapng");
        let env = [
            ("TSUMUJI_CAPTURE", path.to_str().expect("text")),
            ("TSUMUJI_LOSS", loss),
        ];
        let dropped = run(&folder.cluster(), &env);
        let captures = ["0", "1"].map(|node| folder.0.join(format!("trace.{node}.pcapng")));
        let [of_0, of_1] = captures.each_ref().map(|path| frames(path));
        for (got, sent, dropped) in [
            (&of_1[0], &of_0[1], dropped[1]),
            (&of_0[0], &of_1[1], dropped[0]),
        ] {
            // UDP on loopback reorders nothing; frames sent before the other was there, or after it left, are missing.
            assert!(got.len() + dropped as usize <= sent.len());
            assert!(
                got.iter()
                    .all(|frame| frame[12..14] == [0x88, 0xb5] && frame.len() > 14)
            );
            let mut rest = sent.iter();
            assert!(
                got.iter().all(|frame| rest.any(|other| other == frame)),
                "a frame came that nobody sent"
            );
            assert_eq!(dropped > 20, loss != "0");
        }
        for (path, [came, went]) in captures.iter().zip([&of_0, &of_1]) {
            let ours = came.len() + went.len();
            assert!(ours > MESSAGES as usize);
            match tshark_count(path) {
                Some(theirs) => assert_eq!(theirs, ours),
                None => println!("SKIPPED tshark on {}: not installed", path.display()),
            }
        }
    }
}

/// What cannot be used is told in one line that names the file and the line, or the variable.
#[test]
fn bad_environment_is_told_in_one_line() {
    let folder = Folder::new("bad-cluster");
    let good = folder.cluster();
    let text = std::fs::read_to_string(&good).expect("read");
    let bad = folder.0.join("bad.toml");
    type Case<'a> = (String, &'a str, Vec<(&'a str, &'a str)>, String);
    let mut cases: Vec<Case<'_>> = [
        (
            text.replace("id = 1", "id = 7"),
            ":6: field `id`: 7 leaves a gap",
        ),
        (text.replace("udp:127", "tcp:127"), ":4: field `addr`: "),
        (
            text.replace("host = \"pc1\"", "hots = \"pc1\""),
            ":7: unknown field `hots`",
        ),
        ("[[node]\n".to_owned(), ":1: "),
        (String::new(), ":1: no [[node]]"),
    ]
    .map(|(text, problem)| (text, "0", Vec::new(), format!("{}{problem}", bad.display())))
    .into();
    let file = |problem: &str| format!("{}{problem}", bad.display());
    cases.push((
        text.clone(),
        "2",
        Vec::new(),
        file(": there is no node 2; the file has nodes 0 to 1"),
    ));
    cases.push((
        text.clone(),
        "x",
        Vec::new(),
        "environment variable TSUMUJI_NODE=`x`".to_owned(),
    ));
    cases.push((
        text.clone(),
        "0",
        vec![("TSUMUJI_LOSS", "1.5")],
        "environment variable TSUMUJI_LOSS=`1.5`".to_owned(),
    ));
    cases.push((
        text,
        "0",
        vec![("TSUMUJI_CAPTURE", "/no/such/folder/x.pcapng")],
        "cannot capture to /no/such/folder/x.0.pcapng: ".to_owned(),
    ));
    for (text, node, env, wanted) in cases {
        std::fs::write(&bad, text).expect("write");
        let output = finish(start(&bad, node, &env));
        assert_eq!(output.status.code(), Some(2));
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = complaint
            .trim_end()
            .strip_prefix("failed: ")
            .unwrap_or_else(|| panic!("{complaint}"));
        assert!(
            line.starts_with(&wanted) && !line.contains('\n'),
            "`{line}` does not start with `{wanted}`"
        );
    }
    let output = finish(start(Path::new("/no/such/cluster.toml"), "0", &[]));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("failed: /no/such/cluster.toml: "));
}
