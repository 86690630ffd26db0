//! `tsumuji doctor`: which links work here, why others do not, and which settings of this machine cost speed.
//!
//! Links are really tried: a frame must arrive. Nothing is changed; every remedy is a command for the user to run.

use std::fmt::Write as _;
use std::process::ExitCode;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use serde_json::json;
use tsumuji_bench::machine;
use tsumuji_link::Probe;
use tsumuji_node::ProfileError;
use tsumuji_node::tuning::{Found, Machine, NO_PROFILE, TUNE_VARIABLE};

use crate::{DONE, NOT_REACHED, Outcome, output};

/// Socket buffers below this drop frames of bursts from several peers at once.
const GOOD_BUFFER_BYTES: u64 = 4 << 20;
/// Files that hold the limits of socket buffers.
const BUFFER_LIMITS: [(&str, &str); 2] = [
    ("net.core.rmem_max", "/proc/sys/net/core/rmem_max"),
    ("net.core.wmem_max", "/proc/sys/net/core/wmem_max"),
];
const HALT_POLL: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// Say which links work here, why others do not, and what would make this machine faster.
///
/// Exit code 1 if a link that needs no rights does not work.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  tsumuji doctor")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Findings about one link.
#[derive(Debug, Serialize)]
struct LinkReport {
    name: &'static str,
    works: bool,
    /// Its properties, or why it does not work.
    detail: String,
    /// What repairs or improves it, if known.
    remedy: Option<String>,
}

/// A finding about the machine.
#[derive(Debug, Serialize)]
struct Hint {
    what: &'static str,
    found: String,
    /// Its cost; `None` if all is well.
    cost: Option<String>,
    remedy: Option<String>,
}

