use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Words {
    #[command(flatten)]
    args: Args,
}

fn planned(words: &[&str]) -> anyhow::Result<Plan> {
    let all = [&["paper"], words].concat();
    let args = Words::try_parse_from(all)?.args;
    plan(args.figure.expect("a figure is among the words"), &args)
}

/// Throughput and processor time grow with size and clients, latency, too; each path by its factor: shm 4, tcp 2, others 1.
fn found(plan: &Plan) -> Vec<Row> {
    let one = |path: Path, bytes: usize, clients: usize| {
        let (factor, size) = (
            match path {
                Path::Carried => 4.0,
                Path::Tcp => 2.0,
                _ => 1.0,
            },
            (bytes * clients) as f64,
        );
        Measured {
            per_second: factor * 1000.0 / size,
            mbits: factor * size,
            p50: size / factor,
            p99: 2.0 * size / factor,
            client_cpu: factor * 5.0,
            server_cpu: factor * 6.0,
            machine_cpu: 60.0,
            softirq: 7.0,
            us_per_kb: 8.0 / factor,
            client_us_per_kb: 9.0 / factor,
            machine_us_per_kb: 10.0 / factor,
        }
    };
    let mut rows = Vec::new();
    for &clients in &plan.series.clients {
        for &bytes in &plan.series.sizes {
            let paths = plan.series.paths.iter();
            rows.push(Row {
                bytes,
                clients,
                paths: paths
                    .map(|path| (*path, vec![one(*path, bytes, clients)]))
                    .collect(),
            });
        }
    }
    rows
}

fn of_sdp() -> impl Iterator<Item = Figure> {
    let all = Figure::all().into_iter();
    all.filter(|figure| figure.paper() == "sdp")
}

/// Every figure of the paper with results is there, in full and at a first look, and each of its statements has words of the paper and a number of ours.
#[test]
fn statements_have_both_sides() {
    let names: Vec<&str> = of_sdp().map(Figure::name).collect();
    let expected: Vec<String> = (2..=14).map(|number| format!("sdp-fig{number}")).collect();
    assert_eq!(names, expected);
    for figure in of_sdp() {
        for words in [&[][..], &["--quick"]] {
            let plan = planned(&[&[figure.name()], words].concat()).unwrap();
            let rows = found(&plan);
            let all = facts::statements(figure, &rows);
            assert!(!all.is_empty(), "{}", figure.name());
            for (what, paper, here) in &all {
                let row = format!("{what}  {paper}  {here}");
                assert!(!what.is_empty() && !paper.is_empty(), "{row}");
                assert!(
                    here.contains(|letter: char| letter.is_ascii_digit()),
                    "{row}"
                );
                assert!(!here.contains("NaN") && !here.contains("inf"), "{row}");
            }
            let text = statements_as_table(&all, "here");
            assert!(
                text.lines().all(|line| line.chars().count() <= 80),
                "{text}"
            );
            let paths: Vec<Path> = drawn_paths(figure, &plan.series.paths);
            assert!(!lines(&rows, &paths, plan.is_over_clients(), plan.quantity.part).is_empty());
        }
    }
}

/// Ratios are of the paths that stand beside the paper's.
#[test]
fn ratios_are_of_the_right_paths() {
    let of = |figure: &str| {
        let plan = planned(&[figure]).unwrap();
        let all = facts::statements(Figure::of(figure), &found(&plan));
        all.into_iter().map(|(_, _, here)| here).collect::<Vec<_>>()
    };
    assert_eq!(of("sdp-fig2"), ["4.00x"]);
    assert_eq!(of("sdp-fig3"), ["0.25 us", "0.50 us", "1.00 us"]);
    assert_eq!(of("sdp-fig8"), ["0.25x", "0.50x"]);
    assert_eq!(of("sdp-fig11"), ["4.00x", "4.00x", "0.50x"]);
    let streams = of("sdp-fig12");
    assert_eq!(
        streams[0],
        format!("{} to {} Mbit/s", 4 * 4 * 1024, 4 * 64 * 65536)
    );
    assert_eq!(streams[2..4], ["4.00x", "2.00x"]);
    assert_eq!(of("sdp-fig13"), [format!("{} Mbit/s", 2 * 64 * 65536)]);
}

/// Sizes, clients and paths are the paper's; a first look keeps those that its statements are about.
#[test]
fn plans_are_the_papers() {
    let three = planned(&["sdp-fig3"]).unwrap().series;
    assert_eq!((three.sizes[0], three.sizes.len()), (1, 15));
    assert_eq!(three.sizes[14], LARGEST_REQUEST);
    assert_eq!((three.rounds, three.clients.as_slice()), (3, &[1][..]));
    let compared = [Path::Carried, Path::Udp, Path::Tcp, Path::TcpNs];
    assert_eq!(three.paths, compared);
    let eleven = planned(&["sdp-fig11", "--quick", "--rounds", "2"])
        .unwrap()
        .series;
    assert_eq!(eleven.sizes, [8 << 10]);
    assert_eq!(
        (eleven.clients.as_slice(), eleven.rounds),
        (&[1, 4, 16, 64][..], 2)
    );
    let nine = planned(&["sdp-fig9", "--quick", "--nodes", "1,3"])
        .unwrap()
        .series;
    assert!(
        [32, 8 << 10, 64 << 10]
            .iter()
            .all(|size| nine.sizes.contains(size))
    );
    assert_eq!(nine.clients, [1, 3]);
    let fourteen = planned(&["sdp-fig14", "--largest", "1K"]).unwrap().series;
    assert_eq!(fourteen.sizes.last(), Some(&1024));
    assert_eq!(fourteen.paths, [Path::TcpNs]);
}

/// What a figure cannot take is refused in one line that names it.
#[test]
fn other_options_are_refused() {
    for (words, wanted) in [
        (&["sdp-fig3", "--nodes", "2"][..], "between two nodes"),
        (&["sdp-fig9", "--nodes", "65"], "at most 64 clients"),
        (&["sdp-fig9", "--largest", "16"], "has 32 B"),
        (&["sdp-fig5", "--largest", "2M"], "at most 1 MiB"),
        (&["sdp-fig5", "--link", "udp"], "--link: sdp-fig5 takes"),
        (&["sdp-fig5", "--iterations", "5"], "--iterations: sdp-fig5"),
        (&["sdp-fig5", "--rows", "500"], "--rows: sdp-fig5"),
    ] {
        let refused = planned(words).err().map(|error| error.to_string());
        let refused = refused.unwrap_or_default();
        assert!(refused.contains(wanted), "{words:?}: {refused}");
        assert_eq!(refused.lines().count(), 1, "{refused}");
    }
}

/// A line of the table has each path's number and its companion below its name, within a terminal's width; the CSV has a line for each path.
#[test]
fn tables_are_shown() {
    let plan = planned(&["sdp-fig11"]).unwrap();
    let rows = found(&plan);
    let (heads, line) = (heads(&plan.series.paths), told(&rows[2], plan.quantity));
    assert!(line.starts_with("  8 KiB, 4 clients"), "{line}");
    assert_eq!(
        heads.find("tcp-ns"),
        line.rfind("32768/65536"),
        "{heads}\n{line}"
    );
    assert!(line.chars().count() <= 80, "{line}");
    let text = comma_separated(&rows);
    assert_eq!(text.lines().count(), 1 + 7 * 4);
    let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
    assert!(columns.iter().all(|count| *count == 14), "{columns:?}");
    assert!(text.contains("\nshm,8192,1,"), "{text}");
}
