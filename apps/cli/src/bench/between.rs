//! The nodes of a measurement: processes of this host, or nodes of a hosts file.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::ensure;
use tsumuji_bench::exchange::{self, ExchangeError, Measured, Plan};
use tsumuji_bench::limits::place::Place;
use tsumuji_bench::machine;
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{Congestion, LaunchSpec, LinkSpec, Security};

use crate::hosts;

/// Between whom.
#[derive(Debug, clap::Args)]
pub(super) struct Between {
    /// The link: shm (default), udp, udp:ADDRESS:PORT or dpdk:net_memif (two processes); with --hosts udp, packet, xdp or dpdk:DEVICE [default there: the file's]
    #[arg(long, value_name = "LINK")]
    pub(super) link: Option<LinkSpec>,
    /// Between the nodes of this file (pingpong, burst: its first two), not processes of this host; node 0 is the root, or sends
    #[arg(long, value_name = "FILE", group = hosts::WITH_HOSTS)]
    pub(super) hosts: Option<PathBuf>,
    #[command(flatten)]
    pub(super) slots: hosts::Slots,
    /// The node of the hosts file that node 0 exchanges messages with, while the others wait [default: 1, of the first two]
    #[arg(long, value_name = "I", requires = "hosts")]
    pub(super) to: Option<u16>,
    /// Path of tsumuji on the other host [default: the same path as here]
    #[arg(long, value_name = "PATH", requires = "hosts")]
    pub(super) program: Option<PathBuf>,
    /// Congestion control: credit (default), or suci, where the receiver permits what is sent again; suci:K: up to K frames need no permission [default:
    /// 16]; several by commas, to compare them
    #[arg(long, value_name = "CONTROL", value_delimiter = ',')]
    pub(super) congestion: Vec<Congestion>,
    #[command(flatten)]
    pub(super) security: crate::security::Flags,
}

impl Between {
    /// Refuses another node, for measurements of the first two.
    pub(super) fn check_first_two(&self) -> anyhow::Result<()> {
        ensure!(
            self.to.is_none(),
            "--to: this measurement is between the first two nodes; leave it out"
        );
        Ok(())
    }
}

/// Two processes and their link, ready to be measured.
pub(super) struct Pair {
    pub(super) link: LinkSpec,
    pub(super) hosts: Option<Hosts>,
    pub(super) program: String,
    pub(super) security: Security,
    congestion: Option<Congestion>,
    to: Option<u16>,
    pub(super) nodes: usize,
}

impl Pair {
    /// Moves to the host of node 0, if that is another.
    pub(super) fn of(between: &Between, inside: bool) -> anyhow::Result<Self> {
        Self::among(between, inside, 2)
    }

    /// As `of`, with so many nodes, of which the first two exchange messages.
    pub(super) fn among(between: &Between, inside: bool, nodes: usize) -> anyhow::Result<Self> {
        ensure!(
            between.congestion.len() <= 1,
            "--congestion: several are compared by `bench pingpong --sizes` and its like; give one here"
        );
        Self::open(between, inside, Some(nodes))
    }

    /// As `among`, or all nodes of the file, with any number of congestion controls.
    pub(super) fn open(
        between: &Between,
        inside: bool,
        nodes: Option<usize>,
    ) -> anyhow::Result<Self> {
        let congestion = between.congestion.first().copied();
        let Some(path) = &between.hosts else {
            hosts::check_one_host(between.link.as_ref())?;
            return Ok(Self {
                link: between.link.unwrap_or(LinkSpec::Shm),
                hosts: None,
                program: hosts::program(None)?,
                security: between.security.stated(between.link.as_ref(), None)?,
                congestion,
                to: None,
                nodes: nodes.unwrap_or(2),
            });
        };
        let file = hosts::read(path, between.link.as_ref(), between.slots)?;
        let all = file.hosts().len();
        let nodes = nodes.unwrap_or(all);
        ensure!(
            (2..=all).contains(&nodes),
            "{}: {nodes} nodes are asked for, and it has {all}; two at least are needed",
            path.display()
        );
        if !inside {
            hosts::enter_node_0(&file, path)?;
        }
        let security = between
            .security
            .stated(between.link.as_ref(), Some(&file))?;
        let program = hosts::program(between.program.as_ref())?;
        let mut both = hosts::of(&file, program.clone());
        match between.to {
            None => both.nodes.truncate(nodes),
            Some(to) => ensure!(
                (1..both.nodes.len()).contains(&to.into()),
                "--to {to}: {} has nodes 1 to {} beside node 0",
                path.display(),
                both.nodes.len() - 1
            ),
        }
        Ok(Self {
            link: both.nodes[0].link,
            hosts: Some(both),
            program,
            security,
            congestion,
            to: between.to,
            nodes,
        })
    }

    /// Whether each process, and each relay beside it, has a core of its own.
    pub(super) fn has_cores_to_spin(&self) -> bool {
        machine::two_cpus().is_some() && !self.needs_cores_for_relays()
    }

    /// Whether there are fewer cores than processes that would spin: both, and a relay beside each.
    pub(super) fn needs_cores_for_relays(&self) -> bool {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        matches!(self.link, LinkSpec::Relay(_)) && cores < 4
    }

    pub(super) fn measure(&self, plan: &Plan) -> Result<Measured, ExchangeError> {
        let plan = Plan {
            receiver: self.to.unwrap_or(plan.receiver),
            ..plan.clone()
        };
        exchange::measure(&plan, self.spec(), &self.security)
    }

    /// Where both are, if they are within this machine: this process is where node 0 runs.
    pub(super) fn places(&self) -> Option<[Place; 2]> {
        let Some(hosts) = &self.hosts else {
            return Some(Place::LOOPBACK);
        };
        let [here, there] = hosts.nodes.first_chunk()?;
        let Some(IpAddr::V4(ip)) = here.ip else {
            return None;
        };
        let here = Place {
            netns: None,
            ip,
            interface: String::new(),
        };
        Some([here, Place::of_node(there)?])
    }

    /// What starts the other side.
    pub(super) fn spec(&self) -> LaunchSpec {
        let mut spec = exchange::spec(self.link, self.hosts.as_ref(), &self.program);
        spec.nodes = self.nodes - 1;
        spec.congestion = self.congestion;
        spec
    }
}
