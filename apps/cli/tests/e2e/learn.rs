//! `tsumuji learn` and `tsumuji predict` end to end: real processes over real links, models compared with what they must be.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{
    self, assert_nothing_left, command, file, finish, free_ports, json, signal, skipped, start,
    text, tsumuji, wait_for_children, wait_until_at_work,
};
use crate::hosts;
use serde_json::Value;

/// Learns until it is interrupted; the data's name and more words follow.
const ENDLESS: [&str; 10] = [
    "learn", "logistic", "--target", "kind", "--method", "sgd", "--epochs", "1000000", "--tol",
    "1e-300",
];

pub(super) fn assert_converged(code: i32, run: &Value) {
    assert_eq!((code, &run["converged"]), (0, &Value::Bool(true)), "{run}");
    assert_eq!(run["reason"], "converged");
}

/// Coefficients and then intercepts.
fn parameters(run: &Value) -> Vec<f64> {
    let numbers = |values: &Value| -> Vec<f64> {
        let values = values.as_array().unwrap().iter();
        values.map(|value| value.as_f64().unwrap()).collect()
    };
    let outputs = run["coefficients"].as_array().unwrap().iter();
    outputs
        .flat_map(numbers)
        .chain(numbers(&run["intercepts"]))
        .collect()
}

/// y = 2a − 3b + 5 exactly.
pub(super) fn plane(rows: usize) -> String {
    let mut random = fastrand::Rng::with_seed(4);
    let mut text = String::from("a,b,y\n");
    for _ in 0..rows {
        let (a, b) = (random.f64(), 10.0 * random.f64());
        text += &format!("{a},{b},{}\n", 2.0 * a - 3.0 * b + 5.0);
    }
    text
}

/// Two or three clouds with named classes, sorted by class.
pub(super) fn clouds(classes: usize, rows: usize) -> String {
    let mut random = fastrand::Rng::with_seed(8);
    let mut text = String::from("kind,x,y,z\n");
    for row in 0..rows {
        let class = row * classes / rows;
        let at = |axis: usize| f64::from(u8::from(axis == class));
        let (x, y, z) = (at(0) + random.f64(), at(1) + random.f64(), random.f64());
        text += &format!("{},{x},{y},{z}\n", ["ant", "bee", "cat"][class]);
    }
    text
}

/// Every mode finds the plane that the data lie on.
#[test]
fn all_modes_find_the_plane() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "plane.csv", plane(300));
    for (mode, more) in [
        ("single", &[][..]),
        ("gossip", &["--workers", "3"]),
        ("gossip", &["--workers", "3", "--link", "udp"]),
        ("allreduce", &["--workers", "3"]),
        ("tcp", &["--workers", "3"]),
    ] {
        let (code, run) = json(&[&["learn", "linear", &data, "--mode", mode], more].concat());
        assert_converged(code, &run);
        let wanted = [2.0, -3.0, 5.0];
        assert!(
            common::distance(&parameters(&run), &wanted) < 1e-9,
            "{mode}: {run}"
        );
        assert!(run["r2"].as_f64().unwrap() > 1.0 - 1e-12, "{run}");
        assert_eq!(run["rows_used"], 300);
    }
}

/// Data that are made are those of a model, for every kind, and follow the seed.
#[test]
fn data_are_made() {
    for (kind, score) in [
        ("linear", "r2"),
        ("ridge", "r2"),
        ("logistic", "accuracy"),
        ("svm", "accuracy"),
    ] {
        let words = [
            "learn",
            kind,
            "--generate",
            "3000x4",
            "--workers",
            "2",
            "--seed",
        ];
        let run = |seed| json(&[&words[..], &[seed]].concat());
        let (code, first) = run("1");
        assert_converged(code, &first);
        assert!(first[score].as_f64().unwrap() > 0.6, "{first}");
        assert_eq!(first["rows"], 3000);
        let (again, other) = (run("1").1, run("2").1);
        assert!(common::distance(&parameters(&first), &parameters(&again)) < 1e-6);
        assert!(common::distance(&parameters(&first), &parameters(&other)) > 1e-2);
    }
    for refused in [
        &["--generate", "1x4"][..],
        &["--generate", "10000000000x100"],
        &[],
    ] {
        common::assert_refused(&[&["learn", "linear"], refused].concat(), &[]);
    }
}

/// Data without anything to learn are drawn, too: loss and gradient are 0 from the beginning.
#[test]
fn zeros_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "zeros.csv", "x,y\n1,0\n2,0\n3,0\n");
    let plot = folder.path().join("z.svg");
    let (code, run) = json(&["learn", "linear", &data, "--plot", plot.to_str().unwrap()]);
    assert_converged(code, &run);
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

