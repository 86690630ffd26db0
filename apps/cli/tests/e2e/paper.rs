//! `tsumuji paper` end to end, with the smallest messages only.

use std::process::Stdio;

use serde_json::Value;

use crate::common::{assert_refused, command, finish, json, skipped, text, tsumuji};

/// Every figure of the list can be run and says what the paper says.
#[test]
fn figures_of_the_list_run() {
    let (code, list) = json(&["paper", "--list"]);
    assert_eq!(code, 0);
    let figures = list["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 53);
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("figures_of_the_list_run", &error.to_string());
    }
    let folder = tempfile::tempdir().unwrap();
    for figure in figures {
        let name = figure["name"].as_str().unwrap();
        if !name.starts_with("suci-fig") {
            continue; // their options are others, see below
        }
        let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
        let mut args = vec!["paper", name, "--largest", "8", "--iterations", "5"];
        args.extend(["--rounds", "1", "--csv", csv.to_str().unwrap()]);
        args.extend(["--plot", svg.to_str().unwrap()]);
        if name == "suci-fig9" {
            args.extend(["--nodes", "3,4", "--rate", "none", "--link", "packet"]);
        }
        let (code, report) = json(&args);
        assert_eq!(code, 0, "{report}");
        let runs = report["comparisons"].as_array().unwrap();
        assert_eq!(runs.len(), if name == "suci-fig9" { 2 } else { 1 });
        // Credit, and Suci's rules with K = 16 and 0; slow write, or the binomial tree, under either; MPICH and Open MPI.
        let contenders = match name {
            "suci-fig8" | "suci-fig9" => 7,
            _ => 5,
        };
        for run in runs {
            assert_eq!(run["results"][1]["size"], 8);
            let all = run["results"][0]["contenders"].as_array().unwrap();
            assert_eq!(all.len(), contenders, "{name}");
            for one in all {
                let is_measured = one["bytes_per_second"]
                    .as_f64()
                    .is_some_and(|rate| rate > 0.0);
                let who = one["name"].as_str().unwrap();
                let failure = one["failure"].as_str().unwrap_or_default();
                let is_mpi = who.starts_with("MPICH") || who.starts_with("Open MPI");
                if is_mpi && failure.starts_with("not installed") {
                    missing_mpi("figures_of_the_list_run", &format!("{who}: {failure}"));
                } else {
                    assert!(is_measured, "{name}: {one}");
                }
            }
        }
        let beside = report["beside"].as_array().unwrap();
        assert!(beside.len() >= 2 && beside.iter().all(|one| one["paper"] != ""));
        let shown = beside[0]["here"].as_array().unwrap();
        let names: Vec<_> = shown
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        let first = ["credit", "suci", "suci, K = 0"];
        assert!(
            names.len() == contenders && names.starts_with(&first),
            "{names:?}"
        );
        let rows = std::fs::read_to_string(&csv).unwrap();
        assert_eq!(
            rows.lines().count(),
            1 + runs.len() * 2 * contenders,
            "{rows}"
        );
        assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    }
}

/// Video beside bulk, by each way: every frame is accounted for, and the paper's words stand beside. How many come in time is not judged here: the machine
/// may be busy.
#[test]
fn video_beside_bulk() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("video_beside_bulk", &error.to_string());
    }
    let (code, report) = json(&["paper", "suci-dv", "--quick"]);
    assert_eq!(code, 0, "{report}");
    assert!(report["paper"].as_str().unwrap().contains("DVTS"));
    let ways = report["ways"].as_array().unwrap();
    let names: Vec<_> = ways
        .iter()
        .map(|way| way["way"].as_str().unwrap())
        .collect();
    let wanted = ["TCP", "plain UDP", "Suci's loop", "latest, with a deadline"];
    assert_eq!(names, wanted);
    for way in ways {
        let parts = ["in_time", "late", "lost"].map(|part| way[part].as_f64());
        let sum: f64 = parts.into_iter().map(Option::unwrap).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{way}");
        assert!(way["lost"].as_f64().unwrap() < 1.0, "{way}");
        assert!(
            way["bulk_bytes_per_second"].as_f64().unwrap() > 0.0,
            "{way}"
        );
    }
}

