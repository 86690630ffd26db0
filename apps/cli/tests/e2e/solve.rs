//! `tsumuji solve` end to end: real processes over real links, answers compared with what they must be.

use std::path::Path;
use std::process::Command;

use crate::common::{
    self, distance, file, free_ports, json, read_mtx_vector, read_npy, scipy, skipped, tridiagonal,
    tsumuji,
};
use serde_json::Value;

/// All ways to run: link, mode, workers.
const WAYS: [(&str, &str, &str); 6] = [
    ("shm", "async", "3"),
    ("udp", "async", "3"),
    ("shm", "sync", "2"),
    ("udp", "sync", "2"),
    ("shm", "threads", "2"),
    ("shm", "single", "1"),
];

fn assert_converged(code: i32, run: &Value) {
    assert_eq!((code, &run["converged"]), (0, &Value::Bool(true)), "{run}");
    assert_eq!(run["reason"], "converged");
    assert!(run["residual"].as_f64().unwrap() <= 1e-10, "{run}");
}

/// Every mode over every link reaches the known solution (all ones) of a default right-hand side.
#[test]
fn all_modes_and_links_solve() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "A.mtx", tridiagonal(120));
    for (link, mode, workers) in WAYS {
        let output = folder.path().join(format!("{link}-{mode}.npy"));
        let mut words = vec!["solve", &matrix, "--mode", mode, "--workers", workers];
        if mode == "async" || mode == "sync" {
            words.extend(["--link", link]);
        }
        let (code, run) = json(&[&words[..], &["--output", output.to_str().unwrap()]].concat());
        assert_converged(code, &run);
        assert!(
            distance(&read_npy(&output), &[1.0; 120]) < 1e-8,
            "{link} {mode}"
        );
    }
}

/// The object that scripts read has every promised field, of the promised kind.
#[test]
fn json_keeps_its_contract() {
    let (code, run) = json(&[
        "solve",
        "--generate",
        "poisson2d:12",
        "--workers",
        "3",
        "--link",
        "udp",
        "--seed",
        "3",
    ]);
    assert_converged(code, &run);
    assert_eq!(run["laps"].as_array().unwrap().len(), 3);
    assert!(
        run["laps"]
            .as_array()
            .unwrap()
            .iter()
            .all(|laps| laps.as_u64().unwrap() > 0),
        "{run}"
    );
    assert!(run["verifications"].as_u64().unwrap() >= 1);
    for phase in ["load", "distribute", "iterate", "verify"] {
        assert!(run["seconds"][phase].as_f64().unwrap() >= 0.0, "{phase}");
    }
    assert_eq!(
        (&run["workers"], &run["link"]),
        (&Value::from(3), &Value::from("udp"))
    );
    for count in ["frames_sent", "bytes_sent"] {
        assert!(run[count].as_u64().unwrap() > 0, "{count}: {run}");
    }
    assert!(run["frames_lost"].is_u64());
    let memory = run["peak_rss_bytes"].as_array().unwrap();
    assert!(
        memory.len() == 3 && memory.iter().all(|bytes| bytes.as_u64().unwrap() > 1 << 16),
        "{run}"
    );
}

/// Generated systems of every kind converge, by sweeps and by blocks.
#[test]
fn generated_systems_converge() {
    for (what, inner) in [
        ("dense:120", "sweep"),
        ("poisson2d:15", "lu"),
        ("poisson3d:6", "auto"),
        ("circuit:100", "lu"),
    ] {
        let (code, run) = json(&[
            "solve",
            "--generate",
            what,
            "--inner",
            inner,
            "--workers",
            "2",
            "--max-laps",
            "5000000", // circuits that hang on few wires need many, and laps of so few rows are short
        ]);
        assert_converged(code, &run);
    }
}

