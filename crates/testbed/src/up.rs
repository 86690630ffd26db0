//! Builds a testbed: the switch's namespace and bridge, then the hosts, some at a time, then the mark that it is complete.
//!
//! Called by `Testbed::up`. If it fails it removes what it has built; the remains of a killed one are removed by the next, or by `down`. `mark` tells
//! our namespaces from others.

use std::io::{BufRead, BufReader};
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::commands::{self, CommandError, Tool, ask, batch, run};
use crate::down::{self, DownError};
use crate::mark::{self, Holder, Survey, SwitchMark, host_mark};
use crate::rights::{self, RightsError};
use crate::spec::{
    BRIDGE, COPIES, INTERFACE, Name, Rate, Spec, SpecError, bridge_mac, host_ip, host_mac, port,
    port_mac,
};
use crate::{Host, hosts_file};

/// From this number of hosts on, they are told each other's Ethernet addresses at once: the kernel keeps learnt neighbours in one table for all
/// namespaces, by default of 1024 entries, and 40 hosts that all talk to each other need 1560. Addresses that it is told do not count.
const KNOWN_FROM_HOSTS: u16 = 24;
/// Hosts made by one batch: few enough that progress is shown often and an interrupt takes effect soon.
const HOSTS_AT_ONCE: u16 = 16;
/// Ports forward as soon as the kernel has noticed both ends, within a second if it is not busy.
const PORTS_READY_WITHIN: Duration = Duration::from_secs(20);
const CHECK_PORTS_EVERY: Duration = Duration::from_millis(20);
/// Queue of a sending host: Linux's default for an ordinary network card.
const HOST_QUEUE_FRAMES: u64 = 1000;
/// Queue of a switch port, as in a small office switch.
const PORT_QUEUE_BYTES: u64 = 512 * 1024;
/// Fewest of the largest frames that a queue holds.
const LEAST_QUEUE_FRAMES: u64 = 16;
/// A limited cable may catch up at most this part of a second when the machine was late to send.
const BURSTS_PER_SECOND: u64 = 1000;
const ETHERNET_HEADER_BYTES: u64 = 14;

/// Why a testbed was not built. Nothing of it is left behind unless the error says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// The specification cannot be built.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// Rights are missing.
    #[error(transparent)]
    Rights(#[from] RightsError),
    /// A testbed of that name exists.
    #[error("testbed {0} exists already; remove it first: tsumuji testbed down --name {0}")]
    Exists(Name),
    /// Another process builds it, or uses it until it ends.
    #[error("testbed {name} belongs to process {pid}, which still runs")]
    Held {
        /// Name of the testbed.
        name: Name,
        /// The other process.
        pid: u32,
    },
    /// A foreign namespace has a name that is needed.
    #[error(
        "network namespace {namespace} exists and belongs to no testbed; choose another --name"
    )]
    Foreign {
        /// The first of them.
        namespace: String,
    },
    /// The caller stopped it.
    #[error("interrupted; nothing was left behind")]
    Interrupted,
    /// The kernel does not forward frames.
    #[error("the switch does not forward to {host} {within:?} after it was connected")]
    NotForwarding {
        /// The first of them.
        host: String,
        /// How long it was waited for.
        within: Duration,
    },
    /// The hosts file could not be written.
    #[error("{}: {source}", path.display())]
    HostsFile {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The remains of an earlier testbed could not be removed.
    #[error("cannot remove what an interrupted `up` left: {0}")]
    Leftover(DownError),
    /// Building failed, and its parts could not be removed.
    #[error(
        "{failure}; cleaning up failed, too: {cleanup}; try: tsumuji testbed down --name {name}"
    )]
    LeftBehind {
        /// Name of the testbed.
        name: Name,
        /// Why building failed.
        failure: Box<UpError>,
        /// Why removal failed.
        cleanup: DownError,
    },
}

