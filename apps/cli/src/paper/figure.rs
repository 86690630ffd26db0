//! The experiments that can be repeated, by the names of the papers' figures and tables.

use clap::builder::TypedValueParser;
use tsumuji_bench::ops::Op;

use crate::named::named;

/// Name and title of each, in the order of `--list`. A name begins with that of its paper.
const LIST: [&str; 53] = [
    "suci-fig6: ping-pong between two nodes, 4 B to 512 KiB",
    "suci-fig7: burst from one node to another, 4 B to 512 KiB",
    "suci-fig8: gather: all nodes send to one, 4 B to 64 KiB",
    "suci-fig9: broadcast from one node to all, 4 B to 512 KiB",
    "suci-dv: digital video of 30 Mbit/s beside bulk on one cable, by four ways",
    "l2rtc-fig5: frames received and dropped a second, over cores",
    "l2rtc-fig6: processor time of a receiver over the offered load",
    "l2rtc-fig10: how heavy a service may be, by executors",
    "l2rtc-fig12: sums of 32 values, by links and executors, beside TCP",
    "l2rtc-fig14: time to learn a line, by links, beside TCP and one process",
    "relax-table2.1: transfer rate of kernel UDP over the size of packets",
    "relax-table2.2: transfer rate below the kernel's protocols over the size of packets",
    "relax-table3.1: memory over rows",
    "relax-table5.1: time of one thread over rows",
    "relax-fig5.2: time of threads over rows",
    "relax-fig5.3: time over elements in a datagram, UDP, jumbo frames",
    "relax-fig5.4: time over elements in a datagram, UDP",
    "relax-fig5.5: time over workers, UDP",
    "relax-fig5.6: speed-up over workers, UDP",
    "relax-fig5.7: time over rows, UDP",
    "relax-fig5.8: time over rows, UDP, logarithmic",
    "relax-fig5.9: time over elements in a frame, below the kernel's protocols",
    "relax-fig5.10: time over workers, below the kernel's protocols",
    "relax-fig5.11: speed-up over workers, below the kernel's protocols",
    "relax-fig5.12: time over rows, below the kernel's protocols",
    "relax-fig5.13: time over rows, below the kernel's protocols, logarithmic",
    "relax-table6.1: rate on the wire while computing",
    "relax-fig6.1: time over few elements, by links",
    "relax-fig6.2: time over rows, by links",
    "relax-fig6.3: time over workers, by links, with slopes",
    "relax-fig6.4: speed-up over workers, by links",
    "relax-fig6.5: time over rows: threads beside links",
    "relax-table6.2: laps until convergence, by links",
    "sdp-fig2: requests a second over message size, one client",
    "sdp-fig3: latency over message size, one client",
    "sdp-fig4: processor time of the client of requests over message size",
    "sdp-fig5: throughput of a stream over message size",
    "sdp-fig6: processor time of a stream's sender over message size",
    "sdp-fig7: processor time of a stream's receiver over message size",
    "sdp-fig8: service demand of a stream's sender over message size",
    "sdp-fig9: latency over clients and message size",
    "sdp-fig10: latency of 32 B over clients",
    "sdp-fig11: latency of 8 KiB over clients",
    "sdp-fig12: throughput of many streams through the sockets layer over clients",
    "sdp-fig13: throughput of many streams over kernel TCP, loopback",
    "sdp-fig14: throughput of many streams over kernel TCP between hosts",
    "mech-fig1: bandwidth over size, by who copies and who starts, Myrinet",
    "mech-fig2: what the kernel does in a send of 4 KiB",
    "mech-fig3: what the interface does in a send of 4 KiB, Myrinet",
    "mech-fig4: bandwidth over size, RHiNET-1/NI and Myrinet",
    "mech-table5: what the host does in a send of 4 KiB, user level",
    "mech-table6: bandwidth if the processor does all, beside two others",
    "mech-table7: what the interface does in a send of 4 KiB, RHiNET-1/NI",
];

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Figure(&'static str);

/// Reads a figure by its name.
pub(super) fn figure() -> impl TypedValueParser<Value = Figure> {
    named(Figure::all().map(|figure| (figure.name(), figure)))
}

impl Figure {
    /// All, in the order of `--list`.
    pub(super) fn all() -> [Self; LIST.len()] {
        LIST.map(Self)
    }

    fn parts(self) -> (&'static str, &'static str) {
        self.0.split_once(": ").expect("a name and a title")
    }

    /// The name, as it is read.
    pub(super) fn name(self) -> &'static str {
        self.parts().0
    }

    pub(super) fn title(self) -> &'static str {
        self.parts().1
    }

    /// Name and title in one.
    pub(super) fn heading(self) -> &'static str {
        self.0
    }

    /// The paper's part of the name.
    pub(super) fn paper(self) -> &'static str {
        self.0.split('-').next().unwrap_or_default()
    }

    #[cfg(test)]
    pub(super) fn of(name: &str) -> Self {
        let mut all = Self::all().into_iter();
        all.find(|figure| figure.name() == name).expect(name)
    }

    pub(super) fn op(self) -> Op {
        match self.name() {
            "suci-fig7" => Op::Burst,
            "suci-fig8" => Op::Gather,
            "suci-fig9" => Op::Bcast,
            _ => Op::Pingpong,
        }
    }

    pub(super) fn largest(self) -> usize {
        if self.name() == "suci-fig8" {
            64 << 10
        } else {
            512 << 10
        }
    }

    pub(super) fn nodes(self, asked: &[u16]) -> Vec<usize> {
        match self.name() {
            "suci-fig8" | "suci-fig9" if !asked.is_empty() => {
                asked.iter().copied().map(usize::from).collect()
            }
            "suci-fig8" => vec![8], // the paper does not say how many
            "suci-fig9" => vec![5, 40],
            _ => vec![2],
        }
    }
}
