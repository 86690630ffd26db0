//! `tsumuji tune`: measures thresholds of endpoints and algorithms of collective operations over a link, and writes the profile that programs read.

mod collectives;
mod elements;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tsumuji_bench::thresholds::{self, Trial, Wishes};
use tsumuji_bench::{exchange, machine};
use tsumuji_collective::Table;
use tsumuji_collective::profile::Contents;
use tsumuji_node::tuning::{Found, Machine};
use tsumuji_node::{ClusterFile, LinkSpec, Profile, Security, Tuning};

pub(crate) use collectives::{MemberArgs, member};

use crate::output::{self, PendingFile};
use crate::talk::in_columns;
use crate::{DONE, Outcome, hosts};

/// Measure what is fastest over a link of this machine, and write it into the profile that programs read.
///
/// Thresholds: which messages go by reference, are borrowed or copied; sizes of frames and batches; what may be sent without permission; how long
/// waits spin. Collectives: the algorithms of broadcast, reduce, all-reduce and all-gather; where nodes share hosts, also of gather, scatter and
/// all-to-all. Elements: with how many in a frame relaxation begins.
///
/// What is not clearly faster than the default stays as it is. Other links in the profile are kept. `tsumuji doctor` says which profile is in
/// force; TSUMUJI_TUNE names another, or none.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji tune\n  tsumuji tune --link udp\n  tsumuji tune -n 4 --link shm --output tune.toml\n  tsumuji tune --hosts lab.toml --link packet --output tune.toml\n  TSUMUJI_TUNE=$PWD/tune.toml tsumuji launch -n 4 -- ./program"
)]
pub(crate) struct Args {
    /// How many processes; groups of 2, 4, 8 … of them are measured, too [default: one a core, 2 to 8]
    #[arg(
        short = 'n',
        long = "nodes",
        value_name = "N",
        conflicts_with = "hosts",
        value_parser = clap::value_parser!(u16).range(2..=1024)
    )]
    nodes: Option<u16>,
    /// Several hosts, one process on each node of this file
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    hosts: Option<PathBuf>,
    #[command(flatten)]
    slots: hosts::Slots,
    /// Path of tsumuji on the other hosts [default: the same path as here]
    #[arg(long = "program", value_name = "PATH", requires = "hosts")]
    program_path: Option<PathBuf>,
    /// The link: shm (default) or udp; with --hosts udp, packet or xdp [default there: the file's]
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Only these; several by commas
    #[arg(
        long,
        value_name = "PART",
        value_delimiter = ',',
        default_value = "thresholds,collectives,elements"
    )]
    only: Vec<Part>,
    /// Longest message of collective operations; K, M and G are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "4M", value_parser = longest)]
    max_bytes: u64,
    /// Time of each measurement, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    time: u64,
    /// Times that values of thresholds take turns
    #[arg(long, value_name = "R", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    rounds: u64,
    /// The profile to write; - prints it [default: the user's own, ~/.config/tsumuji/tune.toml]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print all measurements as one JSON object; a profile is written only where --output names it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: crate::security::Flags,
    /// This process is the one behind node 0's command
    #[arg(long = "inside", hide = true)]
    inside: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Thresholds,
    Collectives,
    Elements,
}

/// The nodes that measure.
struct Nodes {
    link: LinkSpec,
    count: usize,
    hosts: Option<ClusterFile>,
    /// Path of this program.
    program: String,
    /// Where another command finds the same nodes.
    words: Vec<OsString>,
}

fn longest(text: &str) -> Result<u64, String> {
    let bytes = crate::bench::size(text)? as u64;
    if (4..=1 << 30).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("accepted are 4 bytes to 1G".to_owned())
    }
}

/// Where the profile goes, and what it holds already.
#[derive(Default)]
struct Target {
    /// `None`: standard output.
    file: Option<PathBuf>,
    contents: Contents,
}

