//! Random circuits beside ngspice: subcircuits, parameters, controlled sources and diodes, every node compared.
//!
//! Where there is no ngspice this test skips by name, unless `TSUMUJI_REQUIRE` contains `ngspice`.

use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use tsumuji_circuit::compute::{Options, Outcome, compute};
use tsumuji_circuit::grid::PowerGrid;
use tsumuji_circuit::netlist::{Netlist, read};

/// Circuits compared.
const CIRCUITS: u64 = 60;
/// Nodes that random elements join; node 0 is ground.
const NODES: u64 = 12;
/// Voltages agree to so many volts: the two programs' constants of nature differ by a millionth.
const TOLERANCE_VOLTS: f64 = 5e-6;

/// A random circuit with one solution: a chain of resistors to ground, and everything else across it.
fn circuit(seed: u64) -> String {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut text = format!(
        "random circuit {seed}\n.param scale={{2*sqrt(4)/4}} load=1.5k\n.options reltol=1e-9 abstol=1e-15 vntol=1e-10\n\
         .model small D(IS=1e-14 N=1 RS=5 CJO=2p)\n.model large d (is=1e-12 n=1.4)\n\
         .subckt tee a b c r=1k k={{r/2}}\nR1 a m {{r*scale}}\nR2 m b {{k}}\nXd m c clamp area=2\n.ends tee\n\
         .subckt clamp p q area=1\nD1 p q large area={{area}}\nR1 p q 20k\n.ends\n"
    );
    let mut line = |what: std::fmt::Arguments<'_>| writeln!(text, "{what}").unwrap();
    for node in 0..NODES {
        let ohms = random.u32(100..5000);
        line(format_args!("Rc{node} {node} {} {ohms}", node + 1));
    }
    let mut node = {
        let mut random = random.fork();
        move || random.u64(0..=NODES)
    };
    for place in 0..6 {
        let ohms = random.u32(1..10);
        line(format_args!("Rx{place} {} {} {ohms}.5k", node(), node()));
    }
    for place in 0..random.u32(1..5) {
        let model = ["small", "large"][random.usize(..2)];
        line(format_args!(
            "D{place} {} {} {model} area={}",
            node(),
            node(),
            random.u32(1..4)
        ));
    }
    for place in 0..3 {
        line(format_args!(
            "I{place} {} {} {}m",
            node(),
            node(),
            random.u32(1..5)
        ));
    }
    line(format_args!(
        "G1 {} {} {} {} {}u",
        node(),
        node(),
        node(),
        node(),
        random.u32(1..50)
    ));
    // Voltage sources in series with resistors of their own, grounded and floating.
    line(format_args!(
        "V1 v1 0 DC {}\nRv1 v1 {} 330",
        random.u32(1..12),
        node()
    ));
    line(format_args!(
        "V2 v2 {} {}\nRv2 v2 {} {{load}}",
        node(),
        random.u32(1..5),
        node()
    ));
    line(format_args!(
        "E1 e1 {} ({},{}) 0.{}\nRe1 e1 {} 2.2k",
        node(),
        node(),
        node(),
        random.u32(1..9),
        node()
    ));
    line(format_args!("Vm {} vm 0\nRm vm {} 470", node(), node()));
    line(format_args!(
        "F1 {} {} vm 0.{}",
        node(),
        node(),
        random.u32(1..9)
    ));
    line(format_args!(
        "H1 h1 0 Vm {}\nRh1 h1 {} 1k",
        random.u32(1..200),
        node()
    ));
    line(format_args!(
        "L1 {} l1 1u\nRl1 l1 {} 820\nC1 {} {} 1n",
        node(),
        node(),
        node(),
        node()
    ));
    line(format_args!(
        "X1 {} {} {} tee r={}\nX2 {} {} {} tee",
        node(),
        node(),
        node(),
        random.u32(200..900),
        node(),
        node(),
        node()
    ));
    text
}

/// Node voltages of ngspice; `None` where it does not converge.
fn ngspice(folder: &Path, circuit: &str) -> Option<HashMap<String, f64>> {
    let path = folder.join("peer.sp");
    let commands = ".control\nset numdgt=13\nop\nprint all\n.endc\n.end\n";
    std::fs::write(&path, format!("{circuit}{commands}")).unwrap();
    let output = Command::new("ngspice")
        .arg("-b")
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let voltages: HashMap<_, _> = text
        .lines()
        .filter_map(|line| {
            let (name, value) = line.split_once(" = ")?;
            Some((name.trim().to_owned(), value.trim().parse().ok()?))
        })
        .collect();
    (!voltages.is_empty()).then_some(voltages)
}