/// Builds a testbed; `watch` is called with the number of finished hosts, and may stop the work.
pub(crate) fn up(
    spec: &Spec,
    watch: &mut dyn FnMut(u16) -> ControlFlow<()>,
) -> Result<Vec<Host>, UpError> {
    spec.check()?;
    rights::check()?;
    // One that cannot be removed now blocks only its own name, which is checked next.
    for name in mark::abandoned() {
        let _ = down::remove_all(&name);
    }
    make_room(spec)?;
    let built = make_switch(spec).and_then(|switch| {
        let built = build(spec, watch);
        switch.let_go();
        built
    });
    built.map_err(|failure| match failure {
        // Another process was faster: the testbed there is its own.
        UpError::Exists(_) => failure,
        failure => match down::remove_all(&spec.name) {
            Ok(_) => failure,
            Err(cleanup) => UpError::LeftBehind {
                name: spec.name.clone(),
                failure: Box::new(failure),
                cleanup,
            },
        },
    })
}

/// Marks the testbed as finished, so that it outlives this process.
pub(crate) fn keep(name: &Name, hosts: u16) -> Result<(), CommandError> {
    let mark = SwitchMark {
        hosts,
        holder: None,
    };
    let arguments = ["link", "set", "dev", "lo", "alias", &mark.text(name)];
    run(Tool::Ip, Some(&name.switch()), &arguments).map(drop)
}

/// Refuses names that are taken; removes the remains of a killed process.
fn make_room(spec: &Spec) -> Result<(), UpError> {
    let name = &spec.name;
    let survey = Survey::of(name)?;
    if let Some(switch) = survey.switch {
        match switch.holder {
            None => return Err(UpError::Exists(name.clone())),
            Some(Holder { pid, .. }) if switch.holder.is_some_and(Holder::lives) => {
                return Err(UpError::Held {
                    name: name.clone(),
                    pid,
                });
            }
            Some(_) => {}
        }
    }
    let is_needed = |namespace: &&String| {
        **namespace == name.switch() || name.host_id(namespace).is_some_and(|id| id < spec.hosts)
    };
    if let Some(namespace) = survey.foreign.iter().find(is_needed) {
        return Err(UpError::Foreign {
            namespace: namespace.clone(),
        });
    }
    if !survey.ours.is_empty() {
        down::remove_all(name).map_err(UpError::Leftover)?;
    }
    Ok(())
}

/// A process that keeps the switch's namespace alive while the namespace is given its name.
struct SwitchProcess(Child);

impl SwitchProcess {
    fn let_go(mut self) {
        drop(self.0.stdin.take()); // closing its input ends it
        let _ = self.0.wait();
    }
}

/// Marks the namespace it runs in, keeps bridged frames out of the packet filter, reports that, and waits.
const SWITCH_SCRIPT: &str = r#"
ip link set dev lo alias "$1" || exit 1
for knob in /proc/sys/net/bridge/bridge-nf-call-*; do
    [ ! -w "$knob" ] || echo 0 >"$knob" || exit 1
done
echo ready
read -r _
"#;

/// The switch's namespace is marked before it has a name: there is never an unowned switch.
fn make_switch(spec: &Spec) -> Result<SwitchProcess, UpError> {
    let name = &spec.name;
    let mark = SwitchMark {
        hosts: spec.hosts,
        holder: Holder::me(),
    };
    let shown = "unshare --net".to_owned();
    let failed = |source| CommandError::Run {
        command: shown.clone(),
        source,
    };
    let mut child = commands::dying_with_us("unshare")
        .args([
            "--net",
            "--",
            "sh",
            "-c",
            SWITCH_SCRIPT,
            "sh",
            &mark.text(name),
        ])
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => CommandError::NotInstalled {
                program: "setpriv",
                package: "util-linux",
            },
            _ => failed(source),
        })?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout)
            .read_line(&mut line)
            .map_err(failed)?;
    }
    if line.trim() != "ready" {
        let output = child.wait_with_output().map_err(failed)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let complaint = commands::complaint(&said, &output);
        return Err(CommandError::Failed {
            command: shown,
            complaint,
        }
        .into());
    }
    let process = SwitchProcess(child);
    let pid = process.0.id().to_string();
    let named = run(Tool::Ip, None, &["netns", "attach", &name.switch(), &pid]);
    match named {
        Ok(_) => Ok(process),
        Err(error) => {
            process.let_go();
            let is_taken = mark::path(&name.switch()).exists();
            Err(if is_taken {
                UpError::Exists(name.clone())
            } else {
                error.into()
            })
        }
    }
}

