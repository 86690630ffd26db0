//! Loss, duplication and corruption of the frames to a host, in the kernel's own path.
//!
//! Called by `Testbed::impair` and `Testbed::status`. The kernel keeps the setting: it is part of the loaded program's name. `dropper` explains where
//! frames are impaired, and why there.
//!
//! While any host is impaired, no host may give the kernel more than one frame in one piece (segmentation offload), or a loss would take dozens of
//! frames at once; and where frames are to be corrupted, checksums are really computed, or the kernel would accept a changed packet as sound, since
//! between namespaces it trusts its own memory.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::commands::{CommandError, Tool, ask, ask_batch, batch, run};
use crate::dropper;
use crate::spec::{COPIES, INTERFACE, Name, SpecError, host_mac, port, port_id};

/// Impairment of the frames that are sent to a host: probabilities from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Impairment {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame which was not lost arrives twice.
    pub duplicate: f64,
    /// Probability that a frame which was not lost has one bit changed, anywhere behind its Ethernet header.
    pub corrupt: f64,
}

impl Impairment {
    /// No impairment.
    pub const NONE: Self = Self {
        loss: 0.0,
        duplicate: 0.0,
        corrupt: 0.0,
    };

    fn fields(&self) -> [(&'static str, f64); 3] {
        [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ]
    }

    /// Refuses values that are no probabilities.
    fn check(&self) -> Result<(), SpecError> {
        match self
            .fields()
            .into_iter()
            .find(|(_, value)| !(0.0..=1.0).contains(value))
        {
            Some((_, value)) => Err(SpecError::Fraction(value.to_string())),
            None => Ok(()),
        }
    }

    /// The setting as text, for the program's name.
    fn label(&self) -> String {
        let [loss, duplicate, corrupt] = self.fields().map(|(_, value)| value);
        format!("loss={loss},duplicate={duplicate},corrupt={corrupt}")
    }

    /// Parses the name that `tc` gave the program: the file's name, and the section in brackets.
    fn from_label(text: &str) -> Option<Self> {
        let label = text.split(":[").next()?;
        let mut values = label
            .split(',')
            .zip(Self::NONE.fields())
            .map(|(part, (key, _))| {
                part.strip_prefix(key)?
                    .strip_prefix('=')?
                    .parse::<f64>()
                    .ok()
            });
        let found = Self {
            loss: values.next()??,
            duplicate: values.next()??,
            corrupt: values.next()??,
        };
        found.check().is_ok().then_some(found)
    }
}

impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("none");
        }
        let mut separator = "";
        for (name, value) in self.fields().into_iter().filter(|(_, value)| *value > 0.0) {
            write!(f, "{separator}{name} {}%", rounded(value * 100.0))?;
            separator = ", ";
        }
        Ok(())
    }
}

/// Rounds off the last digits that come from a factor of 100.
fn rounded(value: f64) -> f64 {
    (value * 1e9).round() / 1e9
}

/// A share from 0 to 1, also as `0%` to `100%`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fraction(pub f64);

impl FromStr for Fraction {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (number, whole) = match text.trim().strip_suffix('%') {
            Some(number) => (number, 100.0),
            None => (text, 1.0),
        };
        match number.trim().parse::<f64>().map(|value| value / whole) {
            Ok(value) if (0.0..=1.0).contains(&value) => Ok(Self(value)),
            _ => Err(SpecError::Fraction(text.to_owned())),
        }
    }
}