/// Says that an MPI library is missing; where `TSUMUJI_REQUIRE` contains `mpi`, that is a failure.
fn missing_mpi(test: &str, reason: &str) {
    let required = std::env::var("TSUMUJI_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word == "mpi"),
        "TSUMUJI_REQUIRE=mpi, and {reason}"
    );
    skipped(test, reason);
}

/// Sums over every link are beside the paper's words; a link that cannot be measured says why.
#[test]
fn sums_over_all_links() {
    let (code, report) = json(&["paper", "l2rtc-fig12", "--quick"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["paper"][2], "0.4x or 1.4x");
    let links = report["links"].as_array().unwrap();
    assert_eq!(links.len(), 7);
    for link in links {
        let is_dpdk = link["link"].as_str().unwrap().starts_with("dpdk");
        let is_here = link["place"] == "one host";
        match link["missing"].as_str() {
            Some(reason) => assert!(is_dpdk || !is_here, "{link}: {reason}"),
            None => assert_eq!(link["measured"]["results"].as_array().unwrap().len(), 2),
        }
    }
    let verdicts = links[0]["measured"]["results"][0]["verdicts"].as_array();
    assert_eq!(verdicts.unwrap().len(), 5, "{}", links[0]);
    // A virtual machine has no counters, and then the reason is told.
    match report["cache_misses_reason"].as_str() {
        Some(reason) => {
            assert!(reason.contains("perf_event_open") && report["cache_misses"].is_null())
        }
        None => {
            let cell = report["cache_misses"][1][1].as_str().unwrap();
            assert!(cell.parse::<f64>().is_ok(), "{cell}");
        }
    }
    let beside = report["beside"].as_array().unwrap();
    assert_eq!(beside[1][1], "30x");
    let shm = beside[2].as_array().unwrap();
    assert!(
        shm[0].as_str().unwrap().starts_with("shm, one host"),
        "{shm:?}"
    );
    for place in [1, 4] {
        let times = shm[place].as_str().unwrap().trim_end_matches('x');
        assert!(times.parse::<f64>().unwrap() > 0.0, "{shm:?}");
    }
}

/// Wrong requests are refused in one line.
#[test]
fn refusals_are_one_line() {
    for (args, wanted) in [
        (&["paper", "suci-fig5"][..], "suci-fig6"),
        (&["paper", "suci-fig6", "--link", "shm"], "--link shm"),
        (&["paper", "suci-fig6", "--rate", "fast"], "or none"),
        (&["paper", "suci-dv", "--nodes", "3"], "takes --rate"),
        (&["paper", "l2rtc-fig12", "--link", "udp"], "takes --rounds"),
        (&["paper", "sdp-fig3", "--nodes", "2"], "sdp-fig9 to -fig14"),
        (&["paper", "sdp-fig5", "--link", "udp"], "takes --nodes"),
        (&["paper", "mech-fig1", "--link", "udp"], "is computed"),
        (&["paper", "suci-fig6", "--simulate", "7"], "is simulated"),
        (
            &["paper", "relax-table5.1", "--simulate", "7"],
            "no machines",
        ),
        (&["paper", "relax-fig5.11", "--simulate", "0"], "or none"),
        (
            &["paper", "relax-fig5.3", "--link", "udp", "--simulate", "7"],
            "multicast is",
        ),
        (
            &["paper", "relax-table2.1", "--link", "udp"],
            "takes --rounds",
        ),
        (&["paper"], "FIGURE"),
    ] {
        assert_refused(args, &[wanted]);
    }
}

/// The other experiments of L2RTC run in a testbed, and each result is there or says why not.
#[test]
fn experiments_of_l2rtc_run() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("experiments_of_l2rtc_run", &error.to_string());
    }
    let quick = |figure: &str, more: &[&str]| {
        let (code, report) = json(&[&["paper", figure, "--quick"], more].concat());
        assert_eq!(code, 0, "{report}");
        assert_eq!(report["figure"], figure);
        report
    };
    let is_found = |one: &serde_json::Value, name: &str| {
        let dpdk = one[name].as_str().unwrap().starts_with("dpdk");
        match one["missing"].as_str() {
            Some(reason) => assert!(dpdk, "{one}: {reason}"), // it may not be built in
            None => assert!(one.as_object().unwrap().len() > 2, "{one}"),
        }
    };
    let drops = quick("l2rtc-fig5", &[]);
    let ways = drops["measured"]["results"].as_array().unwrap();
    assert_eq!(ways.len(), 5 * ways.len().div_ceil(5), "{drops}");
    ways.iter().for_each(|way| is_found(way, "way"));
    let costs = quick("l2rtc-fig6", &[]);
    let links = costs["links"].as_array().unwrap();
    assert_eq!(links.len(), 7);
    links.iter().for_each(|link| is_found(link, "link"));
    let delays = quick("l2rtc-fig10", &["--iterations", "10000", "--rounds", "2"]);
    let ports = delays["results"].as_array().unwrap();
    assert_eq!(ports.len(), 2, "one port and two");
    for found in ports {
        let results = found["measured"]["results"].as_array().unwrap();
        let measured = results.iter().filter(|one| one["rounds"].is_array());
        for one in measured.clone() {
            assert_eq!(one["lost"], 0, "{one}");
            assert_eq!(one["part"]["rounds"], 2, "{one}");
        }
        assert_eq!(measured.count(), 3 * 3, "three executors, three times");
    }
    let learning = quick("l2rtc-fig14", &[]);
    let ways = learning["results"].as_array().unwrap();
    assert_eq!(
        ways.len(),
        1 + 6 * (3 + 1),
        "one process, and six links by three executors and with frequent exchanges"
    );
    for way in ways {
        is_found(way, "way");
        let sends = way["missing"].is_null() && way["way"] != "one process";
        if sends {
            assert!(way["bytes_sent"]["median"].is_number(), "{way}");
            assert!(way["exchanges"]["median"].is_number(), "{way}");
            assert!(way["over_tcp"].as_f64() > Some(0.0), "{way}");
        }
        let beside = way["rows_beside"].as_u64();
        match way["executor"].as_str().unwrap() {
            "pipeline" => assert!(beside.is_none_or(|rows| rows > 0), "{way}"),
            "adaptive" => {} // as there are cores
            _ => assert!(beside.is_none_or(|rows| rows == 0), "{way}"),
        }
    }
}