/// The executor can be chosen, is told with what it did, and is refused where there are no messages.
#[test]
fn executors_can_be_chosen() {
    let words = ["solve", "--generate", "dense:200", "--workers", "2"];
    for (executor, beside) in [("pipeline", true), ("rtc", false)] {
        let more = ["--link", "udp", "--executor", executor];
        let (code, run) = json(&[&words[..], &more].concat());
        assert_converged(code, &run);
        let [all, iterating] = ["frames_sent", "wire_frames"].map(|key| run[key].as_u64().unwrap());
        assert!(iterating > 0 && iterating <= all, "{run}");
        assert_eq!(run["executor"], executor);
        let laps = run["laps_beside"].as_array().unwrap();
        assert!(
            laps.iter()
                .all(|laps| (laps.as_u64().unwrap() > 0) == beside),
            "{run}"
        );
    }
    let refused = tsumuji(&[&words[..], &["--mode", "threads", "--executor", "rtc"]].concat());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("--executor: no effect"), "{said}");
}

/// How the residual fell is written and drawn in every mode; the last line is the verified end. Names that cannot be are refused before the run.
#[test]
fn the_fall_of_the_residual_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    let (csv_name, svg_name) = (csv.to_str().unwrap(), svg.to_str().unwrap());
    for mode in ["async", "sync", "threads", "single"] {
        let words = ["solve", "--generate", "poisson2d:60", "--mode", mode];
        let more = ["--history", csv_name, "--plot", svg_name];
        let (code, run) = json(&[&words[..], &more].concat());
        assert_converged(code, &run);
        let text = std::fs::read_to_string(&csv).unwrap();
        let last: Vec<&str> = text.lines().last().unwrap().split(',').collect();
        assert_eq!(last.len(), 5, "{text}");
        assert_eq!(last[4], "true", "{mode}");
        let (told, found) = (last[3].parse::<f64>().unwrap(), run["residual"].as_f64());
        assert!(
            (told / found.unwrap() - 1.0).abs() < 1e-12,
            "{told} {found:?}"
        );
        assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    }
    let refused = tsumuji(&["solve", "--generate", "dense:9", "--plot", "a.png"]);
    assert_eq!(refused.status.code(), Some(2));
}

/// Without options one process solves by the method that it finds fastest, and says which; each can be asked for by name.
#[test]
fn one_process_chooses_a_method() {
    for (system, words, method) in [
        ("circuit:2000", &[][..], "sparse Cholesky"),
        ("poisson2d:150", &["--method", "cg"], "conjugate gradients"),
        ("dense:600", &[], "GMRES with Jacobi"),
        ("dense:600", &["--workers", "2"], "GMRES with Jacobi"),
        ("poisson2d:50", &["--link", "udp"], "conjugate gradients"),
        ("poisson2d:50", &["--mode", "async"], "relaxation"),
        ("dense:600", &["--method", "direct"], "dense LU"),
        (
            "poisson3d:20",
            &["--method", "gmres", "--mode", "single"],
            "GMRES",
        ),
        ("poisson2d:60", &["--method", "relax"], "relaxation"),
    ] {
        let random = ["solve", "--generate", system, "--rhs", "random"];
        let (code, run) = json(&[&random[..], words].concat());
        assert_converged(code, &run);
        let told = run["method"].as_str().unwrap();
        assert!(told.starts_with(method), "{system}: {told}");
        let messages = words
            .iter()
            .any(|word| ["--workers", "--link", "async"].contains(word));
        assert_eq!(
            run["link"].is_null(),
            !messages && method != "relaxation",
            "{run}"
        );
    }
}

