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
    Ok(substructure.solve(linear.rhs, 1e-14)?.x)
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
        let conductances = solver().with_conductances(&excited, &mut direct).unwrap();
        let sources = solver()
            .with_sources(&excitation, &excited, &mut direct)
            .unwrap();
        for found in [conductances, sources] {
            let found = found.expect("this way converges");
            assert!(found.residual < 1e-11);
            for (a, b) in found.x.iter().zip(&point.x) {
                assert!((a - b).abs() < 1e-8, "{a} {b}");
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
            single::solve(system, relaxation, limits, |_| {}).unwrap().x,
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
