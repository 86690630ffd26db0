//! `tsumuji lab model`: what a description computes, and how far that is from what was measured.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::stats::size_name;
use tsumuji_bench::table;
use tsumuji_lab::beside::{Beside, median_deviation_percent};
use tsumuji_lab::description::Variant;
use tsumuji_lab::measure::{BYTES_MAX, Plan, Way};
use tsumuji_lab::{Description, Outcome as Send, Setting, fit, shipped};

use crate::bench::size;
use crate::bench::sizes::Sizes;
use crate::talk::{Talk, in_columns};
use crate::{DONE, Outcome, output};

/// Where copying the data is said to have stopped paying: it takes so much longer.
pub(crate) const EQUAL_PERCENT: f64 = 5.0;
/// Crossovers are looked for up to this size.
pub(crate) const LARGEST_BYTES: u64 = 1 << 20;
/// Variants whose crossover is told: the data copied by the processor, or fetched.
pub(crate) const PAIRS: [[&str; 2]; 2] = [["User:ST,DT", "User"], ["Syscall:ST,DT", "Syscall"]];

/// The name of the description that is fitted to this machine, and what is measured for it.
const THIS: &str = "this";
const THIS_ROUNDS: usize = 3;
const THIS_EACH: Duration = Duration::from_millis(10);
/// The same for a first look.
const QUICK_ROUNDS: usize = 1;
const QUICK_EACH: Duration = Duration::from_millis(5);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// myrinet, rhinet, this (measures here for some seconds, and fits), or a file
    #[arg(value_name = "NAME|FILE")]
    of: String,
    /// Bytes of data; several by commas and ranges (4..64K)
    #[arg(
        long = "size",
        value_name = "B",
        value_delimiter = ',',
        default_value = "4096"
    )]
    sizes: Vec<Sizes>,
    /// Only this variant
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// With another clock
    #[arg(long, value_name = "MHZ")]
    mhz: Option<f64>,
    /// With another longest burst
    #[arg(long, value_name = "BYTES", value_parser = size)]
    burst: Option<usize>,
    /// Measure less
    #[arg(long, hide = true)]
    quick: bool,
    /// Print the description itself: to begin a file of your own with
    #[arg(long, conflicts_with_all = ["json", "variant", "mhz", "burst"])]
    toml: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args) -> Outcome {
    let description = if args.of == THIS {
        let text = this(args)?;
        if args.toml {
            output::print_text(&text);
            return Ok(DONE);
        }
        Description::parse(&text, Path::new(THIS))?
    } else if args.toml {
        return print_toml(&args.of);
    } else {
        description(&args.of)?
    };
    let setting = Setting {
        mhz: args.mhz,
        burst_bytes: args.burst.map(|bytes| bytes as f64),
    };
    let refused = |why: String| anyhow!("{}: {why}", args.of);
    description.check(&setting).map_err(refused)?;
    let variants = chosen(&description, args)?;
    let sizes = Sizes::of_all(&args.sizes);
    let sizes: Vec<u64> = sizes.into_iter().map(|size| size as u64).collect();
    let sends: Vec<Send> = sizes
        .iter()
        .flat_map(|bytes| variants.iter().map(|variant| (variant, *bytes)))
        .map(|(variant, bytes)| description.outcome(variant, bytes, &setting))
        .collect();
    if args.json {
        output::print_json(&report(args, &description, &setting, &sends));
        return Ok(DONE);
    }
    let prose = |line: &str| in_columns(line) + "\n";
    let mut text = prose(&description.title);
    for line in &description.assumed {
        text += &prose(&format!("assumed: {line}"));
    }
    if sizes.len() == 1 {
        sends.iter().for_each(|send| text.push_str(&stages(send)));
    } else {
        text.push_str(&over_sizes(&sends));
    }
    for (what, bytes) in crossovers(&description, &setting) {
        text += &prose(&format!("{what}: {bytes} B"));
    }
    let beside = description.beside();
    if !beside.is_empty() && setting == Setting::default() {
        text.push_str(&compared(&beside));
    }
    if let Some(improved) = forecast(&description, variants[0], sizes[0], &setting) {
        text += &prose(&format!(
            "improved as foreseen: {:.3} us, {:.1} MB/s",
            improved.total_us, improved.bandwidth
        ));
    }
    output::print_text(&text);
    Ok(DONE)
}