impl Hint {
    fn fine(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            found: found.into(),
            cost: None,
            remedy: None,
        }
    }

    fn costly(
        what: &'static str,
        found: impl Into<String>,
        cost: &str,
        remedy: Option<&str>,
    ) -> Self {
        Self {
            what,
            found: found.into(),
            cost: Some(cost.to_owned()),
            remedy: remedy.map(str::to_owned),
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let machine = machine::describe();
    let links = links();
    let works = |link: &LinkReport| link.works || !needs_no_rights(link.name);
    let mut hints = hints(machine.virtual_machine);
    let profile = Found::search();
    hints.push(profile_hint(&profile));
    let ok = links.iter().all(works) && profile.is_ok();
    let profile = match &profile {
        Ok(Found::Named(path, _) | Found::Own(path, _)) => json!(path),
        _ => serde_json::Value::Null,
    };
    if args.json {
        output::print_json(
            &json!({ "ok": ok, "machine": machine, "links": links, "hints": hints, "profile": profile }),
        );
    } else {
        output::print_text(&describe(&machine.to_string(), &links, &hints));
    }
    Ok(if ok {
        DONE
    } else {
        ExitCode::from(NOT_REACHED)
    })
}

fn needs_no_rights(link: &str) -> bool {
    matches!(link, "shm" | "udp")
}

fn links() -> Vec<LinkReport> {
    let tried = |probe: Probe| LinkReport {
        name: probe.link,
        works: probe.works,
        detail: probe.notes.join("; "),
        remedy: (!probe.mend.is_empty()).then_some(probe.mend),
    };
    vec![
        tried(tsumuji_link::shm::probe()),
        tried(tsumuji_link::udp::probe()),
        tried(tsumuji_link::packet::probe()),
        #[cfg(feature = "xdp")]
        tried(tsumuji_link::xdp::probe()),
        tried(tsumuji_link::dpdk::probe()),
    ]
}

fn hints(virtual_machine: bool) -> Vec<Hint> {
    let mut hints = Vec::new();
    let cores = machine::cpus().len();
    hints.push(if cores >= 2 {
        Hint::fine("cores", cores.to_string())
    } else {
        Hint::costly(
            "cores",
            cores.to_string(),
            "processes that wait for each other share the core: every message costs a switch",
            None,
        )
    });
    let clock =
        machine::line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource")
            .unwrap_or_else(|| "-".to_owned());
    hints.push(match clock.as_str() {
        "tsc" | "kvm-clock" | "arch_sys_counter" => Hint::fine("clocksource", clock),
        _ => Hint::costly(
            "clocksource",
            clock,
            "reading the time may be a system call (about 1 us, several times a message)",
            Some("echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ),
    });
    hints.extend(halt_poll_hint(
        machine::line_of(HALT_POLL).as_deref(),
        virtual_machine,
    ));
    for (name, path) in BUFFER_LIMITS {
        hints.extend(
            machine::line_of(path)
                .and_then(|line| line.parse().ok())
                .map(|bytes| buffer_hint(name, bytes)),
        );
    }
    // Neither shm nor udp locks memory; the probes of raw Ethernet report their own needs.
    for (what, resource, unit) in [
        ("memlock", Resource::Memlock, " bytes"),
        ("open files", Resource::Nofile, ""),
    ] {
        let limit = getrlimit(resource).current;
        let unlimited = || "unlimited".to_owned();
        hints.push(Hint::fine(
            what,
            limit.map_or_else(unlimited, |limit| format!("{limit}{unit}")),
        ));
    }
    hints
}

fn halt_poll_hint(found: Option<&str>, virtual_machine: bool) -> Option<Hint> {
    match found {
        Some("0") if virtual_machine => Some(Hint::costly(
            "guest halt polling",
            "off",
            "waking a sleeping process on another core costs about 27 us instead of about 4",
            Some("echo 50000 > /sys/module/haltpoll/parameters/guest_halt_poll_ns"),
        )),
        Some(ns) => Some(Hint::fine("guest halt polling", format!("{ns} ns"))),
        None => None,
    }
}

fn buffer_hint(name: &'static str, bytes: u64) -> Hint {
    if bytes >= GOOD_BUFFER_BYTES {
        return Hint::fine(name, format!("{bytes} bytes"));
    }
    let cost = "bursts over udp are cut short or lost, and slower for it";
    Hint::costly(
        name,
        format!("{bytes} bytes"),
        cost,
        Some(&format!("sysctl -w {name}={}", 4 * GOOD_BUFFER_BYTES)),
    )
}

/// Which profile endpoints read.
fn profile_hint(found: &Result<Found, ProfileError>) -> Hint {
    const TUNE: &str = "tsumuji tune";
    let what = "profile";
    match found {
        Ok(Found::Named(path, profile) | Found::Own(path, profile)) => {
            let links: Vec<&str> = profile.link.keys().map(String::as_str).collect();
            let of = if links.is_empty() {
                "rules of collective operations only".to_owned()
            } else {
                links.join(", ")
            };
            Hint::fine(what, format!("{} ({of}), in force", path.display()))
        }
        Ok(Found::None) => Hint::fine(
            what,
            format!("none: defaults; `{TUNE}` measures this machine and writes one"),
        ),
        Ok(Found::Foreign(path, other)) => Hint::costly(
            what,
            format!(
                "{} is of another machine ({other}; this is {}): defaults",
                path.display(),
                Machine::here()
            ),
            "nothing, where the defaults are good",
            Some(TUNE),
        ),
        Err(error) => Hint::costly(
            what,
            error.to_string(),
            "no endpoint opens",
            Some(&format!("{TUNE}, or {TUNE_VARIABLE}={NO_PROFILE}")),
        ),
    }
}

fn describe(machine: &str, links: &[LinkReport], hints: &[Hint]) -> String {
    let mut text = format!("machine: {machine}\n\nlinks\n");
    for link in links {
        let _ = writeln!(
            text,
            "  {:<8} {:<6} {}",
            link.name,
            if link.works { "works" } else { "-" },
            link.detail
        );
        if let Some(remedy) = &link.remedy {
            let _ = writeln!(text, "  {:<15} mend: {remedy}", "");
        }
    }
    text.push_str("\nmachine\n");
    for hint in hints {
        let _ = writeln!(
            text,
            "  {:<20} {}{}",
            hint.what,
            hint.found,
            if hint.cost.is_some() { "" } else { ", fine" }
        );
        for (word, sentence) in [("costs", &hint.cost), ("mend", &hint.remedy)] {
            if let Some(sentence) = sentence {
                let _ = writeln!(text, "  {:<20} {word}: {sentence}", "");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two links that need no rights carry a frame here; each link has findings.
    #[test]
    fn plain_links_work() {
        let links = links();
        for link in links.iter().filter(|link| needs_no_rights(link.name)) {
            assert!(link.works, "{link:?}");
        }
        assert!(
            links.len() == 5 && links.iter().all(|link| !link.detail.is_empty()),
            "{links:?}"
        );
    }

    /// A small socket buffer gets the command that enlarges it; a large one gets none.
    #[test]
    fn remedies_for_buffers() {
        let hint = buffer_hint("net.core.rmem_max", 212_992);
        assert_eq!(
            hint.remedy.as_deref(),
            Some("sysctl -w net.core.rmem_max=16777216")
        );
        assert!(
            buffer_hint("net.core.rmem_max", GOOD_BUFFER_BYTES)
                .cost
                .is_none()
        );
    }

    /// Halt polling is mentioned only where the switch exists, and as a problem only where it is off in a guest.
    #[test]
    fn halt_polling() {
        assert!(halt_poll_hint(None, true).is_none());
        assert!(halt_poll_hint(Some("0"), true).unwrap().cost.is_some());
        assert!(halt_poll_hint(Some("50000"), true).unwrap().cost.is_none());
    }
}