/// The object that scripts read has every promised field, of the promised kind.
#[test]
fn json_keeps_its_contract() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(3, 300));
    let history = folder.path().join("h.csv");
    let plot = folder.path().join("h.svg");
    let (code, run) = json(&[
        "learn",
        "logistic",
        &data,
        "--target",
        "kind",
        "--test",
        &data,
        "--workers",
        "2",
        "--link",
        "udp",
        "--history",
        history.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert_converged(code, &run);
    for count in [
        "exchanges",
        "bytes_sent",
        "iterations",
        "rows",
        "columns",
        "workers",
    ] {
        assert!(run[count].as_u64().unwrap() > 0, "{count}: {run}");
    }
    assert_eq!(
        (&run["rejected"], &run["dropped"]),
        (&0.into(), &Value::Array(vec![])),
        "{run}"
    );
    for number in [
        "loss",
        "gradient_norm",
        "disagreement",
        "accuracy",
        "test_accuracy",
    ] {
        assert!(run[number].as_f64().unwrap() >= 0.0, "{number}: {run}");
    }
    assert_eq!(run["accuracy"], run["test_accuracy"]);
    assert_eq!(run["average"], "table");
    for phase in ["load", "learn"] {
        assert!(run["seconds"][phase].as_f64().unwrap() >= 0.0, "{phase}");
    }
    assert_eq!(run["classes"], serde_json::json!(["ant", "bee", "cat"]));
    assert_eq!(run["coefficients"].as_array().unwrap().len(), 3);
    let history = std::fs::read_to_string(history).unwrap();
    assert!(
        history.starts_with("seconds,iteration,loss,gradient_norm\n"),
        "{history}"
    );
    assert!(history.lines().count() > 2, "{history}");
    assert!(std::fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

/// A tenth of all frames is lost and every worker holds one class: Newton's gossip ends at the optimum of all rows.
#[test]
fn skewed_shares_and_loss_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(3, 600));
    let learn = |more: &[&str]| {
        let (code, run) = json(&[&["learn", "logistic", &data, "--target", "kind"], more].concat());
        assert_converged(code, &run);
        parameters(&run)
    };
    let wanted = learn(&["--mode", "single"]);
    for (link, average) in [("shm", "table"), ("udp", "table"), ("udp", "push-sum")] {
        let found = learn(&[
            "--workers",
            "3",
            "--order",
            "file",
            "--link",
            link,
            "--loss",
            "10%",
            "--average",
            average,
        ]);
        assert!(
            common::distance(&found, &wanted) < 1e-6,
            "{link} {average}: {found:?}, not {wanted:?}"
        );
    }
}

/// Plain gossip SGD on the same shares stays away from the optimum, and is not called converged.
#[test]
fn sgd_on_skewed_shares_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(3, 600));
    let (code, run) = json(&[
        "learn",
        "logistic",
        &data,
        "--target",
        "kind",
        "--workers",
        "3",
        "--order",
        "file",
        "--method",
        "sgd",
        "--epochs",
        "16",
        "--period",
        "100",
    ]);
    assert_eq!((code, &run["reason"]), (1, &Value::from("epochs")), "{run}");
    assert!(run["gradient_norm"].as_f64().unwrap() > 1e-3);
}

/// Gossip SGD converges where shares are alike.
#[test]
fn sgd_converges() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(2, 20_000));
    for mode in ["single", "gossip", "allreduce", "tcp"] {
        let workers = if mode == "single" { "1" } else { "2" };
        let (code, run) = json(&[
            "learn",
            "logistic",
            &data,
            "--target",
            "kind",
            "--method",
            "sgd",
            "--mode",
            mode,
            "--workers",
            workers,
            "--tol",
            "5e-3",
        ]);
        assert_converged(code, &run);
        assert_eq!(
            run["exchanges"].as_u64().unwrap() > 0,
            mode != "single",
            "{mode}: {run}"
        );
    }
}

