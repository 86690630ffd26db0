//! Parts computed by other endpoints over shared memory, each driven by a thread, beside the same parts computed by threads alone.

use std::thread;

use tsumuji_circuit::compute::{Computation, ComputeError, Options, Outcome};
use tsumuji_circuit::netlist::{Limits, Netlist, from_bytes};
use tsumuji_circuit::remote::{Remote, Watch, desert_after, dismiss, worker_main};
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

/// Also says what it was told of lost workers.
fn judge(
    endpoint: &mut Endpoint,
    netlist: &Netlist,
    stop: &dyn Fn() -> bool,
) -> (Result<Outcome, ComputeError>, Vec<String>) {
    let mut told = Vec::new();
    let watch = Watch {
        ended: None,
        stop,
        lost: &mut |what| told.push(what.to_owned()),
    };
    let outcome = prepared(netlist)
        .by(Remote::new(endpoint, watch))
        .run(|| false);
    dismiss(endpoint);
    (outcome, told)
}

/// Runs a worker that deserts after so many tasks.
fn serve(mut endpoint: Endpoint, tasks: u64) -> thread::JoinHandle<()> {
    thread::spawn(move || desert_after(tasks, &mut endpoint).unwrap())
}

fn assert_same(found: &Outcome, wanted: &Outcome) {
    assert!(found.residual <= 1e-11, "{}", found.residual);
    assert_eq!(
        (found.sizes, found.steps, &found.swept),
        (wanted.sizes, wanted.steps, &wanted.swept)
    );
    let pairs = found.voltages.iter().zip(&wanted.voltages);
    for (one, other) in pairs.flat_map(|(one, other)| one.iter().zip(other)) {
        assert!((one - other).abs() < 1e-9, "{one} {other}");
    }
}

/// Sweep, diodes and controlled source give the voltages that threads find; workers leave in good order.
#[test]
fn processes_agree_with_threads() {
    let netlist = netlist();
    let wanted = prepared(&netlist).run(|| false).unwrap();
    let (mut endpoint, others) = cluster();
    let serve = |mut one: Endpoint| thread::spawn(move || worker_main(&mut one));
    let workers: Vec<_> = others.into_iter().map(serve).collect();
    let (found, told) = judge(&mut endpoint, &netlist, &|| false);
    for worker in workers {
        worker.join().unwrap().unwrap();
    }
    let found = found.unwrap();
    assert_same(&found, &wanted);
    assert_eq!(found.sizes.parts, usize::from(WORKERS));
    assert_eq!(told, Vec::<String>::new());
}

/// Workers that leave at any moment leave their parts to the others; the last one has all.
#[test]
fn parts_of_the_lost_are_computed_by_others() {
    let netlist = netlist();
    let wanted = prepared(&netlist).run(|| false).unwrap();
    for first in 0..8 {
        for second in [first, first + 1, 40] {
            let (mut endpoint, others) = cluster();
            let tasks = [second, u64::MAX, first];
            let workers: Vec<_> = others.into_iter().zip(tasks).collect();
            let workers: Vec<_> = workers
                .into_iter()
                .map(|(one, tasks)| serve(one, tasks))
                .collect();
            let (found, told) = judge(&mut endpoint, &netlist, &|| false);
            workers
                .into_iter()
                .for_each(|worker| worker.join().unwrap());
            assert_same(&found.unwrap(), &wanted);
            assert_eq!(told.len(), 2, "{first}, {second}: {told:?}");
            assert!(
                told.iter().all(|what| what.contains("was lost")),
                "{told:?}"
            );
        }
    }
}

/// The loss of the last worker ends the run by its name.
#[test]
fn the_last_lost_worker_ends_the_run() {
    let netlist = netlist();
    let (mut endpoint, others) = cluster();
    let workers: Vec<_> = others.into_iter().map(|one| serve(one, 5)).collect();
    let (outcome, _) = judge(&mut endpoint, &netlist, &|| false);
    let error = outcome.unwrap_err();
    assert!(
        matches!(&error, ComputeError::Solve(SolveError::Worker { .. })),
        "{error}"
    );
    assert!(error.to_string().contains("was lost"), "{error}");
    workers
        .into_iter()
        .for_each(|worker| worker.join().unwrap());
}

/// A user who stops the command while workers are waited for is heard.
#[test]
fn waits_are_interrupted() {
    let netlist = netlist();
    let (mut endpoint, others) = cluster();
    let (interrupted, _) = judge(&mut endpoint, &netlist, &|| true);
    assert!(matches!(interrupted, Err(ComputeError::Interrupted)));
    drop(others); // which never answered
}
