//! A raw link without engine between two hosts of a testbed, as a contender: both its ends are in this process, each in its host.
//!
//! Called by `contest`; `figures` opens ends by it, too. The ends are opened for each measurement and closed again, because our endpoints use the
//! same interfaces next.

use std::io;

use tsumuji_link::Link;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig};
use tsumuji_link::packet::{Packet, PacketConfig};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_node::LinkSpec;

use crate::limits::bulk;
use crate::limits::place::Place;
use crate::machine;
use crate::ops::{Job, Op, Sample};

/// Whether no kernel protocol compares with the link, only the link itself.
pub(crate) fn is_raw(link: &LinkSpec) -> bool {
    matches!(
        link,
        LinkSpec::Packet(_) | LinkSpec::Xdp(_) | LinkSpec::Dpdk(_)
    )
}

/// A ping-pong or a burst over the link alone.
pub(crate) fn measure(link: LinkSpec, places: &[Place], job: &Job) -> Result<Sample, String> {
    let stated = |place: &Place| match link.interface() {
        Some(name) => name.to_string(),
        None => place.interface.clone(),
    };
    match link {
        LinkSpec::Packet(_) => exchange(
            ends(places, |place| {
                Packet::open(&stated(place), PacketConfig::default())
            })?,
            job,
        ),
        #[cfg(feature = "xdp")]
        LinkSpec::Xdp(_) => exchange(
            ends(places, |place| {
                Xdp::open(&stated(place), XdpConfig::default())
            })?,
            job,
        ),
        link @ LinkSpec::Dpdk(_) => exchange(dpdk_ends(link, places)?, job),
        other => Err(format!("{other} is not measured alone")),
    }
}

/// The ends of a DPDK device.
pub(crate) fn dpdk_ends(link: LinkSpec, places: &[Place]) -> Result<Vec<Dpdk>, String> {
    let LinkSpec::Dpdk(spec) = link else {
        return Err(format!("{link} is no device of DPDK"));
    };
    // Its ends connect by a socket, in any place.
    if spec.stays_on_host() {
        let parameters = spec.as_str().split_once(',').map_or("", |(_, rest)| rest);
        let pair = Dpdk::memif_pair(parameters, DpdkConfig::default());
        let (one, other) = pair.map_err(|error| error.to_string())?;
        return Ok(vec![one, other]);
    }
    ends(places, |place| {
        let stated = spec.interface().is_some() || !spec.is_on_interface();
        let own = (!stated).then(|| spec.with("iface", &place.interface));
        Dpdk::open(&own.flatten().unwrap_or(spec), DpdkConfig::default())
    })
}

fn exchange<L: Link + Send>(ends: Vec<L>, job: &Job) -> Result<Sample, String> {
    let Ok(ends) = <[L; 2]>::try_from(ends) else {
        return Err("a link alone has two ends".to_owned());
    };
    let cpus = machine::two_cpus();
    let measured = if job.op == Op::Pingpong {
        bulk::pingpong(ends, cpus, job.size, job.iterations)
    } else {
        bulk::burst(ends, cpus, job.size, job.iterations)
    };
    measured.map_err(|error| error.to_string())
}

/// Opens one end in each place.
pub(crate) fn ends<L: Send, E: std::fmt::Display>(
    places: &[Place],
    open: impl Fn(&Place) -> Result<L, E> + Sync,
) -> Result<Vec<L>, String> {
    let open = |place: &Place| {
        let opened =
            place.enter(|| open(place).map_err(|error| io::Error::other(error.to_string())));
        opened.map_err(|error| error.to_string())
    };
    // All at once: some devices have a link only when both ends are open.
    std::thread::scope(|scope| {
        let opening: Vec<_> = places
            .iter()
            .map(|place| scope.spawn(|| open(place)))
            .collect();
        let opened = opening
            .into_iter()
            .map(|end| end.join().expect("opening does not panic"));
        opened.collect()
    })
}
