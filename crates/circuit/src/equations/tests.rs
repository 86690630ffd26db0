//! Circuits computed by hand, and random ones against a dense solution of the textbook's equations.

use super::*;
use crate::compute::{ComputeError, Options, compute};
use crate::netlist::{Limits, from_bytes};
use proptest::prelude::*;

const LIMITS: Limits = Limits {
    memory_bytes: 64 << 20,
    unfolded_bytes: 1 << 20,
};

fn netlist(text: &str) -> Netlist {
    from_bytes("in.sp", format!("t\n{text}").as_bytes(), LIMITS)
        .unwrap_or_else(|error| panic!("{error}"))
}

fn options(parts: usize) -> Options {
    Options {
        parts,
        tolerance: 1e-12,
    }
}

fn refused(text: &str) -> String {
    let error = compute(&netlist(text), options(1), || false)
        .expect_err(text)
        .to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

#[track_caller]
fn expect(text: &str, wanted: &[(&str, f64)]) {
    let netlist = netlist(text);
    let outcome = compute(&netlist, options(1), || false).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.residual < 1e-12, "{}", outcome.residual);
    for &(node, volts) in wanted {
        let number = netlist
            .nodes
            .find(node)
            .unwrap_or_else(|| panic!("no node {node}"));
        let found = outcome.voltages[0][number as usize];
        assert!(
            (found - volts).abs() < 1e-9 * volts.abs().max(1.0),
            "{node}: {found}, not {volts}"
        );
    }
}

/// A divider, a bridge, and sources of current.
#[test]
fn resistors_divide() {
    expect(
        "V1 in 0 10\nR1 in out 3k\nR2 out 0 1k",
        &[("in", 10.0), ("out", 2.5)],
    );
    expect("I1 0 a 2m\nR1 a 0 1k\nR2 a 0 1k", &[("a", 1.0)]);
    // Wheatstone: balanced, then with its bridge at 5 V · (2/3 − 1/2) less what the galvanometer draws.
    expect(
        "V1 t 0 5\nR1 t a 1k\nR2 a 0 2k\nR3 t b 10k\nR4 b 0 20k\nRg a b 50",
        &[("a", 10.0 / 3.0), ("b", 10.0 / 3.0)],
    );
    let (thevenin, series) = (5.0 * (2.0 / 3.0 - 0.5), 2000.0 / 3.0 + 500.0);
    let current = thevenin / (series + 100.0);
    expect(
        "V1 t 0 5\nR1 t a 1k\nR2 a 0 2k\nR3 t b 1k\nR4 b 0 1k\nRg a b 100",
        &[
            ("a", 10.0 / 3.0 - current * 2000.0 / 3.0),
            ("b", 2.5 + current * 500.0),
        ],
    );
}

/// Voltage sources, inductors and short circuits join nodes; capacitors do not matter.
#[test]
fn joined_nodes_share_an_unknown() {
    let text = "V1 a 0 5\nV2 b a 3\nL1 b c 1m\nR0 c d 0\nV3 e d -1\nR1 e f 1k\nR2 f 0 1k\nC1 f 0 1u\nL2 f g 1u\nL3 g f 1u";
    expect(
        text,
        &[
            ("b", 8.0),
            ("c", 8.0),
            ("d", 8.0),
            ("e", 7.0),
            ("f", 3.5),
            ("g", 3.5),
        ],
    );
    assert_eq!(Equations::new(&netlist(text)).unwrap().n(), 1);
    // A floating source: node b is 2 V above a.
    expect(
        "I1 0 a 1m\nR1 a 0 1k\nV1 b a 2\nR2 b 0 1k",
        &[("a", -0.5), ("b", 1.5)],
    );
    // Minus and plus the other way round, through two sources whose sum is swept by none.
    expect(
        "V1 0 a 2\nV2 c a 1\nR1 c d 1\nR2 d 0 1",
        &[("a", -2.0), ("c", -1.0), ("d", -0.5)],
    );
}

