//! `tsumuji lab` and the figures of MECH, end to end.

use serde_json::Value;

use crate::common::{assert_refused, json, tsumuji};

const WAYS: [&str; 7] = [
    "User",
    "User:ST",
    "User:ST,DT",
    "Syscall",
    "Syscall:ST",
    "Syscall:ST,DT",
    "Host",
];

/// The paper's numbers come out of the shipped descriptions.
#[test]
fn shipped_descriptions_are_the_papers() {
    let (code, rhinet) = json(&["lab", "model", "rhinet", "--size", "4096"]);
    assert_eq!(code, 0, "{rhinet}");
    assert!(
        (rhinet["total_us"].as_f64().unwrap() - 102.056).abs() < 1e-3,
        "{rhinet}"
    );
    assert!((rhinet["improved"]["total_us"].as_f64().unwrap() - 36.06).abs() < 0.05);
    let stages = rhinet["stages"].as_array().unwrap();
    assert_eq!(
        stages
            .iter()
            .filter(|stage| stage["is_critical"] == false)
            .count(),
        4
    );
    let (_, faster) = json(&["lab", "model", "rhinet", "--mhz", "33", "--burst", "8M"]);
    assert!(
        (faster["total_us"].as_f64().unwrap() - 36.06).abs() < 0.05,
        "{faster}"
    );
    let (code, myrinet) = json(&["lab", "model", "myrinet", "--size", "4..16,4096"]);
    assert_eq!(code, 0, "{myrinet}");
    assert_eq!(
        myrinet["variants"].as_array().unwrap().len(),
        4 * WAYS.len()
    );
    for one in myrinet["beside"].as_array().unwrap() {
        assert!(
            one["deviation_percent"].as_f64().unwrap().abs() < 5.0,
            "{one}"
        );
    }
}

/// A file of one's own begins with a shipped one; what is wrong in it is told in one line with its place.
#[test]
fn own_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let name = path.to_str().unwrap();
    let shipped = tsumuji(&["lab", "model", "rhinet", "--toml"]).stdout;
    std::fs::write(&path, &shipped).unwrap();
    let (code, mine) = json(&["lab", "model", name]);
    assert_eq!((code, mine["model"].as_str()), (0, Some(name)), "{mine}");
    assert!((mine["total_us"].as_f64().unwrap() - 102.056).abs() < 1e-3);
    let wrong = String::from_utf8(shipped)
        .unwrap()
        .replace("rates = [\"bus\"]", "rates = [\"pci\"]");
    std::fs::write(&path, wrong).unwrap();
    for (args, wanted) in [
        (&["lab", "model", name][..], "mine.toml:"),
        (
            &["lab", "model", name],
            "stage 'read data', rates: there is no [rate.pci]; accepted: bus",
        ),
        (
            &["lab", "model", "nonesuch"],
            "accepted are myrinet, rhinet",
        ),
        (&["lab", "model", "myrinet", "--mhz", "66"], "no [clock]"),
        (
            &["lab", "model", "myrinet", "--variant", "DMA"],
            "accepted: User; User:ST",
        ),
        (&["lab", "run", "--sizes", "2M"], "1 byte to 1 MiB"),
        (
            &["lab", "run", "--sizes", "64,4"],
            "larger than the one before",
        ),
    ] {
        assert_refused(args, &[wanted]);
    }
}

/// Every way is measured and verified between two processes, and written whole.
#[test]
fn ways_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    let mut args = vec![
        "lab",
        "run",
        "--sizes",
        "4,64,4K",
        "--rounds",
        "2",
        "--seconds",
        "0.01",
    ];
    args.extend([
        "--csv",
        csv.to_str().unwrap(),
        "--plot",
        svg.to_str().unwrap(),
    ]);
    let (code, report) = json(&args);
    assert_eq!(code, 0, "{report}");
    let cells = report["results"].as_array().unwrap();
    let all = [&WAYS[..], &["io_uring", "TCP", "TCP zero-copy"]].concat();
    let ways: Vec<&str> = cells[..all.len()]
        .iter()
        .map(|cell| cell["way"].as_str().unwrap())
        .collect();
    assert_eq!((cells.len(), ways), (3 * all.len(), all));
    // Containers often forbid it.
    let refused = report["refused"].as_array().unwrap();
    assert!(
        refused.iter().all(|one| one[0] == "io_uring"),
        "{refused:?}"
    );
    let measured = cells
        .iter()
        .filter(|cell| refused.iter().all(|one| one[0] != cell["way"]));
    for cell in measured.clone() {
        assert!(
            cell["bandwidth"].as_f64().unwrap() > 0.0 && cell["messages"].as_u64().unwrap() > 0,
            "{cell}"
        );
        assert_eq!(cell["sent_us"].as_array().unwrap().len(), 2);
    }
    assert_eq!(
        report["crossovers"].as_array().unwrap().len(),
        7 - refused.len()
    );
    assert!(report["zero_copies"]["calls"].as_u64().unwrap() > 0);
    assert_eq!(
        std::fs::read_to_string(&csv).unwrap().lines().count(),
        1 + measured.count()
    );
    assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
}

/// This machine is described by what was measured, and predictions are compared with the sizes that were not fitted.
#[test]
fn this_machine_is_described() {
    let (code, report) = json(&["lab", "model", "this", "--quick", "--size", "64"]);
    assert_eq!(code, 0, "{report}");
    let variants = report["variants"].as_array().unwrap();
    assert_eq!(variants.len(), WAYS.len());
    assert!(
        variants
            .iter()
            .all(|one| one["total_us"].as_f64().unwrap() > 0.0),
        "{report}"
    );
    assert_eq!(report["beside"].as_array().unwrap().len(), 9 * WAYS.len());
    assert!(report["median_deviation_percent"].as_f64().unwrap() >= 0.0);
}

/// Every figure and table of MECH is beside the model, and those of Myrinet beside what is measured here.
#[test]
fn figures_of_mech_run() {
    let (_, list) = json(&["paper", "--list"]);
    let names = list["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|figure| figure["name"].as_str().unwrap());
    let names: Vec<&str> = names.filter(|name| name.starts_with("mech")).collect();
    assert_eq!(names.len(), 7);
    for name in names {
        let (code, report) = json(&["paper", name, "--quick"]);
        assert_eq!(
            (code, report["figure"].as_str()),
            (0, Some(name)),
            "{report}"
        );
        let beside = report["beside"].as_array().unwrap();
        let is_told = |one: &Value| one["paper"] != "" && one["model"] != "";
        assert!(!beside.is_empty() && beside.iter().all(is_told), "{report}");
        let here = beside.iter().filter(|one| one["here"] != "-").count();
        let of_rhinet = ["mech-fig4", "mech-table7"].contains(&name);
        let wanted = match name {
            "mech-fig1" => beside.len() - 2, // of "5 % slower" nothing is measured
            _ if of_rhinet => 0,
            _ => beside.len(),
        };
        assert_eq!(here, wanted, "{report}");
        assert_eq!(report["measured"].is_null(), of_rhinet);
    }
}
