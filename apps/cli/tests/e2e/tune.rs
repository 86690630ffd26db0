//! `tsumuji tune`: the profile it writes is one that programs read, and bad wishes are refused in one line.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// With the user's profiles in that folder.
fn program(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tsumuji"));
    command
        .args(arguments)
        .env("XDG_CONFIG_HOME", home)
        .env_remove("TSUMUJI_TUNE");
    crate::common::run(&mut command)
}

fn tune(arguments: &[&str]) -> Output {
    program(Path::new("/nonexistent"), &[&["tune"], arguments].concat())
}

/// Every operation is measured with every algorithm, and the file holds a table that reads back as the one printed.
#[test]
fn table_is_written_and_read() {
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("tune.toml");
    let path = file.to_str().expect("text");
    let output = tune(&[
        "-n",
        "3",
        "--only",
        "collectives",
        "--max-bytes",
        "64",
        "--time",
        "1",
        "--output",
        path,
        "--json",
    ]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("did not end by itself"), "{said}");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one object");
    let table = tsumuji_collective::Table::read(&file).expect("a table");
    assert_eq!(
        serde_json::to_value(&table).expect("table"),
        printed["table"]
    );
    let measured = printed["measurements"].as_array().expect("list");
    for operation in ["broadcast", "reduce", "all-reduce", "all-gather"] {
        for nodes in [2, 3] {
            let of =
                |one: &&serde_json::Value| one["operation"] == operation && one["nodes"] == nodes;
            assert!(
                measured.iter().filter(of).count() >= 6,
                "{operation} of {nodes}"
            );
        }
    }
}

/// Without a name the user's own profile is written: what is measured of one link leaves the other's. `doctor` names it, endpoints read it.
#[test]
fn own_profile_is_written_and_read() {
    let folder = tempfile::tempdir().expect("folder");
    let home = folder.path();
    let run = |arguments: &[&str]| {
        let output = program(home, arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), said)
    };
    let quick = ["--rounds", "1", "--time", "1"];
    let (_, said) = run(&[&["tune", "--only", "thresholds,elements"], &quick[..]].concat());
    let path = home.join("tsumuji/tune.toml");
    assert!(
        said.contains(&format!("written: {}", path.display())),
        "{said}"
    );
    for threshold in ["reference_bytes", "poll_frames", "elements"] {
        let tried = said
            .lines()
            .filter(|line| line.starts_with(threshold) && line.contains("beside the default"));
        assert!(tried.count() >= 3, "{threshold}: {said}");
    }
    run(&[
        &["tune", "--only", "thresholds", "--link", "udp"],
        &quick[..],
    ]
    .concat());
    let profile = tsumuji_node::Profile::read(&path).expect("a profile");
    assert_eq!(profile.machine, Some(tsumuji_node::tuning::Machine::here()));
    assert_eq!(profile.link.keys().collect::<Vec<_>>(), ["shm", "udp"]);
    let (found, _) = run(&["doctor"]);
    let wanted = format!("{} (shm, udp), in force", path.display());
    assert!(found.contains(&wanted), "{found}");
    // What is no profile ends programs that would read it, with file and line.
    std::fs::write(&path, "[link.shm]\nspin_us = \"long\"\n").expect("written");
    let output = program(home, &["bench", "pingpong", "--iterations", "10"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains(&format!("{}: line 2: ", path.display())),
        "{said}"
    );
    let output = program(home, &["doctor"]);
    let found = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{found}");
    assert!(found.contains("TSUMUJI_TUNE=none"), "{found}");
}

/// What cannot be is said in one line, and no file is left behind.
#[test]
fn bad_wishes_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let nowhere = folder.path().join("no/such/folder/tune.toml");
    for arguments in [
        vec!["-n", "1"],
        vec!["-n", "2", "--max-bytes", "3"],
        vec!["--only", "everything"],
        vec!["-n", "2", "--output", nowhere.to_str().expect("text")],
        vec!["--hosts", "/no/such/file.toml"],
    ] {
        let output = tune(&arguments);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert_eq!(text.trim_end().lines().count(), 1, "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 0);
}

/// A run that is interrupted leaves no file, neither under the name nor a temporary one, nor a folder for the user's own profile.
#[test]
fn interrupted_tune_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tune.toml");
    let quiet = [
        "tune",
        "-n",
        "3",
        "--only",
        "collectives",
        "--time",
        "60000",
    ];
    let named = ["--output", path.to_str().unwrap()];
    for (how, target) in [("-INT", &named[..]), ("-KILL", &named), ("-INT", &[])] {
        let child = Command::new(env!("CARGO_BIN_EXE_tsumuji"))
            .args(quiet)
            .args(target)
            .env("XDG_CONFIG_HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let members = crate::common::wait_for_children(child.id(), 2);
        crate::common::wait_until_at_work(&members);
        crate::common::signal(how, child.id());
        let output = crate::common::finish(child);
        let ended = (output.status.code(), output.status.signal());
        assert!(
            how == "-KILL" || ended == (Some(130), None) || ended == (None, Some(2)),
            "{ended:?}"
        );
        crate::common::wait_until_gone(&members);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