/// The text of a description of this machine: measures it, and fits.
fn this(args: &Args) -> anyhow::Result<String> {
    let (mut talk, machine) = Talk::begin(args.json || args.toml);
    talk.say("\nmeasured, MB/s until the sender knows that the message has left");
    talk.say(&super::run::heads(&Way::PAPER));
    let (rounds, each) = match args.quick {
        true => (QUICK_ROUNDS, QUICK_EACH),
        false => (THIS_ROUNDS, THIS_EACH),
    };
    let doubled = std::iter::successors(Some(4_usize), |bytes| Some(bytes * 2));
    let plan = Plan {
        ways: Way::PAPER.to_vec(),
        sizes: doubled.take_while(|bytes| *bytes <= BYTES_MAX).collect(),
        rounds,
        each,
    };
    let measured = super::run::measured(&plan, &mut talk)?;
    Ok(fit::description(&machine.to_string(), &measured.cells))
}

fn print_toml(name: &str) -> Outcome {
    let Some(text) = shipped::text(name) else {
        bail!(
            "--toml: accepted are {} and this",
            shipped::NAMES.join(", ")
        );
    };
    output::print_text(text);
    Ok(DONE)
}

/// A shipped description, or that of a file.
pub(super) fn description(of: &str) -> anyhow::Result<Description> {
    if let Some(shipped) = shipped::named(of) {
        return Ok(shipped);
    }
    let path = Path::new(of);
    if !path.exists() {
        bail!(
            "{of}: no such description or file; accepted are {}, this, or a TOML file",
            shipped::NAMES.join(", ")
        );
    }
    Ok(Description::read(path)?)
}

fn chosen<'a>(description: &'a Description, args: &Args) -> anyhow::Result<Vec<&'a Variant>> {
    let Some(name) = &args.variant else {
        return Ok(description.variants.iter().collect());
    };
    let Some(variant) = description.variant(name) else {
        bail!(
            "--variant {name}: {} has no such; accepted: {}",
            args.of,
            description.variant_names().replace(", ", "; ")
        );
    };
    Ok(vec![variant])
}

/// Outcome with the improvements that the description foresees; only for the default setting.
fn forecast(
    description: &Description,
    variant: &Variant,
    bytes: u64,
    setting: &Setting,
) -> Option<Send> {
    let improved = description
        .improved
        .filter(|_| *setting == Setting::default())?;
    Some(description.outcome(variant, bytes, &improved))
}

/// From which sizes on copying the data by the processor takes longer, and clearly longer, than having it fetched.
pub(crate) fn crossovers(description: &Description, setting: &Setting) -> Vec<(String, u64)> {
    let pairs = PAIRS.iter().filter_map(|[copied, fetched]| {
        Some([description.variant(copied)?, description.variant(fetched)?])
    });
    let mut found = Vec::new();
    for pair in pairs {
        let [copied, fetched] = pair.map(|variant| variant.name.as_str());
        for (percent, words) in [(0.0, "slower"), (EQUAL_PERCENT, "5 % slower")] {
            if let Some(bytes) = description.crossover(pair, percent, LARGEST_BYTES, setting) {
                found.push((format!("{copied} {words} than {fetched} from"), bytes));
            }
        }
    }
    found
}