/// Why impairment could not be set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairError {
    /// A value is no probability.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Rights are missing.
    #[error(transparent)]
    Rights(#[from] crate::rights::RightsError),
    /// The program could not be written to a file for `tc`.
    #[error("cannot write the program that tc loads: {0}")]
    Write(#[from] std::io::Error),
    /// The program could not be made.
    #[error("cannot make the program that tc loads: {0}")]
    Object(#[from] object::write::Error),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// The place of our program in the list of a port's programs; fixed, so that a new one replaces the old.
const PLACE: &str = "egress protocol all pref 1 handle 1 bpf";

/// Sets the impairment of frames to these hosts, replacing the former.
pub(crate) fn impair(
    name: &Name,
    hosts: u16,
    ids: &[u16],
    impairment: Impairment,
) -> Result<(), ImpairError> {
    impairment.check()?;
    let before = current(name)?;
    let mut after = before.clone();
    after.extend(ids.iter().map(|&id| (id, impairment)));
    if impairment == Impairment::NONE {
        set(name, ids, impairment)?;
        return Ok(prepare_senders(name, hosts, &after)?);
    }
    // Before the first frame is lost, so that frames are lost one by one.
    let prepared = prepare_senders(name, hosts, &after).map_err(ImpairError::from);
    let done = prepared.and_then(|()| set(name, ids, impairment));
    if done.is_err() {
        // The first failure is reported; a second has the same cause.
        let _ = prepare_senders(name, hosts, &before);
    }
    done
}

fn set(name: &Name, ids: &[u16], impairment: Impairment) -> Result<(), ImpairError> {
    if impairment == Impairment::NONE {
        let impaired = current(name)?;
        let ids = ids.iter().filter(|id| impaired.contains_key(id));
        let lines: Vec<_> = ids
            .map(|&id| format!("qdisc del dev {} clsact", port(id)))
            .collect();
        return Ok(batch(Tool::Tc, Some(&name.switch()), &lines)?);
    }
    let folder = tempfile::tempdir()?;
    let ifindex = copies_port(name)?;
    let mut lines = Vec::new();
    for &id in ids {
        let (port, host) = (port(id), host_mac(id));
        // The kernel keeps the file's name.
        let file = folder.path().join(&port).join(impairment.label());
        std::fs::create_dir(folder.path().join(&port))?;
        let copies = dropper::Copies { ifindex, host };
        std::fs::write(&file, dropper::object_file(&impairment, copies)?)?;
        let (file, section) = (file.display(), dropper::SECTION);
        lines.extend([
            format!("qdisc replace dev {port} clsact"),
            format!("filter replace dev {port} {PLACE} direct-action object-file {file} section {section}"),
        ]);
    }
    Ok(batch(Tool::Tc, Some(&name.switch()), &lines)?)
}

/// The index of the interface by which copies enter the switch.
fn copies_port(name: &Name) -> Result<u32, CommandError> {
    let [copies, _] = COPIES;
    let arguments = ["-json", "link", "show", "dev", copies];
    let found: Vec<Interface> = ask(Tool::Ip, &name.switch(), &arguments)?;
    let index = found.first().map(|interface| interface.ifindex);
    index.ok_or_else(|| CommandError::Answer {
        command: format!("ip -netns {} {}", name.switch(), arguments.join(" ")),
        problem: format!("no interface {copies}"),
    })
}

/// Makes all hosts send frame by frame, and with real checksums, while that is needed.
fn prepare_senders(
    name: &Name,
    hosts: u16,
    all: &HashMap<u16, Impairment>,
) -> Result<(), CommandError> {
    let is_impaired = all.values().any(|one| *one != Impairment::NONE);
    let is_corrupted = all.values().any(|one| one.corrupt > 0.0);
    let segments = if is_impaired { "1" } else { MOST_SEGMENTS };
    let checksums = if is_corrupted { "off" } else { "on" };
    for namespace in (0..hosts).map(|id| name.host(id)) {
        run(
            Tool::Ip,
            Some(&namespace),
            &["link", "set", "dev", INTERFACE, "gso_max_segs", segments],
        )?;
        // Only users who ask for corruption need `ethtool`.
        if is_corrupted || !offloads_checksums(&namespace)? {
            ethtool(&namespace, &["-K", INTERFACE, "tx", checksums])?;
        }
    }
    Ok(())
}

/// Default of Linux for an interface.
const MOST_SEGMENTS: &str = "65535";

/// Whether the kernel leaves checksums to the interface, which is the default. Without `ethtool` we cannot have changed it.
fn offloads_checksums(namespace: &str) -> Result<bool, CommandError> {
    match ethtool(namespace, &["-k", INTERFACE]) {
        Ok(features) => Ok(!String::from_utf8_lossy(&features).contains("tx-checksumming: off")),
        Err(CommandError::NotInstalled { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

fn ethtool(namespace: &str, arguments: &[&str]) -> Result<Vec<u8>, CommandError> {
    let arguments = [&["netns", "exec", namespace, "ethtool"], arguments].concat();
    run(Tool::Ip, None, &arguments).map_err(|error| match error {
        CommandError::Failed { complaint, .. }
            if complaint.contains("exec of \"ethtool\" failed") =>
        {
            CommandError::NotInstalled {
                program: "ethtool",
                package: "ethtool",
            }
        }
        error => error,
    })
}

#[derive(Deserialize)]
struct Interface {
    ifindex: u32,
}

#[derive(Deserialize)]
struct Qdisc {
    kind: String,
    dev: String,
}

#[derive(Deserialize)]
struct Filter {
    #[serde(default)]
    options: FilterOptions,
}

#[derive(Deserialize, Default)]
struct FilterOptions {
    #[serde(default)]
    bpf_name: String,
}

/// The hosts whose frames are impaired now.
pub(crate) fn current(name: &Name) -> Result<HashMap<u16, Impairment>, CommandError> {
    let switch = name.switch();
    let qdiscs: Vec<Qdisc> = ask(Tool::Tc, &switch, &["-json", "qdisc", "show"])?;
    let ids = qdiscs
        .iter()
        .filter(|one| one.kind == "clsact")
        .filter_map(|one| port_id(&one.dev));
    let ids: Vec<_> = ids.collect();
    let lines: Vec<_> = ids
        .iter()
        .map(|&id| format!("filter show dev {} egress", port(id)))
        .collect();
    let answers: Vec<Vec<Filter>> = ask_batch(Tool::Tc, &switch, &lines)?;
    let impairment = |filters: Vec<Filter>| {
        let mut labels = filters
            .iter()
            .map(|filter| filter.options.bpf_name.as_str());
        labels.find_map(Impairment::from_label).unwrap_or_default()
    };
    Ok(ids
        .into_iter()
        .zip(answers.into_iter().map(impairment))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The setting is read back from the kernel's name; names of other programs are ignored.
    #[test]
    fn labels_are_read_back() {
        let impairment = Impairment {
            loss: 0.05,
            duplicate: 0.0,
            corrupt: 1e-4,
        };
        assert_eq!(
            Impairment::from_label(&format!("{}:[tc]", impairment.label())),
            Some(impairment)
        );
        for text in [
            "",
            "x.o:[tc]",
            "loss=0.1",
            "loss=2,duplicate=0,corrupt=0",
            "loss=NaN,duplicate=0,corrupt=0",
        ] {
            assert_eq!(Impairment::from_label(text), None, "{text}");
        }
    }

    /// Fractions and percentages are parsed, and written in the usual form.
    #[test]
    fn fractions_are_read_and_shown() {
        for (text, value) in [("5%", 0.05), ("0.05", 0.05), ("100 %", 1.0), ("0", 0.0)] {
            assert_eq!(text.parse(), Ok(Fraction(value)));
        }
        for text in ["", "%", "101%", "1.5", "-1%", "nan", "x"] {
            assert_eq!(
                text.parse::<Fraction>(),
                Err(SpecError::Fraction(text.to_owned()))
            );
        }
        let impairment = Impairment {
            loss: 0.07,
            duplicate: 0.0,
            corrupt: 0.001,
        };
        assert_eq!(impairment.to_string(), "loss 7%, corrupt 0.1%");
        assert_eq!(Impairment::NONE.to_string(), "none");
    }
}