/// Circuits of resistors and independent sources give symmetric M-matrices, which relaxation solves.
#[test]
fn plain_circuits_are_m_matrices() {
    let netlist =
        netlist("V1 a 0 5\nR1 a b 1\nR2 b c 2\nV2 c d 1\nR3 d 0 3\nI1 0 c 1\nR4 c e 4\nR5 e a 5");
    let equations = Equations::new(&netlist).unwrap();
    let excited = equations.excite(&Excitation::new(&netlist));
    let system = equations.system(&excited, "c").unwrap();
    for row in 0..system.n() {
        let mut sum = 0.0;
        system.matrix.for_each_in_row(row, |column, value| {
            assert_eq!(value > 0.0, row == column);
            assert_eq!(value, equations.matrix().get(column, row));
            sum += value;
        });
        assert!(sum > -1e-12);
    }
}

/// All four kinds of controlled sources.
#[test]
fn controlled_sources() {
    expect(
        "V1 a 0 2\nR1 a 0 1\nE1 b 0 a 0 3\nR2 b c 1k\nR3 c 0 1k",
        &[("b", 6.0), ("c", 3.0)],
    );
    expect("V1 a 0 2\nG1 0 b a 0 1m\nR2 b 0 3k", &[("b", 6.0)]);
    // 2 mA through V2, which is kept as a branch.
    expect(
        "V1 a 0 2\nR1 a x 1k\nV2 x 0 0\nF1 0 b v2 5\nR2 b 0 100\nH1 c 0 v2 1k\nR3 c 0 1",
        &[("b", 1.0), ("c", 2.0), ("x", 0.0)],
    );
    // An inverting amplifier of finite gain.
    let gain = 1e5;
    let out = -10.0 * gain / (gain + 11.0);
    expect(
        "V1 in 0 1\nR1 in m 1k\nR2 m out 10k\nE1 out 0 0 m 100k",
        &[("out", out)],
    );
    // A floating E between loads, controlled across joined nodes.
    expect(
        "V1 a 0 1\nV2 c a 1\nR1 p 0 1k\nR2 q 0 1k\nE1 p q c 0 2",
        &[("p", 2.0), ("q", -2.0)],
    );
    // A gyrator has no conductance, yet a solution.
    expect(
        "I1 0 a 1m\nG1 a 0 b 0 1m\nG2 0 b a 0 1m\nR1 b 0 1k",
        &[("b", 1.0), ("a", 1.0)],
    );
    // A transconductance between its own nodes is a resistor.
    expect("I1 0 a 1m\nG1 a 0 a 0 1m", &[("a", 1.0)]);
    // A negative resistor.
    expect("V1 a 0 1\nR1 a b 1k\nR2 b 0 -2k", &[("b", 2.0)]);
    // A transresistance within its own loop acts as a resistor.
    expect("V1 a 0 1\nVs a b 0\nH1 b c vs 1k\nR1 c 0 1k", &[("c", 0.5)]);
}

/// The current of a controlling source counts from plus through the source to minus.
#[test]
fn currents_of_branches() {
    let netlist = netlist("V1 a 0 2\nR1 a x 1k\nV2 x 0 0\nF1 0 b v2 5\nR2 b 0 100");
    let equations = Equations::new(&netlist).unwrap();
    let found = compute(&netlist, options(1), || false).unwrap();
    let excited = equations.excite(&Excitation::new(&netlist));
    let mut x = vec![Twofold::ZERO; equations.n()];
    for (node, &unknown) in equations.unknowns.iter().enumerate() {
        if unknown != KNOWN {
            x[unknown as usize] = found.voltages[0][node].into();
        }
    }
    let volts = equations.node_volts(&excited, &x).into_iter();
    let volts: Vec<f64> = volts.map(Twofold::rounded).collect();
    assert_eq!(volts, found.voltages[0]);
}

