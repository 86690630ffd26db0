//! Captures that sealed processes write, read by tshark with our dissector: in mode `auth` every inner frame is shown, in mode
//! `encrypt` nothing is but what R-61 and R-62 say.
//!
//! Skipped where there is no tshark with Lua.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{command, finish, json, skipped, text};

/// What the dissector shows of each frame of a capture: kind, the seal's flags, key id and counter, step of a handshake, kinds
/// of inner frames, an inner frame's session, complaints, and its line.
const FIELDS: [&str; 9] = [
    "tsumuji.kind",
    "tsumuji.flags",
    "tsumuji.key_id",
    "tsumuji.counter",
    "tsumuji.step",
    "tsumuji.session",
    "tsumuji.proof",
    "_ws.expert.message",
    "_ws.col.Info",
];

fn shown(file: &Path, config: &Path) -> Vec<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/tsumuji.lua");
    let fields = FIELDS.iter().flat_map(|field| ["-e", field]);
    let output = Command::new("tshark")
        .env("WIRESHARK_CONFIG_DIR", config)
        .args(["-n", "-X"])
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "aggregator=;"])
        .args(fields)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("Lua"), "{said}");
    let lines = text(&output.stdout);
    lines
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

/// Whether tshark runs and knows Lua.
fn has_tshark(test: &str) -> bool {
    let version = Command::new("tshark").arg("--version").output();
    let has = version.is_ok_and(|output| text(&output.stdout).contains("with Lua"));
    if !has {
        skipped(
            test,
            "no tshark with Lua (`scripts/setup.sh test` installs it)",
        );
    }
    has
}

/// Every frame of a sealed run is of a kind and form that the rules name, and shows as much as its mode says.
#[test]
fn sealed_runs_are_decoded() {
    if !has_tshark("sealed_runs_are_decoded") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let key = at("lab.key");
    let key = key.to_str().unwrap();
    assert_eq!(json(&["key", key]).0, 0);
    for mode in ["auth", "encrypt"] {
        let trace = at(&format!("{mode}.pcapng"));
        let solve = command(&[
            "solve",
            "--generate",
            "poisson2d:12",
            "--workers",
            "2",
            "--link",
            "udp",
            "--key",
            key,
            "--seal",
            mode,
            "--json",
        ])
        .env("TSUMUJI_CAPTURE", &trace)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
        let output = finish(solve);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let mut steps = BTreeSet::new();
        let mut inner_kinds = BTreeSet::new();
        for worker in 1..=2 {
            let frames = shown(&at(&format!("{mode}.{worker}.pcapng")), folder.path());
            assert!(frames.len() > 20, "{} frames", frames.len());
            let mut counters = HashSet::new();
            for frame in &frames {
                let [
                    kinds,
                    flags,
                    key_id,
                    counter,
                    step,
                    session,
                    proof,
                    complaint,
                    line,
                ] = &frame[..]
                else {
                    panic!("{frame:?}");
                };
                assert!(
                    !line.contains("MALFORMED") && !line.contains("DROPPED"),
                    "{line}"
                );
                let mut kinds = kinds.split(';');
                let flags = flags.split(';').next().unwrap();
                let readable = mode == "auth";
                match kinds.next().unwrap() {
                    "8" => {
                        steps.insert(step.clone());
                        assert_eq!(proof.len(), 64, "32 bytes of {line}");
                        assert_eq!(flags, if readable { "0x01" } else { "0x00" });
                    }
                    "7" => {
                        let nonce = (key_id.clone(), counter.clone());
                        assert!(counters.insert(nonce), "a counter comes twice: {line}");
                        let control = flags == "0x04";
                        let wanted: &[&str] = if readable {
                            &["0x01", "0x03", "0x04"]
                        } else {
                            &["0x00", "0x02", "0x04"]
                        };
                        assert!(wanted.contains(&flags), "{line}");
                        let inner = kinds.next();
                        assert_eq!(inner.is_some(), readable && !control, "{line}");
                        inner_kinds.extend(inner.map(str::to_owned));
                        // Only an inner frame has a session, and only it can be sent again or refused.
                        assert!(readable || (session.is_empty() && complaint.is_empty()));
                    }
                    other => panic!("kind {other} on a sealed link: {line}"),
                }
                assert_eq!(kinds.next(), None, "one frame in an envelope: {line}");
            }
        }
        let all = ["0", "1", "2", "3"].map(str::to_owned);
        assert_eq!(steps, BTreeSet::from(all), "all steps were seen");
        if mode == "auth" {
            for kind in ["0", "2", "3", "4"] {
                assert!(inner_kinds.contains(kind), "{inner_kinds:?}");
            }
        }
    }
}