fn build(spec: &Spec, watch: &mut dyn FnMut(u16) -> ControlFlow<()>) -> Result<Vec<Host>, UpError> {
    let switch = spec.name.switch();
    batch(Tool::Ip, Some(&switch), &bridge_lines(spec))?;
    let mut done = 0;
    while done < spec.hosts {
        let next = spec.hosts.min(done + HOSTS_AT_ONCE);
        make_hosts(spec, done..next)?;
        done = next;
        if watch(done).is_break() {
            return Err(UpError::Interrupted);
        }
    }
    wait_until_forwarding(spec, watch)?;
    let hosts: Vec<_> = (0..spec.hosts)
        .map(|id| Host::new(&spec.name, id))
        .collect();
    hosts_file::write(&spec.name, &hosts).map_err(|source| UpError::HostsFile {
        path: hosts_file::path(&spec.name),
        source,
    })?;
    Ok(hosts)
}

fn bridge_lines(spec: &Spec) -> Vec<String> {
    let (mac, mtu, [copies, end]) = (bridge_mac(), spec.mtu_bytes, COPIES);
    vec![
        // It forwards at once, floods frames to unknown addresses, and sends no frames of its own.
        format!(
            "link add name {BRIDGE} address {mac} mtu {mtu} type bridge stp_state 0 forward_delay 0 mcast_snooping 0"
        ),
        format!("link set dev {BRIDGE} addrgenmode none"),
        format!("link set dev {BRIDGE} up"),
        format!("link add name {copies} mtu {mtu} type veth peer name {end} mtu {mtu}"),
        format!("link set dev {copies} addrgenmode none"),
        format!("link set dev {end} addrgenmode none"),
        // Frames that come in there have entered before: it learns no addresses from them, and floods none to it.
        format!("link set dev {copies} master {BRIDGE}"),
        format!(
            "link set dev {copies} type bridge_slave learning off flood off mcast_flood off bcast_flood off"
        ),
        format!("link set dev {end} up"),
        format!("link set dev {copies} up"),
    ]
}

fn make_hosts(spec: &Spec, ids: Range<u16>) -> Result<(), CommandError> {
    let (name, switch) = (&spec.name, spec.name.switch());
    let namespaces: Vec<_> = ids
        .clone()
        .map(|id| format!("netns add {}", name.host(id)))
        .collect();
    batch(Tool::Ip, None, &namespaces)?;
    let cables: Vec<_> = ids.clone().flat_map(|id| cable_lines(spec, id)).collect();
    batch(Tool::Ip, Some(&switch), &cables)?;
    for id in ids.clone() {
        batch(Tool::Ip, Some(&name.host(id)), &host_lines(name, id))?;
        if spec.hosts >= KNOWN_FROM_HOSTS {
            let known = neighbour_lines(spec.hosts, id);
            batch(Tool::Ip, Some(&name.host(id)), &known)?;
        }
    }
    if let Some(rate) = spec.rate {
        let limits: Vec<_> = ids
            .clone()
            .map(|id| rate_line(&port(id), rate, port_queue_bytes(spec), spec))
            .collect();
        batch(Tool::Tc, Some(&switch), &limits)?;
        let limit = rate_line(INTERFACE, rate, host_queue_bytes(spec), spec);
        for id in ids {
            batch(Tool::Tc, Some(&name.host(id)), std::slice::from_ref(&limit))?;
        }
    }
    Ok(())
}

