//! `tsumuji relay`: serves a device that one process must own to the processes of this host.

use std::io::Write;

use tsumuji_node::bootstrap::{RelayEnd, RelayPlan, RelayServes, serve_relay};
use tsumuji_node::{InterfaceName, LinkSpec};

use crate::interrupt::Interrupt;
use crate::{DONE, Outcome, output};

/// Serve an interface that one process must own (xdp, dpdk) to several processes of this host.
///
/// They reach it over shared memory, each under an Ethernet address of its own, by the link relay:NAME:SLOT, or by a hosts file with xdp or dpdk and several slots. A launch starts the relays that it needs by itself; they end when nobody uses them any more. Processes must run as the user of the relay, which alone needs the rights for the device. Ends with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji relay --link xdp:eth1 --slots 4\n  tsumuji relay --link dpdk:0000:03:00.0 --name lab --slots 4\n\nThen, in the hosts file: addr = \"relay:eth1\", slots = 4"
)]
pub(crate) struct Args {
    /// The device: xdp:INTERFACE or dpdk:DEVICE
    #[arg(long, value_name = "LINK")]
    link: LinkSpec,
    /// How many processes can use it at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    slots: u8,
    /// The name under which they find it [default: that of the interface, or the PCI address with points]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<InterfaceName>,
    /// End when the last process has left
    #[arg(long)]
    until_unused: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
}

fn name(text: &str) -> Result<InterfaceName, &'static str> {
    InterfaceName::new(text)
        .ok_or("accepted are up to 15 letters, digits and signs but `/` and `:`")
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let plan = RelayPlan {
        link: args.link,
        name: args.name,
        slots: args.slots,
        until_unused: args.until_unused,
    };
    let told = |serves: RelayServes| {
        let RelayServes {
            name,
            mac,
            frame_bytes,
        } = serves;
        // The process that has started it may be gone.
        let _ = writeln!(
            std::io::stderr(),
            "{} serves {} processes as relay:{name}, slot 0 at {mac}, frames of up to {frame_bytes} bytes; Ctrl-C ends it",
            args.link,
            args.slots
        );
    };
    let RelayEnd {
        counters,
        dropped_frames,
    } = serve_relay(&plan, || interrupt.is_set(), told)?;
    if args.json {
        output::print_json(&serde_json::json!({
            "sent_frames": counters.sent_frames,
            "received_frames": counters.received_frames,
            "full_frames": counters.full_frames,
            "absent_frames": counters.absent_frames,
            "foreign_frames": counters.foreign_frames,
            "refused_frames": counters.refused_frames,
            "dropped_frames": dropped_frames,
        }));
    } else {
        output::print_text(&format!(
            "{} Ethernet frames sent, {} received; not passed on: {} for full rings, {} for empty slots, {} foreign, {} refused; {} dropped by the device\n",
            counters.sent_frames,
            counters.received_frames,
            counters.full_frames,
            counters.absent_frames,
            counters.foreign_frames,
            counters.refused_frames,
            dropped_frames,
        ));
    }
    Ok(DONE)
}