/// A send's stages as a table.
pub(crate) fn stages(send: &Send) -> String {
    let mut rows = vec![["", "by", "from, us", "takes, us", ""].map(str::to_owned)];
    rows.extend(send.stages.iter().map(|step| {
        let notes = match (step.is_critical, step.is_assumed) {
            (true, true) => "assumed",
            (false, true) => "not on the critical path, assumed",
            (true, false) => "",
            (false, false) => "not on the critical path",
        };
        [
            format!("  {}", step.name),
            step.by.name().to_owned(),
            format!("{:9.3}", step.start_us),
            format!("{:9.3}", step.us),
            notes.to_owned(),
        ]
    }));
    format!(
        "\n{}, {}: {:.3} us, {:.3} MB/s\n{}",
        send.variant,
        size_name(send.bytes as usize),
        send.total_us,
        send.bandwidth,
        table::aligned(&rows)
    )
}

/// A line for each size and variant.
fn over_sizes(sends: &[Send]) -> String {
    let mut rows = vec![["  size", "variant", "us", "MB/s"].map(str::to_owned)];
    rows.extend(sends.iter().map(|send| {
        [
            format!("  {}", size_name(send.bytes as usize)),
            send.variant.clone(),
            format!("{:11.3}", send.total_us),
            format!("{:9.3}", send.bandwidth),
        ]
    }));
    table::aligned(&rows)
}

/// Measured values beside the model's, line by line, and the median deviation.
pub(crate) fn compared(all: &[Beside]) -> String {
    let mut rows = vec![["", "measured", "model", "", "off"].map(str::to_owned)];
    rows.extend(all.iter().map(|one| {
        [
            format!("  {}", one.what),
            format!("{:8.3}", one.measured),
            format!("{:8.3}", one.model),
            one.unit.to_owned(),
            format!("{:+.2} %", one.deviation_percent),
        ]
    }));
    let median = median_deviation_percent(all).unwrap_or(f64::NAN);
    format!(
        "\n{}median deviation: {median:.2} %\n",
        table::aligned(&rows)
    )
}

fn report(args: &Args, description: &Description, setting: &Setting, sends: &[Send]) -> Value {
    let first = &sends[0];
    let beside = description.beside();
    let crossovers: Vec<Value> = crossovers(description, setting)
        .into_iter()
        .map(|(what, bytes)| json!({ "what": what, "bytes": bytes }))
        .collect();
    let improved = description.variant(&first.variant);
    let improved =
        improved.and_then(|variant| forecast(description, variant, first.bytes, setting));
    json!({
        "model": args.of, "title": description.title, "assumed": description.assumed,
        "variant": first.variant, "size": first.bytes, "total_us": first.total_us, "bandwidth": first.bandwidth,
        "stages": first.stages, "variants": sends, "improved": improved, "crossovers": crossovers,
        "median_deviation_percent": median_deviation_percent(&beside), "beside": beside,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables fit a terminal, and name what is not on the critical path.
    #[test]
    fn tables_fit_a_terminal() {
        for name in shipped::NAMES {
            let shipped = description(name).unwrap();
            let send = shipped.outcome(&shipped.variants[0], 4096, &Setting::default());
            let text = stages(&send) + &compared(&shipped.beside()) + &over_sizes(&[send]);
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{line}");
            }
            assert_eq!(
                text.matches("not on the").count(),
                if name == "rhinet" { 4 } else { 0 }
            );
        }
    }

    /// Where copying stops paying is told of both pairs, clearly after slightly.
    #[test]
    fn crossovers_are_told() {
        let myrinet = description("myrinet").unwrap();
        let found = crossovers(&myrinet, &Setting::default());
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found[0].1 < found[1].1 && found[2].1 < found[3].1,
            "{found:?}"
        );
        assert!(crossovers(&description("rhinet").unwrap(), &Setting::default()).is_empty());
    }

    /// What is neither a name nor a file is refused with what is accepted.
    #[test]
    fn unknown_names_are_refused() {
        let said = description("nonesuch").unwrap_err().to_string();
        assert!(
            said.contains("myrinet, rhinet, this, or a TOML file"),
            "{said}"
        );
    }
}