/// Circuits without a unique solution are refused by the names of their nodes.
#[test]
fn undetermined_circuits_are_refused() {
    for (text, wanted) in [
        (
            "R1 a b 1\nV1 b 0 1\nC1 a x 1\nR2 x y 1",
            "the nodes 'x', 'y' have no path for direct current to ground",
        ),
        ("R1 a 0 1\nI1 0 x 1", "the node 'x' has no path"),
        (
            "R1 a 0 1\nR2 p q 1\nR3 q r 1\nR4 r s 1\nR5 s t 1",
            "the nodes 'p', 'q', 'r' and 2 more have no path",
        ),
        (
            "V1 a 0 1\nV2 a 0 2\nR1 a 0 1",
            "the source 'v2' closes a loop of voltage sources and short circuits over the nodes 'a', '0', and contradicts the others by 1 V",
        ),
        (
            "V1 a 0 1\nV2 a 0 1\nR1 a 0 1",
            "so that its current is undetermined",
        ),
        (
            "V1 a 0 1\nL1 a b 1\nV2 b c 1\nR0 c 0 0\nR1 a 0 1",
            "over the nodes",
        ),
        (
            "V1 a b 1\nL1 a b 1\nR1 a 0 1",
            "contradicts the others by 1 V",
        ),
        ("V1 a a 1\nR1 a 0 1", "over the nodes 'a'"),
        (
            "V1 a 0 1\nE1 a 0 b 0 2\nR1 b 0 1\nR2 a 0 1",
            "the source 'e1' closes a loop",
        ),
        (
            "V1 a 0 1\nV2 a 0 1\nF1 b 0 v2 1\nR1 b 0 1",
            "the source 'v2' closes a loop",
        ),
        ("C1 0 gnd 1", "there is nothing to compute"),
        (
            "V1 a 0 1\nG1 b 0 a 0 1m",
            "nothing determines the voltage of the node 'b'",
        ),
        (
            "I1 0 a 1m\nR1 a 0 1k\nR2 a 0 -1k",
            "nothing determines the voltage of the node 'a'",
        ),
    ] {
        let error = refused(text);
        assert!(error.contains(wanted), "{text:?}: {error}");
    }
}

/// A sweep gives what the operating points of its values give, for linear circuits and others, without new factors where none are needed.
#[test]
fn sweeps_are_operating_points() {
    for (circuit, swept) in [
        ("R1 a b 1k\nR2 b 0 2k\nV2 c b 1\nR3 c 0 1k", "V1 a 0"),
        ("R1 a b 1k\nR2 b 0 2k\nR3 a 0 1k", "I1 0 a"),
        ("R1 a b 1k\nD1 b 0 d\n.model d d", "V1 a 0"),
    ] {
        let source = swept.split_whitespace().next().unwrap();
        let text = format!("{circuit}\n{swept} 0\n.dc {source} -1 2 0.5");
        let sweep = compute(&netlist(&text), options(1), || false).unwrap();
        assert_eq!(sweep.swept, [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]);
        for (value, voltages) in sweep.swept.iter().zip(&sweep.voltages) {
            let single = netlist(&format!("{circuit}\n{swept} {value}"));
            let found = compute(&single, options(1), || false).unwrap();
            for (a, b) in voltages.iter().zip(&found.voltages[0]) {
                assert!((a - b).abs() < 1e-9, "{a} {b}");
            }
        }
    }
}

/// A point that cannot be computed takes only itself and those behind it.
#[test]
fn sweeps_keep_what_comes_before_a_breakdown() {
    let zener = "V1 a 0 0\nR1 a b 100\nD1 b 0 z\n.model z D(BV=5.1)\n.dc V1 0 -10 -0.1";
    let kept = compute(&netlist(zener), options(1), || false).unwrap();
    assert_eq!((kept.voltages.len(), kept.swept.len()), (52, 52));
    let why = kept.cut_short.unwrap();
    assert!(why.contains("'d1'") && why.contains("-5.2"), "{why}");
}