/// A worker that is killed is dropped with its rows, and the result says so.
#[test]
fn killed_worker_drops_out() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(2, 30_000));
    let child = start(&[&ENDLESS[..], &[&data, "--workers", "3", "--json"]].concat());
    let judge = child.id();
    let workers = wait_for_children(judge, 3);
    wait_until_at_work(&workers);
    signal("-KILL", workers[1]);
    wait_until_at_work(&workers[2..]);
    signal("-INT", judge);
    let output = finish(child);
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_nothing_left(&workers);

    // By Newton's method the survivors end at the optimum of their rows.
    let mut random = fastrand::Rng::with_seed(2);
    let mut values = Vec::new();
    for row in 0..6_000 {
        let class = f64::from(row % 12); // twelve Hessians for each step
        values.extend((0..300).map(|_| random.f64() + 0.02 * class));
        values.push(class);
    }
    let data = file(
        folder.path(),
        "wide.npy",
        common::npy("(6000, 301)", &values),
    );
    let child = start(&["learn", "logistic", &data, "--workers", "3", "--json"]);
    let workers = wait_for_children(child.id(), 3);
    wait_until_at_work(&workers[..1]);
    signal("-KILL", workers[1]);
    let output = finish(child);
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_converged(output.status.code().unwrap(), &run);
    assert_eq!(
        (&run["rows_used"], &run["dropped"][0]["rows"]),
        (&4000.into(), &2000.into()),
        "{run}"
    );
    let cause = run["dropped"][0]["cause"].as_str().unwrap();
    assert!(cause.contains("SIGKILL"), "{cause}");
    assert!(
        text(&output.stderr).contains("are missing in the result"),
        "{}",
        text(&output.stderr)
    );
    assert_nothing_left(&workers);
}

/// Debian's Python, or that of `TSUMUJI_PYTHON`, if it has scikit-learn.
fn sklearn() -> Option<PathBuf> {
    let python = std::env::var_os("TSUMUJI_PYTHON")
        .map_or_else(|| PathBuf::from("/usr/bin/python3"), PathBuf::from);
    let works = Command::new(&python)
        .args(["-c", "import sklearn.linear_model"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    assert!(
        works || std::env::var("TSUMUJI_REQUIRE").is_err(),
        "{} has no scikit-learn: apt-get install python3-sklearn",
        python.display()
    );
    works.then_some(python)
}

/// Coefficients and scores are those of scikit-learn, on the data sets that it brings.
#[test]
fn models_agree_with_scikit_learn() {
    let Some(python) = sklearn() else {
        return skipped("models_agree_with_scikit_learn", "no scikit-learn");
    };
    let folder = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sklearn_models.py");
    let made = Command::new(python)
        .arg(script)
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    let cases = text(&made.stdout);
    assert!(cases.lines().count() >= 8, "{cases}");
    for case in cases.lines() {
        let case: Value = serde_json::from_str(case).unwrap();
        let (kind, data) = (
            case["kind"].as_str().unwrap(),
            case["data"].as_str().unwrap(),
        );
        let mut words = vec!["learn", kind, data, "--workers", "2", "--tol", "1e-10"];
        let l2 = case["l2"].to_string();
        if kind != "linear" {
            words.extend(["--l2", &l2]);
        }
        let (code, run) = json(&words);
        // Rounding may end a run just above so small a tolerance.
        assert!(
            code == 0 || run["gradient_norm"].as_f64().unwrap() < 1e-8,
            "{kind} {data}: {run}"
        );
        let (found, wanted) = (parameters(&run), parameters(&case));
        let scale = wanted
            .iter()
            .fold(1.0_f64, |most, value| most.max(value.abs()));
        let limit = if ["linear", "ridge"].contains(&kind) {
            1e-8
        } else {
            1e-4
        };
        let off = common::distance(&found, &wanted) / scale;
        assert!(
            off < limit,
            "{kind} {data}: coefficients are off by {off:e}"
        );
        let score = run["accuracy"].as_f64().or(run["r2"].as_f64()).unwrap();
        assert!(
            (score - case["score"].as_f64().unwrap()).abs() < 1e-9,
            "{kind} {data}: {run}"
        );
        // Steps at random get near it, by their defaults, too. One process takes the same steps each time.
        words.truncate(3);
        words.extend(["--mode", "single", "--method", "sgd"]);
        if kind != "linear" {
            words.extend(["--l2", &l2]);
        }
        let (_, steps) = json(&words);
        let loss = |run: &Value| run["loss"].as_f64().unwrap();
        assert!(loss(&steps) < 1.4 * loss(&run), "{kind} {data}: {steps}");
        let near = steps["accuracy"].as_f64().or(steps["r2"].as_f64()).unwrap();
        assert!((near - score).abs() < 0.03, "{kind} {data}: {steps}");
    }
}

/// Workers of several hosts, reached through agents, learn under a key; the other congestion control does, too.
#[test]
fn hosts_learn_under_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "plane.csv", plane(300));
    let hosts = hosts::loopback(folder.path(), 3, "[\"env\"]");
    let key = folder.path().join("lab.key");
    let key = key.to_str().unwrap();
    assert!(tsumuji(&["key", key]).status.success());
    for control in ["credit", "suci"] {
        let (code, run) = json(&[
            "learn",
            "linear",
            &data,
            "--hosts",
            &hosts,
            "--key",
            key,
            "--congestion",
            control,
        ]);
        assert_converged(code, &run);
        assert!(common::distance(&parameters(&run), &[2.0, -3.0, 5.0]) < 1e-9);
        assert_eq!((&run["workers"], &run["link"]), (&2.into(), &"udp".into()));
    }
}

