//! `tsumuji solve` of netlists: voltages, reports and refusals.

use std::path::Path;

use crate::common::{file, json, text, tsumuji};
use tsumuji_circuit::grid::PowerGrid;

const DIVIDER: &str = "divider\nV1 in 0 10\nR1 in out 3k\nR2 out 0 1k\n.op\n.end\n";

fn column(path: &Path, node: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{node},")));
    let values = line.unwrap_or_else(|| panic!("no node {node} in {text}"));
    values
        .split(',')
        .map(|value| value.parse().unwrap())
        .collect()
}

/// Voltages of an operating point and of a sweep, as a file and as an object with its promised fields.
#[test]
fn netlists_are_solved() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("v.csv");
    let to = output.to_str().unwrap();
    let circuit = file(folder.path(), "divider.sp", DIVIDER);
    let (code, run) = json(&["solve", &circuit, "--output", to]);
    assert_eq!((code, run["converged"].as_bool()), (0, Some(true)), "{run}");
    let written = std::fs::read_to_string(&output).unwrap();
    assert!(
        written.starts_with("node,voltage\n0,0.0\nin,10.0\nout,2."),
        "{written}"
    );
    assert!((column(&output, "out")[0] - 2.5).abs() < 1e-12);
    assert_eq!(
        (run["nodes"].as_u64(), run["unknowns"].as_u64()),
        (Some(3), Some(1))
    );
    assert_eq!(run["smallest"]["node"], "out");
    assert_eq!(run["largest"]["volts"], 10.0);
    for field in ["parts", "interface", "newton_iterations"] {
        assert!(run[field].is_u64(), "{field}: {run}");
    }
    for phase in ["load", "prepare", "factor", "solve"] {
        assert!(run["seconds"][phase].is_f64(), "{phase}: {run}");
    }
    let sweep = DIVIDER.replace(".op", ".dc v1 0 4 1\nD1 out 0 d\n.model d d");
    let circuit = file(folder.path(), "sweep.CIR", sweep);
    let (code, run) = json(&["solve", &circuit, "--output", to]);
    assert_eq!((code, run["points"].as_u64()), (0, Some(5)), "{run}");
    assert!(run["newton_iterations"].as_u64() > Some(5));
    assert_eq!(column(&output, "in"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    let diode = column(&output, "out");
    assert!(
        diode.windows(2).all(|pair| pair[0] < pair[1]) && diode[4] < 0.8,
        "{diode:?}"
    );
}

/// A power grid has the same voltages by any number of workers, compressed or not, and the table tells of the parts.
#[test]
fn power_grids_are_solved_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let mut grid = Vec::new();
    let side = 24;
    PowerGrid {
        side,
        layers: 2,
        seed: 1,
    }
    .write(&mut grid)
    .unwrap();
    let circuit = file(folder.path(), "grid.spice", &grid);
    let voltages = |workers: &str| {
        let output = folder.path().join(format!("{workers}.csv"));
        let run = tsumuji(&[
            "solve",
            &circuit,
            "--workers",
            workers,
            "--output",
            output.to_str().unwrap(),
        ]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        (text(&run.stdout), column(&output, "n1_11_13")[0])
    };
    let ((_, one), (table, three)) = (voltages("1"), voltages("3"));
    assert!((one - three).abs() < 1e-10, "{one} {three}");
    for word in [
        "residual",
        "3 with an interface of",
        "V at n1_",
        "1157 nodes",
        "prepare",
    ] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    // A tolerance below what 64-bit numbers give is not reached, and that is told.
    let run = tsumuji(&["solve", &circuit, "--tol", "1e-30"]);
    assert_eq!(run.status.code(), Some(1));
    assert!(
        text(&run.stderr).contains("above the tolerance"),
        "{}",
        text(&run.stderr)
    );
}

/// Options without effect, wrong names and wrong circuits are refused with one line, and a present output stays.
#[test]
fn refusals_have_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let circuit = file(folder.path(), "divider.net", DIVIDER);
    let looped = file(
        folder.path(),
        "loop.sp",
        "t\nV1 a 0 1\nV2 a 0 2\nR1 a 0 1\n",
    );
    let broken = file(folder.path(), "broken.sp", "t\nV1 a 0 1\nQ1 a b c\n");
    let output = file(folder.path(), "v.csv", "old");
    let compressed = file(folder.path(), "broken.sp.gz", [0x1f, 0x8b, 8, 0, 1]);
    for (words, wanted) in [
        (
            vec![circuit.as_str(), "--rhs", "b.mtx"],
            "--rhs: no effect with a netlist",
        ),
        (vec![&circuit, "--mode", "sync"], "--mode: no effect"),
        (vec![&circuit, "--method", "cg"], "--method: no effect"),
        (
            vec![&circuit, "--sweep", "workers=1,2"],
            "--sweep: no effect",
        ),
        (vec![&circuit, "--loss", "0.1"], "--loss: no effect"),
        (vec![&circuit, "--link", "udp"], "--link: no effect"),
        (vec![&circuit, "--omega", "1.2"], "--omega: no effect"),
        (vec![&circuit, "--workers", "0"], "use at least 1"),
        (vec![&circuit, "--tol", "0"], "tol"),
        (
            vec![&circuit, "--output", "x.npy"],
            "voltages are written as .csv",
        ),
        (
            vec![&looped, "--output", &output],
            "loop.sp: the source 'v2' closes a loop",
        ),
        (
            vec![&broken, "--output", &output],
            "broken.sp: line 3: 'q1' is no element",
        ),
        (vec!["none.sp"], "none.sp: cannot be read"),
        (vec![&compressed], "broken.sp.gz"),
    ] {
        let run = tsumuji(&[&["solve"], &words[..]].concat());
        let complaint = text(&run.stderr);
        assert_eq!(run.status.code(), Some(2), "{words:?}: {complaint}");
        assert!(complaint.contains(wanted), "{words:?}: {complaint}");
        assert_eq!(complaint.trim_end().lines().count(), 1, "{complaint}");
    }
    assert_eq!(std::fs::read_to_string(output).unwrap(), "old");
}
