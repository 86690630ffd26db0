//! Characteristics, limited steps, and every way to an operating point.

use super::*;
use crate::netlist::{GMIN, Limits, from_bytes};
use crate::substructure::{SolveError, Substructure};
use proptest::prelude::*;
use tsumuji_solve::local::{self, Inner, Relaxation, single};
use tsumuji_solve::system::{Matrix, System};

fn diode(saturation_amperes: f64, emission: f64) -> Diode {
    Diode {
        nodes: [crate::netlist::NodeId::GROUND; 2],
        saturation_amperes,
        emission,
        series_ohms: 0.0,
        breakdown_volts: f64::INFINITY,
        name: 0,
    }
}

proptest! {
    /// The conductance is the derivative of the current.
    #[test]
    fn conductance_is_the_derivative(volts in -2.0f64..1.0, emission in 1.0f64..2.0) {
        let diode = diode(1e-14, emission);
        let step = 1e-6;
        let (up, _) = diode_current(&diode, volts + step, GMIN);
        let (down, _) = diode_current(&diode, volts - step, GMIN);
        let (_, conductance) = diode_current(&diode, volts, GMIN);
        let difference = (up - down) / (2.0 * step);
        prop_assert!((difference - conductance).abs() <= 1e-6 * conductance.abs() + 1e-16);
    }

    /// A limited step goes towards its aim, and repeated steps reach it.
    #[test]
    fn limited_steps_reach_their_aim(old in -5.0f64..1.0, aim in 0.0f64..5.0) {
        let diode = diode(1e-14, 1.0);
        let mut volts = old;
        for _ in 0..1000 {
            let next = limited(&diode, volts, aim);
            prop_assert!(next.is_finite() && next <= aim.max(volts) + 1e-9);
            volts = next;
        }
        prop_assert!((volts - aim).abs() < 1e-9);
    }
}

/// Nothing overflows, however large the voltage.
#[test]
fn currents_stay_finite() {
    for volts in [-1e6, -1.0, 0.0, 5.0, 1e6] {
        let (current, conductance) = diode_current(&diode(1e-14, 1.0), volts, GMIN);
        assert!(current.is_finite() && conductance.is_finite() && conductance > 0.0);
    }
    assert_eq!(diode_current(&diode(1e-14, 1.0), 0.0, GMIN).0, 0.0);
}

/// A bridge of diodes that loads a divider, and a chain of diodes with a current forced through.
const CIRCUITS: [&str; 2] = [
    "t\nV1 p 0 12\nV2 n 0 -3\nD1 p a d\nD2 0 a d\nD3 b p d\nD4 b n d\nR1 a b 1k\nR2 b 0 50k\n.model d d(is=1e-13 n=1.2)",
    "t\nI1 0 a 2\nR1 a 0 1meg\nD1 a b d\nD2 b c d\nD3 c d d\nD4 d 0 d\nD5 0 b e\n.model d d(is=1e-16 rs=0.1)\n.model e d(is=1e-9 n=2)",
];

fn netlist(text: &str) -> Netlist {
    let limits = Limits {
        memory_bytes: 1 << 20,
        unfolded_bytes: 1 << 20,
    };
    from_bytes("in.sp", text.as_bytes(), limits).unwrap()
}

fn direct(linear: Linear<'_>) -> Result<Vec<f64>, SolveError> {
    let mut substructure = Substructure::new(linear.matrix, 1)?;
    substructure.factor(linear.matrix)?;
    substructure.solve(linear.rhs)
}

/// Newton's method, conductances that are taken away and sources that are raised all lead to the same point.
#[test]
fn all_ways_lead_to_one_point() {
    for text in CIRCUITS {
        let netlist = netlist(text);
        let equations = Equations::new(&netlist).unwrap();
        let excitation = Excitation::new(&netlist);
        let excited = equations.excite(&excitation);
        let solver = || Solver::new(&netlist, &equations, 1e-11);
        let point = solver().solve(&excitation, direct).unwrap();
        assert!(point.residual < 1e-11, "{}", point.residual);
        let mut by_conductances = solver();
        let conductances = by_conductances.with_conductances(&excited, &mut direct);
        let mut by_sources = solver();
        let sources = by_sources.with_sources(&excitation, &excited, &mut direct);
        for (found, solver) in [(conductances, by_conductances), (sources, by_sources)] {
            assert!(found.unwrap(), "this way converges");
            let residual = solver.balance(&excited, netlist.gmin).whole();
            assert!(residual < 1e-11, "{residual}");
            for (a, b) in solver.x.iter().zip(&point.x) {
                assert!((a.rounded() - b).abs() < 1e-8, "{a:?} {b}");
            }
        }
    }
}