fn solved(path: &Path, parts: usize) -> (Netlist, Outcome) {
    let netlist = read(path).unwrap_or_else(|error| panic!("{error}"));
    let options = Options {
        parts,
        tolerance: 1e-12,
    };
    let outcome = compute(&netlist, options, || false);
    (netlist, outcome.unwrap_or_else(|error| panic!("{error}")))
}

/// Whether there is no ngspice, which is then told.
fn is_missing(test: &str) -> bool {
    let Err(error) = Command::new("ngspice").arg("--version").output() else {
        return false;
    };
    let is_required = std::env::var("TSUMUJI_REQUIRE").is_ok_and(|list| list.contains("ngspice"));
    assert!(!is_required, "ngspice is required: {error}");
    println!("SKIPPED {test}: there is no ngspice: {error}");
    true
}

/// The largest difference of all nodes' voltages, and how many nodes there are.
fn difference(netlist: &Netlist, outcome: &Outcome, theirs: &HashMap<String, f64>) -> (f64, u64) {
    let (mut largest, mut nodes) = (0.0f64, 0);
    for (node, volts) in (0..).zip(&outcome.voltages[0]).skip(1) {
        // ngspice prints nodes with a number for a name as functions.
        let name = netlist.nodes.get(node);
        let their = theirs
            .get(name)
            .or_else(|| theirs.get(&format!("v({name})")));
        let their = their.unwrap_or_else(|| panic!("ngspice has no node {name}"));
        largest = largest.max((volts - their).abs());
        nodes += 1;
    }
    (largest, nodes)
}

/// Every node of random circuits has the voltage that ngspice finds.
#[test]
fn random_circuits_agree_with_ngspice() {
    if is_missing("random_circuits_agree_with_ngspice") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    let mut largest: f64 = 0.0;
    for seed in 0..CIRCUITS {
        let text = circuit(seed);
        let path = folder.path().join("ours.sp");
        std::fs::write(&path, format!("{text}.end\n")).unwrap();
        let (netlist, outcome) = solved(&path, 2);
        let Some(theirs) = ngspice(folder.path(), &text) else {
            continue;
        };
        let (found, nodes) = difference(&netlist, &outcome, &theirs);
        assert!(
            found < TOLERANCE_VOLTS,
            "seed {seed}: voltages differ by {found} V\n{text}"
        );
        largest = largest.max(found);
        assert!(nodes >= NODES);
        compared += 1;
    }
    println!("{compared} circuits compared, the largest difference is {largest:.1e} V");
    assert!(
        compared >= 50,
        "ngspice gave voltages for {compared} of {CIRCUITS} circuits only"
    );
}

/// Controlled sources across a power grid.
const ACROSS: &str = "e1 q1 0 n1_5_5 n1_15_15 3\nrq1 q1 n2_9_9 10\nvs n1_7_7 q2 0\nrq2 q2 0 1k\nf1 n1_3_3 0 vs 0.5\n\
    h1 q3 0 vs 100\nrq3 q3 n3_2_17 50\ng1 n1_9_9 0 n2_12_12 0 1u\n";

/// A power grid with ideal vias and controlled sources, in parts.
#[test]
fn power_grid_agrees_with_ngspice() {
    if is_missing("power_grid_agrees_with_ngspice") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    let grid = PowerGrid {
        side: 20,
        layers: 3,
        seed: 5,
    };
    grid.write(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let text = text.replace(".op\n.end\n", ACROSS);
    let path = folder.path().join("ours.sp");
    std::fs::write(&path, &text).unwrap();
    let (netlist, outcome) = solved(&path, 3);
    assert_eq!(outcome.sizes.parts, 3);
    let theirs = ngspice(folder.path(), &text).expect("a linear circuit");
    let (found, nodes) = difference(&netlist, &outcome, &theirs);
    assert_eq!(nodes as usize, grid.nodes() + 3);
    // Volts that all digits of ngspice tell.
    assert!(found < 1e-11, "voltages differ by {found} V");
}