impl Target {
    fn of(output: Option<&Path>, is_json: bool) -> anyhow::Result<Self> {
        let path = match output {
            Some(path) if path == Path::new("-") => return Ok(Self::default()),
            Some(path) => path.to_owned(),
            // The object is the result; who wants a file names it.
            None if is_json => return Ok(Self::default()),
            None => Found::own_path().context(
                "neither HOME nor XDG_CONFIG_HOME tells where the profile goes; give --output",
            )?,
        };
        // The folder of the user's own profile is made with it: an interrupt leaves no empty one.
        match (
            output,
            path.ancestors().skip(1).find(|folder| folder.exists()),
        ) {
            (None, Some(folder)) if Some(folder) != path.parent() => {
                PendingFile::create(&folder.join("tune.toml"))?;
            }
            _ => drop(PendingFile::create(&path)?),
        }
        let mut contents = Contents::default();
        if path.exists() {
            let profile = Profile::read(&path)?;
            if profile.machine.as_ref() == Some(&Machine::here()) {
                contents.rules = Table::read(&path)?.rules;
                contents.profile = profile;
            } else {
                tell!("{}: not of this machine; it is replaced", path.display());
            }
        }
        Ok(Self {
            file: Some(path),
            contents,
        })
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let nodes = nodes_of(&args)?;
    let target = Target::of(args.output.as_deref(), args.json)?;
    let security = args
        .security
        .stated(args.link.as_ref(), nodes.hosts.as_ref())?;
    let described = format!("machine: {}", machine::describe());
    tell!("{}", in_columns(&described));
    // All that was found and measured, for programs.
    let mut said = json!({ "link": link_name(&nodes), "nodes": nodes.count });
    let mut table = None;
    // First: until then an interrupt ends this process and its members at once.
    if args.only.contains(&Part::Collectives) {
        let (found, measured) = collectives::run(&nodes, &security, args.max_bytes, args.time)?;
        said["table"] = json!(found);
        said["measurements"] = json!(measured);
        table = Some(found);
    }
    crate::bench::interruptible(|| {
        let tuning = tuned(&args, &nodes, &security, &target.contents, &mut said)?;
        said["tuning"] = json!(tuning);
        finish(target, (&link_name(&nodes), tuning, table), args.json, said)
    })
}

/// The thresholds, if they are asked for.
fn tuned(
    args: &Args,
    nodes: &Nodes,
    security: &Security,
    present: &Contents,
    said: &mut Value,
) -> anyhow::Result<Option<Tuning>> {
    let progress = &mut |trial: &Trial| tell!("{}", line_of(trial));
    let rounds = args.rounds as usize;
    let mut tuning = None;
    let (mut trials, mut choices) = (Vec::new(), Vec::new());
    if args.only.contains(&Part::Thresholds) {
        let hosts = nodes.hosts.as_ref().map(|file| {
            let mut both = hosts::of(file, nodes.program.clone());
            both.nodes.truncate(2);
            both
        });
        let time = Duration::from_millis(args.time);
        let mut measure = |plan: &exchange::Plan| {
            let spec = exchange::spec(nodes.link, hosts.as_ref(), &nodes.program);
            exchange::measure(plan, spec, security)
        };
        let found = thresholds::find(Wishes { rounds, time }, &mut measure, progress)?;
        tuning = Some(found.tuning);
        trials.extend(found.trials);
        choices.extend(found.choices);
    }
    if args.only.contains(&Part::Elements) {
        let own = tuning.get_or_insert_with(|| present.profile.tuning(&link_name(nodes)));
        if let Some((choice, tried)) = elements::run(nodes, security, rounds, own, progress)? {
            trials.extend(tried);
            choices.push(choice);
        }
    }
    for choice in choices.iter().filter(|one| one.value != one.default) {
        tell!(
            "{}: {} instead of {}",
            choice.threshold,
            choice.value,
            choice.default
        );
    }
    said["trials"] = json!(trials);
    said["choices"] = json!(choices);
    Ok(tuning)
}

fn finish(
    Target { file, mut contents }: Target,
    (link, tuning, table): (&str, Option<Tuning>, Option<Table>),
    is_json: bool,
    mut said: Value,
) -> Outcome {
    contents.learn(link, tuning, table);
    let text = contents.to_toml();
    if let Some(path) = file {
        if let Err(error) = write(&path, &text) {
            // What was measured is worth more than its file.
            if !is_json {
                output::print_text(&text);
                return Err(error);
            }
            said["error"] = json!(format!("{error:#}"));
            output::print_json(&said);
            return Ok(crate::fail(&format!("{error:#}"), crate::BAD_INPUT, false));
        }
        tell!("written: {}", path.display());
        said["path"] = json!(path.to_string_lossy());
    } else if !is_json {
        output::print_text(&text);
    }
    if is_json {
        output::print_json(&said);
    }
    Ok(DONE)
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("{}: cannot make the folder", folder.display()))?;
    }
    PendingFile::create(path)?.write(text)
}

fn nodes_of(args: &Args) -> anyhow::Result<Nodes> {
    let program = hosts::program(args.program_path.as_ref())?;
    let Some(path) = &args.hosts else {
        hosts::check_one_host(args.link.as_ref())?;
        let usual = machine::cpus().len().clamp(2, 8);
        return Ok(Nodes {
            link: args.link.unwrap_or(LinkSpec::Shm),
            count: args.nodes.map_or(usual, usize::from),
            hosts: None,
            program,
            words: Vec::new(),
        });
    };
    let file = hosts::read(path, args.link.as_ref(), args.slots)?;
    ensure!(
        file.hosts().len() > 1,
        "{}: one node has nothing to tune; name two at least",
        path.display()
    );
    if !args.inside {
        hosts::enter_node_0(&file, path)?;
    }
    // This process is on node 0 already.
    let mut words: Vec<OsString> = vec!["--inside".into(), "--hosts".into(), path.into()];
    if let Some(link) = &args.link {
        words.extend(["--link".into(), link.to_string().into()]);
    }
    if let Some(slots) = args.slots.slots {
        words.extend(["--slots".into(), slots.to_string().into()]);
    }
    if args.program_path.is_some() {
        words.extend(["--program".into(), program.clone().into()]);
    }
    Ok(Nodes {
        link: file.hosts()[0].link,
        count: file.hosts().len(),
        hosts: Some(file),
        program,
        words,
    })
}

/// The link's name in a profile: without its parameters.
fn link_name(nodes: &Nodes) -> String {
    let text = nodes.link.to_string();
    text.split(':').next().unwrap_or_default().to_owned()
}

fn line_of(trial: &Trial) -> String {
    format!(
        "{:19} {:>7}  {:17} {:10.2} us, {:+5.1} % ({:+5.1} % surely) beside the default",
        trial.threshold,
        trial.value,
        trial.what,
        trial.us,
        100.0 * (trial.gain - 1.0),
        100.0 * (trial.sure_gain - 1.0),
    )
}