/// A computation that is told to stop does.
#[test]
fn computations_stop() {
    let outcome = compute(&netlist("R1 a 0 1\nI1 0 a 1"), options(1), || true);
    assert!(matches!(outcome, Err(ComputeError::Interrupted)));
}

/// Voltage across a diode in series with a resistor, by bisection.
fn bisected(volts: f64, ohms: f64, saturation: f64, emission: f64) -> f64 {
    let scale = emission * crate::newton::THERMAL_VOLTS;
    let excess =
        |v: f64| saturation * (v / scale).exp_m1() + crate::netlist::GMIN * v - (volts - v) / ohms;
    let (mut low, mut high) = (volts.min(0.0), volts.max(0.0));
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if excess(middle) > 0.0 {
            high = middle
        } else {
            low = middle
        }
    }
    low
}

/// Newton's method goes on until junctions stand still, whatever the residual is relative to; and the conductance beside diodes may be stated.
#[test]
fn junctions_stand_still() {
    let drop = bisected(12.0, 1e5, 1e-14, 1.0);
    expect(
        "V1 in 0 12\nRw in b 1u\nR1 b d 100k\nD1 d 0 dx\n.model dx D",
        &[("d", drop)],
    );
    expect(
        "V1 a 0 -5\nD1 a b d1\nD2 b 0 d2\n.model d1 D\n.model d2 D(N=2)",
        &[("b", -2.5)],
    );
    let blocked = "V1 a 0 -5\nD1 a b d\nR1 b 0 1g\n.model d D\n.options reltol=1e-4 gmin=";
    let volts = |gmin: f64| -(1e-14 + gmin * 5.0) / (1e-9 + gmin);
    expect(&format!("{blocked}1e-12"), &[("b", volts(1e-12))]);
    expect(&format!("{blocked}1e-10"), &[("b", volts(1e-10))]);
}

/// Where sources fix all nodes there is nothing to solve, and yet something to tell.
#[test]
fn sources_may_fix_all() {
    expect("V1 a 0 5\nR1 a 0 1k", &[("a", 5.0)]);
    expect("V1 a 0 1\nC1 a 0 1\nV2 b a 2", &[("b", 3.0)]);
}

/// Diodes that help each other, and ways that lead to their operating points.
#[test]
fn diodes_in_circuits() {
    // Two in series share a voltage; antiparallel ones are symmetric.
    let half = bisected(2.0, 1000.0, 1e-14, 2.0) / 2.0;
    expect(
        "V1 a 0 2\nR1 a b 1k\nD1 b c d\nD2 c 0 d\n.model d d(is=1e-14 n=1)",
        &[("c", half), ("b", 2.0 * half)],
    );
    let drop = bisected(5.0, 10.0, 1e-12, 1.5);
    expect(
        "V1 a 0 5\nR1 a b 10\nD1 b 0 d\nD2 0 b e\n.model d d(is=1e-12 n=1.5)\n.model e d(is=1e-30)",
        &[("b", drop)],
    );
    // A diode across a source, and one with series resistance.
    let drop = bisected(5.0, 1010.0, 1e-14, 1.0);
    expect(
        "V1 a 0 5\nD0 0 a d\nR1 a b 1k\nD1 b 0 r\n.model d d\n.model r d(rs=10)",
        &[("b", 5.0 - (5.0 - drop) / 1010.0 * 1000.0)],
    );
    expect(
        "D1 a 0 r\nV1 a 0 0.7\nD2 a b r\nR2 b 0 1k\n.model r d(rs=10)",
        &[("a", 0.7)],
    );
    assert!(
        refused("V1 0 a 12\nR1 a b 1k\nD1 b 0 d\n.model d d(bv=10)")
            .contains("the diode 'd1' has 12.000 V in reverse, beyond its breakdown at 10 V")
    );
}