fn cable_lines(spec: &Spec, id: u16) -> [String; 2] {
    let (mtu, port, host) = (spec.mtu_bytes, port(id), spec.name.host(id));
    let (near, far) = (port_mac(id), host_mac(id));
    // One queue each: an AF_XDP socket serves one queue, and must receive all frames.
    let queues = "numrxqueues 1 numtxqueues 1";
    [
        format!(
            "link add name {port} address {near} mtu {mtu} {queues} type veth peer name {INTERFACE} address {far} mtu {mtu} {queues} netns {host}"
        ),
        // Without an IPv6 address of its own: no neighbour or router solicitations among the frames.
        format!("link set dev {port} addrgenmode none master {BRIDGE} up"),
    ]
}

fn host_lines(name: &Name, id: u16) -> [String; 5] {
    let (mark, ip) = (host_mark(name), host_ip(id));
    [
        format!("link set dev lo alias \"{mark}\""),
        "link set dev lo up".to_owned(),
        format!("link set dev {INTERFACE} addrgenmode none"),
        format!("address add {ip}/24 broadcast + dev {INTERFACE}"),
        format!("link set dev {INTERFACE} up"),
    ]
}

/// Sets the other hosts' addresses, so that no host has to ask for them.
fn neighbour_lines(hosts: u16, id: u16) -> Vec<String> {
    let others = (0..hosts).filter(|&other| other != id);
    others
        .map(|other| {
            let (ip, mac) = (host_ip(other), host_mac(other));
            format!("neighbour add {ip} lladdr {mac} dev {INTERFACE} nud permanent")
        })
        .collect()
}

fn frame_bytes(spec: &Spec) -> u64 {
    u64::from(spec.mtu_bytes) + ETHERNET_HEADER_BYTES
}

fn port_queue_bytes(spec: &Spec) -> u64 {
    PORT_QUEUE_BYTES.max(LEAST_QUEUE_FRAMES * frame_bytes(spec))
}

fn host_queue_bytes(spec: &Spec) -> u64 {
    HOST_QUEUE_FRAMES * frame_bytes(spec)
}

fn rate_line(device: &str, rate: Rate, queue_bytes: u64, spec: &Spec) -> String {
    let bits = rate.bits_per_second();
    let burst_bytes = (bits / 8 / BURSTS_PER_SECOND).max(2 * frame_bytes(spec));
    format!(
        "qdisc replace dev {device} root tbf rate {bits}bit burst {burst_bytes}b limit {queue_bytes}b"
    )
}

#[derive(Deserialize)]
struct BridgePort {
    ifname: String,
    #[serde(default)]
    state: String,
}

fn wait_until_forwarding(
    spec: &Spec,
    watch: &mut dyn FnMut(u16) -> ControlFlow<()>,
) -> Result<(), UpError> {
    let start = Instant::now();
    loop {
        let ports: Vec<BridgePort> = ask(
            Tool::Bridge,
            &spec.name.switch(),
            &["-json", "link", "show"],
        )?;
        let forwards = |id: &u16| {
            let name = port(*id);
            ports
                .iter()
                .any(|port| port.ifname == name && port.state == "forwarding")
        };
        let Some(waiting) = (0..spec.hosts).find(|id| !forwards(id)) else {
            return Ok(());
        };
        if start.elapsed() > PORTS_READY_WITHIN {
            return Err(UpError::NotForwarding {
                host: spec.name.host(waiting),
                within: PORTS_READY_WITHIN,
            });
        }
        if watch(spec.hosts).is_break() {
            return Err(UpError::Interrupted);
        }
        std::thread::sleep(CHECK_PORTS_EVERY);
    }
}