/// A plan says what each method and each number of workers would take; in the end it is compared with what was taken.
#[test]
fn plans_are_made_and_compared() {
    let words = ["solve", "--generate", "dense:400", "--rhs", "random"];
    let (code, plan) = json(&[&words[..], &["--plan=only", "--link", "udp"]].concat());
    assert_eq!(code, 0);
    assert_eq!(plan["methods"].as_array().unwrap().len(), 3, "{plan}");
    let workers = plan["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 9, "1 to 256 of 400 rows: {plan}");
    let best = plan["krylov_best"].as_u64().unwrap();
    let slower = |at: &serde_json::Value| at["krylov"].as_f64().unwrap();
    let times: Vec<f64> = workers.iter().map(slower).collect();
    let at_best = times[best.ilog2() as usize];
    assert!(times.iter().all(|time| *time >= at_best), "{plan}");
    let (code, run) = json(&[&words[..], &["--plan", "--workers", "2"]].concat());
    assert_converged(code, &run);
    assert_eq!(run["planned"]["methods"].as_array().unwrap().len(), 3);
    let compared = &run["plan"];
    assert!(
        compared["method"].as_str().unwrap().starts_with("GMRES"),
        "{run}"
    );
    let (predicted, done) = (&compared["predicted_steps"], &compared["steps"]);
    let (predicted, done) = (predicted.as_u64().unwrap(), done.as_u64().unwrap());
    assert!(
        predicted.abs_diff(done) <= 1,
        "the trial reaches the tolerance: {run}"
    );
    let refused = tsumuji(&["solve", "--generate", "dense:40000", "--plan"]);
    assert_eq!(refused.status.code(), Some(2), "too large to be tried");
}

/// A checkpoint of a run that was interrupted is a start for the next one, also where unknowns were put into another order.
#[test]
fn checkpoints_are_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept.npy");
    let kept_name = kept.to_str().unwrap();
    let system = ["solve", "--generate", "poisson2d:120", "--method", "relax"];
    let how = [
        "--inner",
        "sweep",
        "--workers",
        "2",
        "--json",
        "--tol",
        "1e-10",
    ];
    let words = [
        &system[..],
        &how,
        &["--checkpoint", kept_name, "--every", "0.2"],
    ]
    .concat();
    let child = common::start(&words);
    let begun = std::time::Instant::now();
    while !kept.exists() && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    common::signal("-INT", child.id());
    let done = common::finish(child);
    let first: Value = serde_json::from_slice(&done.stdout).unwrap();
    let x = read_npy(&kept);
    assert_eq!(x.len(), 14_400);
    assert!(x.iter().all(|x| x.is_finite()) && x.iter().any(|x| *x > 0.0));
    if first["reason"] == "interrupted" {
        let near = [
            "solve",
            "--generate",
            "poisson2d:120",
            "--resume",
            kept_name,
        ];
        let (code, run) = json(&[&near[..], &["--workers", "2"]].concat());
        assert_converged(code, &run);
    }
    let refused = tsumuji(&["solve", "--generate", "dense:9", "--resume", kept_name]);
    assert_eq!(refused.status.code(), Some(2), "another length");
    let weights = ["solve", "--generate", "dense:60", "--weights", "1,2"];
    let (code, run) = json(&[&weights[..], &["--workers", "2"]].concat());
    assert_converged(code, &run);
    let refused = tsumuji(&[&weights[..], &["--workers", "3"]].concat());
    assert_eq!(refused.status.code(), Some(2), "a weight for each");
}