/// With `--id` nothing is started: each host's own command is one node.
#[test]
fn nodes_are_started_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "plane.csv", plane(300));
    let hosts = hosts::loopback(folder.path(), 3, "[]");
    let key = folder.path().join("lab.key");
    let key = key.to_str().unwrap();
    assert!(tsumuji(&["key", key]).status.success());
    let words = |id| {
        let words = ["learn", "linear", &data, "--hosts", &hosts, "--key", key];
        [&words[..], &["--id", id]].concat()
    };
    let workers: Vec<_> = ["1", "2"].map(|id| start(&words(id))).into();
    let (code, run) = json(&words("0"));
    assert_converged(code, &run);
    assert_eq!(run["rows_used"], 300);
    for worker in workers {
        let output = finish(worker);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
}

/// Nodes that learn show their counters, as those of `solve` do.
#[test]
fn counters_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(2, 30_000));
    let address = format!("127.0.0.1:{}", free_ports(1).start);
    let mut words = ENDLESS.to_vec();
    words.extend([&data, "--workers", "1", "--metrics", &address]);
    let child = start(&words);
    let workers = wait_for_children(child.id(), 1);
    wait_until_at_work(&workers);
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("tsumuji_"), "{answer}");
    signal("-INT", child.id());
    assert_eq!(finish(child).status.code(), Some(130));
}

/// A process that joins gets rows and takes part: one worker alone would have exchanged nothing.
#[test]
fn worker_joins() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "clouds.csv", clouds(2, 30_000));
    for link in ["udp", "shm"] {
        let mut words = ENDLESS.to_vec();
        words.extend([&data, "--workers", "1", "--admit", "--link", link]);
        let mut child = command(&words).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let (_, join) = line.split_once("tsumuji join ").expect(&line);
        let (options, program) = join.split_once("-- tsumuji ").expect(&line);
        let mut words = vec!["join"];
        words.extend(options.split_whitespace());
        words.extend(["--", env!("CARGO_BIN_EXE_tsumuji"), program]);
        let joined = start(&words);
        // Once it computes, it has its rows. The other one may go then.
        wait_until_at_work(&[joined.id()]);
        let first = wait_for_children(child.id(), 1)[0];
        signal("-KILL", first);
        let lost = (&mut lines).map(Result::unwrap);
        // Without any worker that takes part the judge would end as soon as it notices, which is at once.
        std::thread::sleep(Duration::from_millis(500));
        assert!(
            child.try_wait().unwrap().is_none(),
            "{link}: it took no part"
        );
        signal("-INT", child.id());
        let rest: Vec<String> = lost.collect();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{link}: {rest:?}");
        let output = finish(joined);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    }
}

/// Options of messages without an effect, and nodes that are in no file, are refused in one line.
#[test]
fn impossible_clusters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = file(folder.path(), "plane.csv", plane(30));
    let hosts = hosts::loopback(folder.path(), 2, "[]");
    for (options, words) in [
        (&["--mode", "tcp", "--admit"][..], "--mode gossip"),
        (&["--mode", "allreduce", "--admit"], "--mode gossip"),
        (&["--mode", "single", "--admit"], "no effect"),
        (
            &["--mode", "single", "--congestion", "suci"],
            "--congestion: no effect",
        ),
        (
            &["--mode", "single", "--metrics", "off"],
            "--metrics: no effect",
        ),
        (&["--executor", "rtc"], "--method sgd"),
        (
            &[
                "--method",
                "sgd",
                "--mode",
                "allreduce",
                "--executor",
                "rtc",
            ],
            "--executor: no effect",
        ),
        (&["--id", "1"], "--hosts"),
        (&["--hosts", &hosts, "--id", "2", "--open"], "2"),
        (&["--hosts", &hosts, "--admit", "--mode", "tcp"], "--admit"),
    ] {
        let output = tsumuji(&[&["learn", "linear", &data], options].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{options:?}: {told}");
        assert!(told.contains(words), "{options:?}: {told}");
        assert!(output.stdout.is_empty());
    }
}