/// A resistor between two numbered nodes; node 0 is ground.
fn network(nodes: u32) -> impl Strategy<Value = Vec<(u32, u32, f64)>> {
    let chain = prop::collection::vec(0.1f64..1e3, nodes as usize);
    let more = prop::collection::vec((0..=nodes, 0..=nodes, 0.1f64..1e3), 0..60);
    (chain, more).prop_map(|(chain, mut more)| {
        more.extend((0..).zip(chain).map(|(node, ohms)| (node, node + 1, ohms)));
        more
    })
}

proptest! {
    /// Random networks of resistors, currents and grounded voltages agree with a dense solution in which every node has an equation.
    #[test]
    fn networks_agree_with_dense_nodal_analysis(
        resistors in network(20),
        currents in prop::collection::vec((0u32..=20, 0u32..=20, -1.0f64..1.0), 0..10),
        voltages in prop::collection::btree_map(1u32..=20, -5.0f64..5.0, 0..5),
        parts in 1usize..4,
    ) {
        let mut text = String::new();
        for (place, (a, b, ohms)) in resistors.iter().enumerate() {
            text += &format!("R{place} {a} {b} {ohms:e}\n");
        }
        for (place, (a, b, amperes)) in currents.iter().enumerate() {
            text += &format!("I{place} {a} {b} {amperes:e}\n");
        }
        for (node, volts) in &voltages {
            text += &format!("V{node} {node} 0 {volts:e}\n");
        }
        let mut matrix = tsumuji_factor::Square::zeros(20);
        let mut expected = vec![0.0; 20];
        for &(a, b, ohms) in &resistors {
            for (from, to) in [(a, b), (b, a)] {
                if from > 0 && a != b {
                    matrix[(from as usize - 1, from as usize - 1)] += 1.0 / ohms;
                    if to > 0 {
                        matrix[(from as usize - 1, to as usize - 1)] -= 1.0 / ohms;
                    }
                }
            }
        }
        for &(a, b, amperes) in &currents {
            if a > 0 { expected[a as usize - 1] -= amperes; }
            if b > 0 { expected[b as usize - 1] += amperes; }
        }
        for (&node, &volts) in &voltages {
            let row = node as usize - 1;
            (0..20).for_each(|column| matrix[(row, column)] = 0.0);
            matrix[(row, row)] = 1.0;
            expected[row] = volts;
        }
        tsumuji_factor::Lu::new(matrix).solve(&mut expected);
        let netlist = netlist(&text);
        if voltages.len() == 20 {
            return Ok(());
        }
        let outcome = compute(&netlist, options(parts), || false).unwrap();
        // Rounding leaves 1e-16 |A| |x| / |b|, and long chains of small currents have |A| |x| of 1e7 |b|.
        prop_assert!(outcome.residual < 1e-8, "{}", outcome.residual);
        for node in 1..=20u32 {
            let number = netlist.nodes.find(&node.to_string()).unwrap();
            let (found, wanted) = (outcome.voltages[0][number as usize], expected[node as usize - 1]);
            prop_assert!((found - wanted).abs() < 1e-9 * wanted.abs().max(1.0), "{} {} {}", node, found, wanted);
        }
    }

    /// A diode behind a resistor has the voltage that bisection finds, from micro- to kiloamperes.
    #[test]
    fn diodes_agree_with_bisection(
        volts in -5.0f64..50.0,
        ohms in -2.0f64..6.0,
        saturation in -120.0f64..-6.0,
        emission in 1.0f64..2.5,
    ) {
        let (ohms, saturation) = (10f64.powf(ohms), 10f64.powf(saturation));
        let text = format!("V1 a 0 {volts:e}\nR1 a b {ohms:e}\nD1 b 0 d\n.model d d(is={saturation:e} n={emission})");
        let netlist = netlist(&text);
        let outcome = compute(&netlist, options(1), || false).unwrap();
        let found = outcome.voltages[0][netlist.nodes.find("b").unwrap() as usize];
        let wanted = bisected(volts, ohms, saturation, emission);
        prop_assert!((found - wanted).abs() < 1e-9 * wanted.abs().max(1.0), "{} {} after {} steps", found, wanted, outcome.steps);
    }
}