/// A sweep runs the same command at each value, and tells each value's runs.
#[test]
fn sweeps_run_the_command_at_each_value() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    for (sweep, more) in [
        (
            "elements=1,16",
            &["--link", "udp", "--generate", "dense:200"][..],
        ),
        ("workers=1,2,3", &["--generate", "dense:200"]),
        ("threads=1,2", &["--generate", "dense:200"]),
        ("n=100,200", &["--generate=dense:9", "--mode", "threads"]),
    ] {
        let mut words = vec!["solve", "--sweep", sweep, "--repeat=2", "--method", "relax"];
        words.extend([
            "--history",
            csv.to_str().unwrap(),
            "--plot",
            svg.to_str().unwrap(),
        ]);
        let (code, report) = json(&[&words[..], more].concat());
        assert_eq!(code, 0, "{report}");
        let (varied, values) = sweep.split_once('=').unwrap();
        assert_eq!(report["varied"], varied);
        let ways = report["results"].as_array().unwrap();
        let cells: Vec<_> = ways
            .iter()
            .flat_map(|way| way["cells"].as_array().unwrap())
            .collect();
        assert_eq!(cells.len(), ways.len() * values.split(',').count());
        assert_eq!(ways.len(), if varied == "threads" { 2 } else { 1 });
        for cell in &cells {
            assert_eq!(cell["missing"], Value::Null, "{cell}");
            assert_eq!(cell["seconds"].as_array().unwrap().len(), 2, "{cell}");
        }
        let rows = std::fs::read_to_string(&csv).unwrap();
        assert_eq!(rows.lines().count(), 1 + 2 * cells.len(), "{rows}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    }
    for words in [
        &[
            "--sweep",
            "elements=1",
            "--elements",
            "4",
            "--generate",
            "dense:9",
        ][..],
        &["--sweep", "n=5", "A.mtx"],
        &["--sweep", "colour=5", "--generate", "dense:9"],
        &["--repeat", "5", "--generate", "dense:9"],
    ] {
        let refused = tsumuji(&[&["solve"], words].concat());
        assert_eq!(refused.status.code(), Some(2), "{words:?}");
    }
}

/// Zeros on the diagonal are moved away, and x keeps its order.
#[test]
fn zero_diagonals_are_matched() {
    let folder = tempfile::tempdir().unwrap();
    // A voltage source between two grounded nodes: its row and column have no diagonal.
    let text = "%%MatrixMarket matrix coordinate real general\n3 3 6\n1 1 2\n2 2 3\n1 3 1\n2 3 -1\n3 1 1\n3 2 -1\n";
    let matrix = file(folder.path(), "mna.mtx", text);
    let rhs = file(
        folder.path(),
        "b.mtx",
        "%%MatrixMarket matrix array real general\n3 1\n0\n0\n5\n",
    );
    let output = folder.path().join("x.mtx");
    let (code, run) = json(&[
        "solve",
        &matrix,
        "--rhs",
        &rhs,
        "--output",
        output.to_str().unwrap(),
    ]);
    assert_converged(code, &run);
    // 2 a + i = 0, 3 b = i, a - b = 5.
    assert!(distance(&read_mtx_vector(&output), &[3.0, -2.0, -6.0]) < 1e-12);

    // Entries that are nearly zero are no better: rows of a dominant matrix in another order.
    let n = 60;
    let mut text = format!(
        "%%MatrixMarket matrix coordinate real general\n{n} {n} {}\n",
        3 * n
    );
    for row in 1..=n {
        let (main, beside) = (row % n + 1, (row + 6) % n + 1);
        text += &format!("{row} {row} 1e-9\n{row} {main} 4\n{row} {beside} -1\n");
    }
    let matrix = file(folder.path(), "tiny.mtx", &text);
    for mode in ["async", "single"] {
        let (code, run) = json(&["solve", &matrix, "--rhs", "random", "--mode", mode]);
        assert_converged(code, &run);
    }
}

/// A seed fixes what is generated, and another one gives another system.
#[test]
fn seed_fixes_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let solve = |seed: &str, name: &str| {
        let path = folder.path().join(name);
        let (code, run) = json(&[
            "solve",
            "--generate",
            "dense:60",
            "--mode",
            "single",
            "--seed",
            seed,
            "--tol",
            "1e-4",
            "--output",
            path.to_str().unwrap(),
        ]);
        assert_eq!(code, 0, "{run}");
        read_npy(&path)
    };
    let first = solve("1", "a.npy");
    assert_eq!(first, solve("1", "b.npy"));
    assert_ne!(first, solve("2", "c.npy"));
}

