use super::super::Way;
use super::*;
use tsumuji_solve::distributed::simulated::machines::Violation;

fn plan(variable: Variable, ways: &[Way]) -> Plan {
    Plan {
        variable,
        values: vec![1, 2],
        ways: ways.to_vec(),
        rows: 300,
        workers: 2,
        elements: 20,
        repeats: 1,
    }
}

/// Over workers there are more than any machine here has, at both rates; elsewhere the paper's 4 and 7 machines; and what was asked for.
#[test]
fn lines_go_beyond_this_machine() {
    let over_workers = plan(Variable::Workers, &BYPASS);
    let names = |plan: &Plan, asked: Option<&Simulate>| -> Vec<String> {
        let all = conditions(plan, asked);
        all.iter().map(Conditions::name).collect()
    };
    let wanted = ["simulated dpdk, 10 Gbit/s", "simulated dpdk, 1 Gbit/s"];
    assert_eq!(names(&over_workers, None), wanted);
    assert_eq!(values(&over_workers, None, false), [1, 2, 3, 4, 7, 16, 64]);
    let asked: Simulate = "7,200".parse().unwrap();
    assert_eq!(values(&over_workers, Some(&asked), true), [7, 200]);
    let over_elements = plan(Variable::Elements, &[UDP, FAN_OUT]);
    let wanted = ["simulated udp, 4 workers", "simulated udp, 7 workers"];
    assert_eq!(names(&over_elements, None), wanted);
    assert_eq!(values(&over_elements, Some(&asked), false), [1, 2]);
    let none: Simulate = "none".parse().unwrap();
    assert!(names(&over_workers, Some(&none)).is_empty());
    assert!(names(&plan(Variable::Rows, &[Way::Single]), None).is_empty());
    for text in ["", "0", "1,x", "1001", "4,7,4"] {
        assert!(text.parse::<Simulate>().is_err(), "{text}");
    }
}

/// A point is the time of machines that converged. Where no time is left there is none, and the reason says so; nor where rows are too few or many.
#[test]
fn points_are_runs() {
    let over_workers = plan(Variable::Workers, &BYPASS);
    let on = conditions(&over_workers, None)[0];
    let endless = Patience { until: None };
    let (found, machines) = on.point(&over_workers, 7, &endless).unwrap();
    assert!(found.seconds > 0.0 && found.laps > 5.0, "{found:?}");
    assert!(found.wire_bits_per_second > 0.0, "{found:?}");
    assert!(machines.value_ps > 0);
    let shared = Conditions {
        is_one_machine: true,
        ..on
    };
    assert!(shared.point(&over_workers, 2, &endless).is_ok());
    let over = Patience {
        until: Some(Instant::now()),
    };
    assert_eq!(on.point(&over_workers, 7, &over).unwrap_err(), LEFT_OUT);
    let error = on.point(&over_workers, 301, &endless).unwrap_err();
    assert!(error.contains("too few"), "{error}");
    let huge = Plan {
        rows: 10_000_000,
        ..over_workers
    };
    let error = on.point(&huge, 7, &endless).unwrap_err();
    assert!(error.contains("of memory"), "{error}");
}

/// What is stopped while an entry is measured is left out; a fault of the simulator is told as such.
#[test]
fn stopped_points_are_left_out() {
    let over_workers = plan(Variable::Workers, &BYPASS);
    let on = conditions(&over_workers, None)[0];
    let stopped = on.machines(&over_workers, 7, &|| true).unwrap_err();
    assert_eq!(reason(&stopped), LEFT_OUT);
    let (seed, why) = (1, "stuck".to_owned());
    let fault = reason(&RelaxError::Fault(Violation { seed, why }));
    assert!(fault.contains("fault of tsumuji's") && fault.contains("seed 1"));
}

/// The tables fit a terminal and mark each of their lines; a point that was left out is in none.
#[test]
fn tables_fit() {
    let over_workers = plan(Variable::Workers, &BYPASS);
    let found = Computed {
        seconds: 123.0,
        laps: 123.0,
        wire_bits_per_second: 9e9,
    };
    let line = |conditions: Conditions| Simulated {
        swept: Swept {
            way: conditions.name(),
            cells: vec![
                Cell::computed(1, Ok(found)),
                Cell::computed(256, Err(LEFT_OUT.to_owned())),
            ],
        },
        conditions,
        entry_picoseconds: vec![300],
        handover_nanoseconds: vec![40, 50],
    };
    let check = Check {
        way: "dpdk:net_af_packet".to_owned(),
        value: 2,
        simulated_seconds: 0.1,
        measured_seconds: 0.2,
        ratio: 0.5,
        simulated_laps: 22.0,
        measured_laps: None,
    };
    let lines = conditions(&over_workers, None).into_iter().map(line);
    let simulation = Simulation {
        lines: lines.collect(),
        checks: vec![check],
    };
    let texts = simulation.text(&plan(Variable::Elements, &BYPASS));
    for row in texts[1].lines().chain(texts[3].lines()) {
        assert!(row.chars().count() <= 80, "{row}");
    }
    let texts = simulation.text(&over_workers);
    assert_eq!(texts.len(), 5);
    assert!(
        texts[4].contains("agree (ratio 0.75 to 1.33) in 0 of 1;"),
        "{}",
        texts[4]
    );
    assert!(texts[0].contains("simulated, not measured") && texts[0].contains("300 to 300 ps"));
    assert!(texts[0].contains("40 to 50 ns"), "{}", texts[0]);
    let rows = texts[1].lines().skip(1);
    assert!(
        rows.clone().all(|row| row.starts_with("simulated ")),
        "{}",
        texts[1]
    );
    assert_eq!(rows.count(), 2, "{}", texts[1]);
    assert!(texts[3].contains("0.50"), "{}", texts[3]);
    for row in texts[1].lines().chain(texts[3].lines()) {
        assert!(row.chars().count() <= 80, "{row}");
    }
    let object = simulation.json(&over_workers);
    assert_eq!(object["results"][0]["way"], "simulated dpdk, 10 Gbit/s");
    assert_eq!(object["results"][1]["gigabits_per_second"], 1);
    assert_eq!(object["checks"][0]["ratio"], 0.5);
}

/// What was measured is simulated, too, and the ratio of both told.
#[test]
fn checks_are_ratios() {
    let over_workers = plan(Variable::Workers, &[FAN_OUT, BYPASS[0]]);
    let found = Computed {
        seconds: 2.0,
        laps: 20.0,
        wire_bits_per_second: 0.0,
    };
    let cells = [1, 2]
        .map(|value| Cell::computed(value, Ok(found)))
        .to_vec();
    let measured = ["udp", "packet"].map(|way| Swept {
        way: way.to_owned(),
        cells: cells.clone(),
    });
    let checks = checks(&over_workers, &measured, &Patience { until: None }).unwrap();
    let all: Vec<_> = checks
        .iter()
        .map(|check| (&*check.way, check.value))
        .collect();
    assert_eq!(all, [("packet", 1), ("packet", 2)]);
    for check in &checks {
        assert_eq!(check.ratio, check.simulated_seconds / 2.0);
        assert_eq!(check.measured_laps, Some(20.0));
    }
    let simulation = Simulation {
        lines: Vec::new(),
        checks,
    };
    assert!(simulation.text(&over_workers).is_empty());
    assert!(simulation.json(&over_workers).is_null());
}
