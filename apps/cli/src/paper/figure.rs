//! The experiments that can be repeated, by the names of the papers' figures and tables.

use clap::ValueEnum;
use tsumuji_bench::ops::Op;

use crate::named::name_of;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Figure {
    SuciFig6,
    SuciFig7,
    SuciFig8,
    SuciFig9,
    SuciDv,
    L2rtcFig5,
    L2rtcFig6,
    L2rtcFig10,
    L2rtcFig12,
    L2rtcFig14,
    #[value(name = "relax-table2.1")]
    RelaxTable21,
    #[value(name = "relax-table2.2")]
    RelaxTable22,
    #[value(name = "relax-table3.1")]
    RelaxTable31,
    #[value(name = "relax-table5.1")]
    RelaxTable51,
    #[value(name = "relax-fig5.2")]
    RelaxFig52,
    #[value(name = "relax-fig5.3")]
    RelaxFig53,
    #[value(name = "relax-fig5.4")]
    RelaxFig54,
    #[value(name = "relax-fig5.5")]
    RelaxFig55,
    #[value(name = "relax-fig5.6")]
    RelaxFig56,
    #[value(name = "relax-fig5.7")]
    RelaxFig57,
    #[value(name = "relax-fig5.8")]
    RelaxFig58,
    #[value(name = "relax-fig5.9")]
    RelaxFig59,
    #[value(name = "relax-fig5.10")]
    RelaxFig510,
    #[value(name = "relax-fig5.11")]
    RelaxFig511,
    #[value(name = "relax-fig5.12")]
    RelaxFig512,
    #[value(name = "relax-fig5.13")]
    RelaxFig513,
    #[value(name = "relax-table6.1")]
    RelaxTable61,
    #[value(name = "relax-fig6.1")]
    RelaxFig61,
    #[value(name = "relax-fig6.2")]
    RelaxFig62,
    #[value(name = "relax-fig6.3")]
    RelaxFig63,
    #[value(name = "relax-fig6.4")]
    RelaxFig64,
    #[value(name = "relax-fig6.5")]
    RelaxFig65,
    #[value(name = "relax-table6.2")]
    RelaxTable62,
    SdpFig2,
    SdpFig3,
    SdpFig4,
    SdpFig5,
    SdpFig6,
    SdpFig7,
    SdpFig8,
    SdpFig9,
    SdpFig10,
    SdpFig11,
    SdpFig12,
    SdpFig13,
    SdpFig14,
    MechFig1,
    MechFig2,
    MechFig3,
    MechFig4,
    MechTable5,
    MechTable6,
    MechTable7,
}

impl Figure {
    /// All, in the order of `--list`.
    pub(super) fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// The name, as it is read.
    pub(super) fn name(self) -> String {
        name_of(self)
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::SuciFig6 => "ping-pong between two nodes, 4 B to 512 KiB",
            Self::SuciFig7 => "burst from one node to another, 4 B to 512 KiB",
            Self::SuciFig8 => "gather: all nodes send to one, 4 B to 64 KiB",
            Self::SuciFig9 => "broadcast from one node to all, 4 B to 512 KiB",
            Self::SuciDv => "digital video of 30 Mbit/s beside bulk on one cable, by four ways",
            Self::L2rtcFig5 => "frames received and dropped a second, over cores",
            Self::L2rtcFig6 => "processor time of a receiver over the offered load",
            Self::L2rtcFig10 => "how heavy a service may be, by executors",
            Self::L2rtcFig12 => "sums of 32 values, by links and executors, beside TCP",
            Self::L2rtcFig14 => "time to learn a line, by links, beside TCP and one process",
            Self::RelaxTable21 => "transfer rate of kernel UDP over the size of packets",
            Self::RelaxTable22 => {
                "transfer rate below the kernel's protocols over the size of packets"
            }
            Self::RelaxTable31 => "memory over rows",
            Self::RelaxTable51 => "time of one thread over rows",
            Self::RelaxFig52 => "time of threads over rows",
            Self::RelaxFig53 => "time over elements in a datagram, UDP, jumbo frames",
            Self::RelaxFig54 => "time over elements in a datagram, UDP",
            Self::RelaxFig55 => "time over workers, UDP",
            Self::RelaxFig56 => "speed-up over workers, UDP",
            Self::RelaxFig57 => "time over rows, UDP",
            Self::RelaxFig58 => "time over rows, UDP, logarithmic",
            Self::RelaxFig59 => "time over elements in a frame, below the kernel's protocols",
            Self::RelaxFig510 => "time over workers, below the kernel's protocols",
            Self::RelaxFig511 => "speed-up over workers, below the kernel's protocols",
            Self::RelaxFig512 => "time over rows, below the kernel's protocols",
            Self::RelaxFig513 => "time over rows, below the kernel's protocols, logarithmic",
            Self::RelaxTable61 => "rate on the wire while computing",
            Self::RelaxFig61 => "time over few elements, by links",
            Self::RelaxFig62 => "time over rows, by links",
            Self::RelaxFig63 => "time over workers, by links, with slopes",
            Self::RelaxFig64 => "speed-up over workers, by links",
            Self::RelaxFig65 => "time over rows: threads beside links",
            Self::RelaxTable62 => "laps until convergence, by links",
            Self::SdpFig2 => "requests a second over message size, one client",
            Self::SdpFig3 => "latency over message size, one client",
            Self::SdpFig4 => "processor time of the client of requests over message size",
            Self::SdpFig5 => "throughput of a stream over message size",
            Self::SdpFig6 => "processor time of a stream's sender over message size",
            Self::SdpFig7 => "processor time of a stream's receiver over message size",
            Self::SdpFig8 => "service demand of a stream's sender over message size",
            Self::SdpFig9 => "latency over clients and message size",
            Self::SdpFig10 => "latency of 32 B over clients",
            Self::SdpFig11 => "latency of 8 KiB over clients",
            Self::SdpFig12 => "throughput of many streams through the sockets layer over clients",
            Self::SdpFig13 => "throughput of many streams over kernel TCP, loopback",
            Self::SdpFig14 => "throughput of many streams over kernel TCP between hosts",
            Self::MechFig1 => "bandwidth over size, by who copies and who starts, Myrinet",
            Self::MechFig2 => "what the kernel does in a send of 4 KiB",
            Self::MechFig3 => "what the interface does in a send of 4 KiB, Myrinet",
            Self::MechFig4 => "bandwidth over size, RHiNET-1/NI and Myrinet",
            Self::MechTable5 => "what the host does in a send of 4 KiB, user level",
            Self::MechTable6 => "bandwidth if the processor does all, beside two others",
            Self::MechTable7 => "what the interface does in a send of 4 KiB, RHiNET-1/NI",
        }
    }

    pub(super) fn is_of_l2rtc(self) -> bool {
        self.name().starts_with("l2rtc")
    }

    pub(super) fn op(self) -> Op {
        match self {
            Self::SuciFig7 => Op::Burst,
            Self::SuciFig8 => Op::Gather,
            Self::SuciFig9 => Op::Bcast,
            _ => Op::Pingpong,
        }
    }

    pub(super) fn largest(self) -> usize {
        if self == Self::SuciFig8 {
            64 << 10
        } else {
            512 << 10
        }
    }

    pub(super) fn nodes(self, asked: &[u16]) -> Vec<usize> {
        match self {
            Self::SuciFig8 | Self::SuciFig9 if !asked.is_empty() => {
                asked.iter().copied().map(usize::from).collect()
            }
            Self::SuciFig8 => vec![8], // the paper does not say how many
            Self::SuciFig9 => vec![5, 40],
            _ => vec![2],
        }
    }
}