/// A fifth of all frames is lost, and the verified residual is as small as without.
#[test]
fn loss_delays_but_does_not_falsify() {
    for link in ["shm", "udp"] {
        let (code, run) = json(&[
            "solve",
            "--generate",
            "dense:200",
            "--workers",
            "3",
            "--link",
            link,
            "--loss",
            "0.2",
        ]);
        assert_converged(code, &run);
        assert!(run["frames_lost"].as_u64().unwrap() > 0, "{run}");
    }
}

/// Under Suci's congestion control the same is reached, with losses and without.
#[test]
fn suci_solves_too() {
    for (link, loss) in [("shm", "0"), ("udp", "0.1")] {
        let (code, run) = json(&[
            "solve",
            "--generate",
            "dense:200",
            "--workers",
            "3",
            "--link",
            link,
            "--loss",
            loss,
            "--congestion",
            "suci",
        ]);
        assert_converged(code, &run);
    }
}

/// Too few laps end a run in good order: exit code 1, the reason named, the residual reported.
#[test]
fn lap_limit_is_exit_code_1() {
    let (code, run) = json(&[
        "solve",
        "--generate",
        "poisson2d:30",
        "--inner",
        "sweep",
        "--max-laps",
        "3",
        "--workers",
        "2",
    ]);
    assert_eq!(
        (code, &run["converged"], &run["reason"]),
        (1, &Value::Bool(false), &Value::from("max_laps")),
        "{run}"
    );
    assert!(run["residual"].as_f64().unwrap() > 1e-10);
}

/// A system for which relaxation diverges is noticed and explained instead of running for ever.
#[test]
fn divergence_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = String::from("%%MatrixMarket matrix array real general\n40 40\n");
    for index in 0..1600 {
        text += if index % 41 == 0 { "1\n" } else { "2\n" };
    }
    let matrix = file(folder.path(), "bad.mtx", text);
    for (mode, workers) in [("async", "2"), ("single", "1")] {
        let (code, run) = json(&[
            "solve",
            &matrix,
            "--mode",
            mode,
            "--workers",
            workers,
            "--inner",
            "sweep",
        ]);
        assert_eq!((code, &run["converged"]), (1, &Value::Bool(false)), "{run}");
        assert_eq!(run["reason"], "diverged", "{run}");
    }
}

/// Three processes started by hand with one cluster file solve together; the judge writes the solution.
#[test]
fn cluster_file_joins_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "A.mtx", tridiagonal(90));
    let nodes = free_ports(3).enumerate().map(|(id, port)| {
        format!("[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:127.0.0.1:{port}\"\n")
    });
    let hosts = file(folder.path(), "cluster.toml", nodes.collect::<String>());
    let output = folder.path().join("x.npy");
    let workers: Vec<_> = ["1", "2"]
        .iter()
        .map(|id| common::start(&["solve", &matrix, "--hosts", &hosts, "--id", id]))
        .collect();
    let (code, run) = json(&[
        "solve",
        &matrix,
        "--hosts",
        &hosts,
        "--id",
        "0",
        "--output",
        output.to_str().unwrap(),
    ]);
    assert_converged(code, &run);
    assert_eq!(
        (&run["workers"], &run["link"]),
        (&Value::from(2), &Value::from("udp"))
    );
    assert!(distance(&read_npy(&output), &[1.0; 90]) < 1e-8);
    for worker in workers {
        assert!(common::finish(worker).status.success());
    }
}