/// Any solver may give the linear solutions: here relaxation does.
#[test]
fn relaxation_finds_operating_points() {
    let netlist =
        netlist("t\nV1 a 0 5\nR1 a b 1k\nD1 b 0 d\nR2 b c 2k\nR3 c 0 1k\nI1 0 c 1m\n.model d d");
    let equations = Equations::new(&netlist).unwrap();
    let excitation = Excitation::new(&netlist);
    let limits = local::Limits::new(1e-14, 10_000).unwrap();
    let relaxed = |linear: Linear<'_>| {
        let matrix = Matrix::Sparse(linear.matrix.clone());
        let system = System::new(matrix, Some(linear.rhs.to_vec()), "circuit".into())?;
        let relaxation = Relaxation::new(Inner::Sweep, 1.0).unwrap();
        Ok::<_, tsumuji_solve::system::SystemError>(
            single::solve(system, (relaxation, false), limits, |_| {}, || false)
                .unwrap()
                .x,
        )
    };
    let solver = || Solver::new(&netlist, &equations, 1e-11);
    let ours = solver().solve(&excitation, direct).unwrap();
    let theirs = solver().solve(&excitation, relaxed).unwrap();
    for (a, b) in ours.voltages.iter().zip(&theirs.voltages) {
        assert!((a - b).abs() < 1e-9, "{a} {b}");
    }
}

/// Where nothing converges, the error says so and names a diode.
#[test]
fn failures_are_told() {
    let netlist = netlist(CIRCUITS[0]);
    let equations = Equations::new(&netlist).unwrap();
    let mut sign = 1.0;
    // A solver that jumps to and fro.
    let jumping = |linear: Linear<'_>| {
        sign = -sign;
        Ok::<_, SolveError>(vec![sign; linear.rhs.len()])
    };
    let error = Solver::new(&netlist, &equations, 1e-11)
        .solve(&Excitation::new(&netlist), jumping)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("did not converge in") && error.contains("the diode 'd"),
        "{error}"
    );
    let failing = |_: Linear<'_>| Err(SolveError::Singular { unknown: 1 });
    let error = Solver::new(&netlist, &equations, 1e-11).solve(&Excitation::new(&netlist), failing);
    assert!(matches!(
        error,
        Err(NewtonError::Linear(SolveError::Singular { unknown: 1 }))
    ));
}

/// Voltage of a node at the operating point, which is found to within the tolerance.
#[track_caller]
fn volts(text: &str, node: &str, tolerance: f64) -> f64 {
    let netlist = netlist(&format!("t\n{text}"));
    let equations = Equations::new(&netlist).unwrap();
    let point = Solver::new(&netlist, &equations, tolerance)
        .solve(&Excitation::new(&netlist), direct)
        .unwrap_or_else(|error| panic!("{text:?}: {error}"));
    assert!(
        point.residual <= tolerance,
        "{text:?}: {:e}",
        point.residual
    );
    point.voltages[netlist.nodes.find(node).unwrap() as usize]
}

#[track_caller]
fn assert_close(found: f64, wanted: f64, relative: f64) {
    let error = (found - wanted).abs();
    assert!(error <= relative * wanted.abs(), "{found}, not {wanted}");
}

/// A floating battery of little resistance that leakage alone joins to ground has exact voltages, in whatever order its cards stand.
#[test]
fn leakage_decides_beside_small_resistors() {
    for (series, leak) in [(1e-3, 1e9), (1e-6, 1e9), (1e-3, 1e11)] {
        let mut cards = [
            format!("R1 n 0 {leak:e}"),
            "V1 p n 1.5".to_owned(),
            format!("Rs p q {series:e}"),
            format!("R2 q 0 {leak:e}"),
        ];
        let current = 1.5 / (2.0 * leak + series);
        for _ in 0..cards.len() {
            cards.rotate_left(1);
            let text = cards.join("\n");
            assert_close(volts(&text, "n", 1e-14), -current * leak, 1e-12);
            assert_close(volts(&text, "q", 1e-14), current * leak, 1e-12);
            assert_close(volts(&text, "p", 1e-14), 1.5 - current * leak, 1e-12);
        }
        // Larger currents elsewhere hide nothing, also at a usual tolerance.
        let beside = format!("{}\nI1 0 x 1\nR3 x 0 3", cards.join("\n"));
        assert_close(volts(&beside, "n", 1e-10), -current * leak, 1e-9);
    }
}