/// What an experiment cannot take is refused.
#[test]
fn options_of_l2rtc_are_checked() {
    for words in [
        ["l2rtc-fig5", "--link", "shm"],
        ["l2rtc-fig12", "--plot", "a.svg"],
    ] {
        let refused = tsumuji(&[&["paper"], &words[..]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains(words[1]) && said.contains(words[0]), "{said}");
    }
}

/// Tables and figures of RELAX are measured over every link and stand beside the paper's numbers; a figure and its CSV can be had.
#[test]
fn relaxation_over_all_links() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("relaxation_over_all_links", &error.to_string());
    }
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    for (name, varied, lines) in [
        ("relax-table5.1", "n", 1),
        ("relax-fig5.4", "elements", 2),
        ("relax-fig6.3", "workers", 5),
        ("relax-fig6.5", "n", 6),
    ] {
        let mut words = vec!["paper", name, "--quick", "--rows", "300"];
        words.extend([
            "--csv",
            csv.to_str().unwrap(),
            "--plot",
            svg.to_str().unwrap(),
        ]);
        let (code, report) = json(&words);
        assert_eq!(code, 0, "{report}");
        assert_eq!(report["varied"], varied);
        let results = report["results"].as_array().unwrap();
        assert_eq!(results.len(), lines, "{report}");
        for result in results {
            let is_dpdk = result["way"].as_str().unwrap().starts_with("dpdk");
            for cell in result["cells"].as_array().unwrap() {
                let is_measured = cell["seconds"].as_array().unwrap().len() == 1;
                assert!(is_measured || is_dpdk, "{result}");
            }
        }
        assert!(!report["beside"].as_array().unwrap().is_empty());
        let rows = std::fs::read_to_string(&csv).unwrap();
        assert!(rows.starts_with(&format!("way,{varied},")), "{rows}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    }
    let (code, report) = json(&["paper", "relax-table2.1", "--quick"]);
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["results"].as_array().unwrap().len(), 5);
    let (code, report) = json(&["paper", "relax-fig5.4", "--link", "shm"]);
    assert_eq!(code, 2, "{report}");
}

