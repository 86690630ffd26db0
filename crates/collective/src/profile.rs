//! The text of a profile: thresholds by link, which endpoints read, and the rules of a table.

use std::collections::BTreeMap;

use serde::Serialize;
use tsumuji_node::tuning::Machine;
use tsumuji_node::{Profile, Tuning};

use crate::table::{Rule, Table};

/// Head of a file, for people who find it.
const HEAD: &str =
    "# Written by `tsumuji tune`. Endpoints and collective operations read it; docs/tuning.md\n\n";

/// What a profile holds beside the machine.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Thresholds by link.
    pub profile: Profile,
    /// Rules of collective operations.
    pub rules: Vec<Rule>,
}

impl Contents {
    /// Replaces what is known of a link by what was measured. `None`: it was not measured, and stays.
    pub fn learn(&mut self, link: &str, tuning: Option<Tuning>, table: Option<Table>) {
        if let Some(tuning) = tuning {
            self.profile.link.insert(link.to_owned(), tuning);
        }
        if let Some(table) = table {
            // Rules for this link are first in a measured table. What follows is built in, and the same in all.
            let old = std::mem::replace(&mut self.rules, table.rules);
            let mut others: Vec<Rule> = old
                .into_iter()
                .filter(|rule| rule.link.as_deref().is_some_and(|other| other != link))
                .filter(|rule| !self.rules.contains(rule))
                .collect();
            others.append(&mut self.rules);
            self.rules = others;
        }
    }

    /// The text of a file, measured on this machine. Thresholds with their defaults are left out, so that better defaults hold later.
    pub fn to_toml(&self) -> String {
        #[derive(Serialize)]
        struct Whole<'a> {
            machine: Machine,
            link: BTreeMap<&'a str, toml::Table>,
            #[serde(rename = "rule", skip_serializing_if = "<[Rule]>::is_empty")]
            rules: &'a [Rule],
        }
        // Plain strings and numbers cannot fail.
        let table = |tuning| toml::Table::try_from(tuning).unwrap_or_default();
        let usual = table(Tuning::default());
        let links = self.profile.link.iter().map(|(name, tuning)| {
            let mut stated = table(*tuning);
            stated.retain(|threshold, value| usual.get(threshold) != Some(value));
            (name.as_str(), stated)
        });
        let whole = Whole {
            machine: Machine::here(),
            link: links.collect(),
            rules: &self.rules,
        };
        HEAD.to_owned() + &toml::to_string(&whole).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Algorithm, Can, Operation, Question};
    use std::path::Path;

    fn measured(link: &str, algorithm: Algorithm) -> Table {
        let rule = Rule {
            operation: Operation::Broadcast,
            link: Some(link.to_owned()),
            nodes_up_to: None,
            bytes_up_to: None,
            algorithm,
        };
        let mut rules = vec![rule];
        rules.extend(Table::default().rules);
        Table { rules }
    }

    /// What is learned of one link leaves the others as they were; the text is read as it was meant, by endpoints and by tables.
    #[test]
    fn links_are_learned_one_by_one() {
        let mut contents = Contents::default();
        let tuning = |spin_us| Tuning {
            spin_us,
            ..Tuning::default()
        };
        contents.learn(
            "udp",
            Some(tuning(10)),
            Some(measured("udp", Algorithm::Flat)),
        );
        contents.learn(
            "shm",
            Some(tuning(20)),
            Some(measured("shm", Algorithm::Chain)),
        );
        contents.learn("udp", None, Some(measured("udp", Algorithm::Chain)));
        let text = contents.to_toml();
        assert!(!text.contains("elements"), "{text}");
        let profile = Profile::parse(&text, Path::new("p")).expect("a profile");
        assert_eq!(profile.machine, Some(Machine::here()));
        let spin = |link| profile.tuning(link).spin_us;
        assert_eq!([spin("udp"), spin("shm"), spin("xdp")], [10, 20, 50]);
        let table = Table::parse(&text, "p").expect("a table");
        let choose = |link, operation| {
            table.choose(Question {
                operation,
                link,
                can: Can::default(),
                nodes: 4,
                bytes: 100,
            })
        };
        assert_eq!(choose("udp", Operation::Broadcast), Algorithm::Chain);
        assert_eq!(choose("shm", Operation::Broadcast), Algorithm::Chain);
        let usual = Table::default();
        assert_eq!(table.rules.len(), usual.rules.len() + 2, "{text}");
    }
}