/// A resistor that carries nothing changes nothing, however small; nor do circuits without any current fail.
#[test]
fn dangling_resistors_do_not_matter() {
    for ohms in ["8.33p", "100p", "1n", "1u", "1k", "1t"] {
        let dangling = format!("V1 a m -1.62637\nR1 m 0 1k\nR2 a b {ohms}");
        assert_close(volts(&dangling, "b", 1e-10), -1.62637, 1e-12);
        let open = format!("V1 a 0 5\nR1 a m 1k\nR2 m b {ohms}");
        assert_close(volts(&open, "b", 1e-10), 5.0, 1e-12);
    }
    assert_close(
        volts("V1 a 0 5\nD1 a b d\nC1 b 0 1\n.model d d", "b", 1e-10),
        5.0,
        1e-9,
    );
    let nothing = "V1 a 0 0\nR1 a b 1k\nD1 b 0 d\n.model d d";
    assert!(volts(nothing, "b", 1e-10).abs() < 1e-12);
}

/// Shunts between large resistors, and in series with a diode, have exact voltages at a usual tolerance.
#[test]
fn shunts_are_computed() {
    for (outer, shunt) in [(1e3, 1e-4), (1e6, 1e-3)] {
        let text = format!("V1 a 0 1\nR1 a b {outer:e}\nR2 b c {shunt:e}\nR3 c 0 {outer:e}");
        let current = 1.0 / (2.0 * outer + shunt);
        assert_close(volts(&text, "c", 1e-10), current * outer, 1e-12);
        assert_close(volts(&text, "b", 1e-10), 1.0 - current * outer, 1e-12);
    }
    let with = |shunt: &str| {
        let text = format!("V1 a 0 5\nR1 a b 1k\nR2 b c {shunt}\nD1 c 0 d\n.model d d(is=1e-14)");
        volts(&text, "c", 1e-10)
    };
    // Beside 1 kilohm, 10 microohms change the current by a hundred-millionth.
    for shunt in ["10u", "1u", "100n"] {
        assert_close(with(shunt), with("0"), 1e-9);
    }
}

/// A small resistor across voltage sources leaves nothing of its current in other equations, nor does one behind a controlled source.
#[test]
fn rigid_groups_keep_their_currents() {
    let text = "R2 n 0 1k\nV1 p n 0.1\nV2 q p 0.2\nV3 r n 0.3\nR1 q n 1u\nR3 q r 1m\nR4 r 0 1k";
    assert_close(volts(text, "n", 1e-13), -0.15, 1e-12);
    let gain = "V1 a 0 1\nE1 b 0 a 0 2\nR1 b c 1m\nR2 c 0 1g\nR3 c d 1g\nVs d 0 0\nF1 0 e Vs 3\nR4 e 0 1meg";
    let c = 2.0 / (1.0 + 2e-3 / 1e9); // behind R1
    assert_close(volts(gain, "e", 1e-13), 3.0 * c / 1e9 * 1e6, 1e-12);
}

/// Nodes behind a conducting diode that carry no current get their voltages at every source.
#[test]
fn unloaded_nodes_behind_diodes_are_exact() {
    for tenths in 1..=200 {
        let text = format!(
            "V1 in 0 {}\nR1 in a 1k\nD1 a 0 dd\nR2 a b 4.7k\nC2 b 0 100n\nR3 b c 10k\nC3 c 0 100n\n.model dd D(is=1e-14)",
            f64::from(tenths) / 10.0
        );
        assert_close(volts(&text, "c", 1e-10), volts(&text, "a", 1e-10), 1e-15);
    }
}

/// Currents that no diode carries, and numbers that are none, are refused.
#[test]
fn what_cannot_be_is_refused() {
    for (text, wanted) in [
        (
            "V1 a 0 17\nD1 a b d\nD2 a b d\nD3 b 0 d\n.model d d",
            "1e20 A",
        ),
        ("V1 a 0 5\nD1 a b d\n.model d d\nR1 b 0 1e-30", "1e20 A"),
        ("I1 0 a 1e200\nR1 a 0 1e200", "largest number"),
    ] {
        let netlist = netlist(&format!("t\n{text}"));
        let equations = Equations::new(&netlist).unwrap();
        let refused = Solver::new(&netlist, &equations, 1e-10)
            .solve(&Excitation::new(&netlist), direct)
            .unwrap_err()
            .to_string();
        assert!(refused.contains(wanted), "{text:?}: {refused}");
    }
}