/// Real and random systems, in every format, get the answers SciPy gives.
#[test]
fn answers_agree_with_scipy() {
    let Some(python) = scipy() else {
        return skipped("answers_agree_with_scipy", "no SciPy");
    };
    let folder = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data");
    let mut real: Vec<_> = std::fs::read_dir(&data)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    real.retain(|path| {
        let name = path.to_string_lossy();
        name.contains(".mtx") && !name.contains("_rhs")
    });
    real.sort();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scipy_systems.py");
    let made = Command::new(python)
        .arg(script)
        .arg(folder.path())
        .args(&real)
        .output()
        .unwrap();
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let systems = String::from_utf8(made.stdout).unwrap();
    assert!(systems.lines().count() >= 3);
    for (line, link) in systems.lines().zip(["shm", "udp"].iter().cycle()) {
        let (name, matrix) = line.split_once(' ').unwrap();
        let output = folder.path().join("out.npy");
        let mut args = vec![
            "solve",
            matrix,
            "--workers",
            "3",
            "--link",
            link,
            "--tol",
            "1e-12",
            "--output",
            output.to_str().unwrap(),
        ];
        let rhs: Vec<_> = ["mtx", "npy"]
            .iter()
            .map(|ending| folder.path().join(format!("{name}.b.{ending}")))
            .filter(|path| path.exists())
            .collect();
        if let Some(rhs) = rhs.first() {
            args.extend(["--rhs", rhs.to_str().unwrap()]);
        }
        let (code, run) = json(&args);
        // Real circuits may end where rounding ends.
        assert!(code == 0 || run["reason"] == "stagnated", "{name}: {run}");
        let wanted = read_npy(&folder.path().join(format!("{name}.x.npy")));
        let scale = wanted
            .iter()
            .fold(1.0_f64, |scale, value| scale.max(value.abs()));
        let found = distance(&read_npy(&output), &wanted) / scale;
        assert!(found < 1e-6, "{name} over {link}: off by {found:e}");
    }
}

/// A loss is a fraction or a percentage, as an option and in the environment.
#[test]
fn losses_are_fractions_or_percentages() {
    let base = [
        "solve",
        "--generate",
        "poisson2d:12",
        "--workers",
        "2",
        "--link",
        "udp",
        "--loss",
    ];
    for loss in ["0.2", "20%"] {
        let (code, run) = common::json(&[&base[..], &[loss]].concat());
        assert_eq!((code, &run["converged"]), (0, &true.into()), "{run}");
        assert!(run["frames_lost"].as_u64().expect("a count") > 0, "{run}");
    }
    for (loss, code) in [("20%", 0), ("0.2", 0), ("200%", 2)] {
        let mut command = common::command(&["launch", "-n", "2", "--link", "udp", "--"]);
        command.args([env!("CARGO_BIN_EXE_tsumuji"), "tune-member", "64", "1"]);
        command
            .env("TSUMUJI_LOSS", loss)
            .stderr(std::process::Stdio::piped());
        let output = common::finish(command.spawn().unwrap());
        let complaint = common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{loss}: {complaint}");
        assert!(
            code == 0 || complaint.contains("TSUMUJI_LOSS=`200%`: accepted are fractions"),
            "{complaint}"
        );
    }
}

/// A symmetric matrix whose rows were reordered for its diagonal is none of those that conjugate gradients take; the reason is told.
#[test]
fn symmetry_that_the_matching_took_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let text = "%%MatrixMarket matrix coordinate real symmetric\n4 4 5\n1 1 2\n2 2 3\n3 1 1\n3 2 -1\n4 3 5\n";
    let matrix = file(folder.path(), "saddle.mtx", text);
    for more in [&[][..], &["--workers", "2"]] {
        let words = [&["solve", &matrix, "--method", "cg"], more].concat();
        let output = tsumuji(&words);
        let told = crate::common::text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        let last = told.lines().last().unwrap();
        assert!(
            last.starts_with("tsumuji: --method cg")
                && last.contains("reordered")
                && last.contains("gmres"),
            "{told}"
        );
    }
    let plain = file(
        folder.path(),
        "plain.mtx",
        "%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 2\n1 2 1\n2 2 2\n",
    );
    let told = tsumuji(&["solve", &plain, "--method", "cg"]).stderr;
    assert!(!crate::common::text(&told).contains("reordered"));
}