/// All others of RELAX's tables and figures that take no longer than some seconds are measured, too.
#[test]
fn all_of_relaxation_is_measured() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("all_of_relaxation_is_measured", &error.to_string());
    }
    let numbered = [
        "fig5.2", "fig5.5", "fig5.6", "fig5.7", "fig5.8", "fig5.10", "fig5.12", "fig5.13",
        "fig6.2", "fig6.4", "table3.1", "table6.1", "table6.2",
    ];
    for number in numbered {
        let name = format!("relax-{number}");
        let words = [
            "--quick",
            "--rows",
            "300",
            "--rounds",
            "1",
            "--simulate",
            "none",
        ];
        let (code, report) = json(&[&["paper", &name], &words[..]].concat());
        assert_eq!(code, 0, "{report}");
        let results = report["results"].as_array().unwrap();
        let of_links = results
            .iter()
            .filter(|result| !result["way"].as_str().unwrap().starts_with("dpdk"));
        let cells = of_links.flat_map(|result| result["cells"].as_array().unwrap());
        let measured: Vec<usize> = cells
            .map(|cell| cell["seconds"].as_array().unwrap().len())
            .collect();
        assert!(
            !measured.is_empty() && measured.iter().all(|count| *count == 1),
            "{report}"
        );
    }
    let (code, report) = json(&["paper", "relax-table2.2", "--quick"]);
    let rates = report["results"].as_array().unwrap();
    // Five sizes, and three links that are everywhere.
    assert!(code == 0 && rates.len() >= 15, "{report}");
}

/// More machines than there are are simulated, and marked so in the table, JSON, CSV and plot; where the same was measured, the ratio is told.
#[test]
fn more_machines_are_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    let words = ["paper", "relax-fig5.11", "--quick", "--rows", "300"];
    let words = [&words[..], &["--link", "packet", "--simulate", "1,2,7"]].concat();
    let files = [
        "--csv",
        csv.to_str().unwrap(),
        "--plot",
        svg.to_str().unwrap(),
    ];
    let (code, report) = json(&[&words[..], &files].concat());
    assert_eq!(code, 0, "{report}");
    let ways = ["simulated packet, 10 Gbit/s", "simulated packet, 1 Gbit/s"];
    let rows = std::fs::read_to_string(&csv).unwrap();
    let drawn = std::fs::read_to_string(&svg).unwrap();
    let lines = report["simulated"]["results"].as_array().unwrap();
    assert_eq!(lines.len(), ways.len(), "{report}");
    for (way, line) in ways.into_iter().zip(lines) {
        assert_eq!(line["way"], way);
        let cells = line["cells"].as_array().unwrap();
        let workers: Vec<_> = cells.iter().map(|cell| cell["value"].as_u64()).collect();
        assert_eq!(workers, [1, 2, 7].map(Some), "{line}");
        for cell in cells {
            assert!(cell["seconds"][0].as_f64().unwrap() > 0.0, "{line}");
            assert!(cell["laps"][0].as_f64().unwrap() > 1.0, "{line}");
        }
        assert!(rows.contains(&format!("\"{way}\",7,0,")), "{rows}");
        assert!(drawn.contains(way), "{drawn}");
    }
    let beside = report["beside"].as_array().unwrap();
    let what = format!("{}: speed-up of 2 workers", ways[0]);
    let speed_up = beside.iter().find(|one| one["what"] == what).unwrap();
    assert_eq!(speed_up["paper"], "2.02x");
    let ours = speed_up["ours"].as_str().unwrap();
    assert!(ours.ends_with('x'), "{speed_up}");
    for measured in report["results"].as_array().unwrap() {
        assert_eq!(measured["way"], "packet");
    }
    let checks = report["simulated"]["checks"].as_array().unwrap();
    match tsumuji_testbed::check_rights() {
        Ok(()) => assert!(!checks.is_empty(), "{report}"),
        Err(error) => skipped("more_machines_are_simulated", &error.to_string()),
    }
    for check in checks {
        let number = |name: &str| check[name].as_f64().unwrap();
        let ratio = number("simulated_seconds") / number("measured_seconds");
        assert!((number("ratio") / ratio - 1.0).abs() < 1e-9, "{check}");
    }
    let output = tsumuji(&words);
    let said = text(&output.stdout);
    assert!(said.contains("simulated, not measured"), "{said}");
    let mut rows = said.lines().filter(|line| line.starts_with(ways[0]));
    assert!(rows.any(|row| row.contains("  1.00  ")), "{said}");
}

