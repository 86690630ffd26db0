//! Parts computed by other endpoints over shared memory, each driven by a thread, beside the same parts computed by threads alone.

use std::thread;
use std::time::Duration;

use tsumuji_circuit::compute::{Computation, ComputeError, Options, Outcome};
use tsumuji_circuit::netlist::{Limits, Netlist, from_bytes};
use tsumuji_circuit::remote::{Remote, Watch, dismiss, worker_main};
use tsumuji_circuit::substructure::SolveError;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{Endpoint, Membership, NodeId, Options as NodeOptions};

const WORKERS: u16 = 3;

/// A ladder with diodes, a controlled source and a sweep: parts of either kind, and unknowns that join the interface.
fn netlist() -> Netlist {
    let rungs = (1..400).map(|n| format!("R{n} n{n} n{} 10\nRg{n} n{n} 0 1k\n", n + 1));
    let diodes = (1..8).map(|n| format!("D{n} n{} 0 d\n", 50 * n));
    let text = format!(
        "ladder\nV1 n1 0 1\n{}{}E1 e 0 n20 0 2\nRe e n330 1k\n.model d d\n.dc V1 0 3 1\n",
        rungs.collect::<String>(),
        diodes.collect::<String>()
    );
    let limits = Limits {
        memory_bytes: 64 << 20,
        unfolded_bytes: 1 << 20,
    };
    from_bytes("ladder.sp", text.as_bytes(), limits).unwrap()
}

fn prepared(netlist: &Netlist) -> Computation<'_> {
    let options = Options {
        parts: usize::from(WORKERS),
        tolerance: 1e-11,
    };
    Computation::new(netlist, options).unwrap()
}

/// Endpoints of judge and workers.
fn cluster() -> (Endpoint, Vec<Endpoint>) {
    let nodes = WORKERS + 1;
    let job = ShmJob::create(nodes.into(), ShmConfig::for_nodes(nodes.into())).unwrap();
    let open = |id| {
        let link = Shm::attach(&job, id).unwrap();
        let membership = Membership::local(NodeId(id), nodes);
        Endpoint::new(link, membership, NodeOptions::default()).unwrap()
    };
    (open(0), (1..nodes).map(open).collect())
}

fn judge(
    endpoint: &mut Endpoint,
    netlist: &Netlist,
    stop: &dyn Fn() -> bool,
) -> Result<Outcome, ComputeError> {
    let mut ended = Vec::new;
    let watch = Watch {
        ended: &mut ended,
        stop,
    };
    let outcome = prepared(netlist)
        .by(Remote::new(endpoint, watch))
        .run(|| false);
    dismiss(endpoint);
    outcome
}

/// Sweep, diodes and controlled source give the voltages that threads find; workers leave in good order.
#[test]
fn processes_agree_with_threads() {
    let netlist = netlist();
    let wanted = prepared(&netlist).run(|| false).unwrap();
    let (mut endpoint, others) = cluster();
    let serve = |mut endpoint: Endpoint| thread::spawn(move || worker_main(&mut endpoint));
    let workers: Vec<_> = others.into_iter().map(serve).collect();
    let found = judge(&mut endpoint, &netlist, &|| false).unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    assert!(found.residual <= 1e-11, "{}", found.residual);
    assert_eq!(
        (found.sizes, found.steps, &found.swept),
        (wanted.sizes, wanted.steps, &wanted.swept)
    );
    assert_eq!(found.sizes.parts, usize::from(WORKERS));
    let pairs = found.voltages.iter().zip(&wanted.voltages);
    for (one, other) in pairs.flat_map(|(one, other)| one.iter().zip(other)) {
        assert!((one - other).abs() < 1e-9, "{one} {other}");
    }
}

/// A worker that leaves ends the run by its name; the others leave.
#[test]
fn a_lost_worker_ends_the_run() {
    let netlist = netlist();
    let (mut endpoint, mut others) = cluster();
    let mut deserter = others.pop().unwrap();
    let deserts = thread::spawn(move || {
        let first = deserter.recv(Duration::from_secs(60)).unwrap();
        assert!(first.is_some(), "nothing came");
    });
    let serve = |mut endpoint: Endpoint| thread::spawn(move || worker_main(&mut endpoint));
    let workers: Vec<_> = others.into_iter().map(serve).collect();
    let error = judge(&mut endpoint, &netlist, &|| false).unwrap_err();
    assert!(
        matches!(&error, ComputeError::Solve(SolveError::Worker { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("was lost"), "{error}");
    deserts.join().unwrap();
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
}

/// Who wants to stop while workers are waited for is heard.
#[test]
fn waits_are_interrupted() {
    let netlist = netlist();
    let (mut endpoint, others) = cluster();
    let interrupted = judge(&mut endpoint, &netlist, &|| true);
    assert!(matches!(interrupted, Err(ComputeError::Interrupted)));
    drop(others); // which never answered
}