/// A figure of SDP of each kind is measured with messages and clients of its own, stands beside the paper's words, and can be drawn.
#[test]
fn streams_beside_sdp() {
    let Some(library) = crate::runs::library("streams_beside_sdp") else {
        return;
    };
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("streams_beside_sdp", &error.to_string());
    }
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    for (number, shape, clients, paths) in [
        (2, "rr", 1, 4),
        (5, "stream", 1, 4),
        (11, "rr", 3, 4),
        (12, "stream", 3, 3),
        (13, "stream", 3, 1),
    ] {
        let name = format!("sdp-fig{number}");
        let mut words = vec!["paper", &name, "--quick", "--json"];
        words.extend(["--csv", csv.to_str().unwrap()]);
        words.extend(["--plot", svg.to_str().unwrap()]);
        if clients > 1 {
            words.extend(["--nodes", "1,3"]);
        }
        if number != 11 {
            words.extend(["--largest", "64"]); // of figure 11 all have 8 KiB
        }
        let mut command = command(&words);
        command.env("TSUMUJI_SOCKETS_LIBRARY", &library);
        let output = finish(
            command
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program"),
        );
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{name}: {said}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["figure"], name);
        assert_eq!(report["shape"], shape);
        let results = report["results"].as_array().unwrap();
        for result in results {
            let measured = result["paths"].as_array().unwrap();
            assert_eq!(measured.len(), paths, "{result}");
            for path in measured {
                assert!(path["mbits"]["median"].as_f64().unwrap() > 0.0, "{path}");
            }
        }
        assert_eq!(results.last().unwrap()["clients"], clients, "{name}");
        let beside = report["beside"].as_array().unwrap();
        assert!(
            beside
                .iter()
                .all(|one| one["paper"] != "" && one["ours"] != "")
        );
        assert!(!beside.is_empty(), "{name}");
        let rows = std::fs::read_to_string(&csv).unwrap();
        assert_eq!(rows.lines().count(), 1 + results.len() * paths, "{rows}");
        assert!(std::fs::read_to_string(&svg).unwrap().contains("</svg>"));
    }
}

/// Cables of a rate bound the kernel's TCP between hosts.
#[test]
fn cables_bound_streams() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("cables_bound_streams", &error.to_string());
    }
    let words = ["paper", "sdp-fig14", "--quick", "--nodes", "2", "--rate"];
    let (code, report) = json(&[&words[..], &["20mbit"]].concat());
    assert_eq!(code, 0, "{report}");
    assert_eq!(report["bits_per_second"], 20_000_000);
    let results = report["results"].as_array().unwrap();
    let last = &results.last().unwrap()["paths"][0];
    let mbits = last["mbits"]["median"].as_f64().unwrap();
    assert!(mbits > 1.0 && mbits < 30.0, "{mbits}");
}
