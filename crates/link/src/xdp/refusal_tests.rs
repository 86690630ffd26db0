//! Refusals when a link is opened, and the other ways to drive a device.

use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::probe::ip;
use super::tests::{generic, native, on_veth, open};
use super::*;

/// Interfaces of several queues are refused with the command that helps.
#[test]
fn many_queues_are_refused() {
    if !on_veth(1500) {
        return;
    }
    ip("link add m0 numrxqueues 3 numtxqueues 3 type veth peer name m1 numrxqueues 3 numtxqueues 3\n\
        link set m0 up\nlink set m1 up\n").expect("veth");
    let error = Xdp::open("m0", generic())
        .expect_err("three queues")
        .to_string();
    assert!(
        error.contains("has 3 receive queues") && error.contains("`ethtool -L m0 rx 1`"),
        "{error}"
    );
}

/// Options that the device does not support are refused by name, and so are meaningless ones.
#[test]
fn impossible_wishes_are_refused() {
    if !on_veth(1500) {
        return;
    }
    let refused = |config| Xdp::open("n0", config).expect_err("refused").to_string();
    let text = refused(XdpConfig {
        frame_bytes: Some(1499),
        ..generic()
    });
    assert!(text.contains("take 512 to 1498"), "{text}");
    let text = refused(XdpConfig {
        ring_frames: Some(0),
        ..generic()
    });
    assert!(text.contains("no useful ring"), "{text}");
    let text = refused(XdpConfig {
        ring_frames: Some(u32::MAX),
        ..generic()
    });
    assert!(text.contains("65536"), "{text}");
    let text = Xdp::open("nothere", generic())
        .expect_err("no interface")
        .to_string();
    assert!(text.contains("nothere"), "{text}");
    drop(open("n0", XdpConfig::default()));
}

/// The four capabilities that we ask for are enough; each missing one is named, with the command that grants it.
#[test]
fn missing_rights_are_named() {
    if !on_veth(9000) {
        return;
    }
    let all = capabilities(None).expect("capabilities");
    let mut enough = all;
    enough.effective = CapabilitySet::NET_RAW
        | CapabilitySet::NET_ADMIN
        | CapabilitySet::BPF
        | CapabilitySet::IPC_LOCK;
    set_capabilities(None, enough).expect("drop");
    let opened = Xdp::open("n0", native());
    set_capabilities(None, all).expect("restore");
    drop(opened.expect("these four are enough"));
    for (without, named) in [
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
        (CapabilitySet::BPF, "CAP_BPF"),
    ] {
        let mut fewer = all;
        // CAP_SYS_ADMIN includes all that BPF needs.
        fewer.effective -= without | CapabilitySet::SYS_ADMIN;
        // For this thread only.
        set_capabilities(None, fewer).expect("drop");
        let opened = Xdp::open("n0", generic());
        set_capabilities(None, all).expect("restore");
        let text = opened.expect_err("not allowed").to_string();
        assert!(
            text.contains(named) && text.contains("setcap cap_net_raw"),
            "{text}"
        );
    }
}

/// Without CAP_IPC_LOCK the rings shrink to the limit on locked memory, unless their size was asked for.
#[test]
fn locked_memory_is_respected() {
    if !on_veth(9000) {
        return;
    }
    // For the whole process, but processes with the capability are not limited.
    let limits = rustix::process::getrlimit(Resource::Memlock);
    let current = Some(3 << 20);
    rustix::process::setrlimit(Resource::Memlock, Rlimit { current, ..limits }).expect("limit");
    let all = capabilities(None).expect("capabilities");
    let mut fewer = all;
    fewer.effective -= CapabilitySet::IPC_LOCK;
    set_capabilities(None, fewer).expect("drop");
    let shrunk = Xdp::open("n0", generic());
    let fixed = Xdp::open(
        "n1",
        XdpConfig {
            ring_frames: Some(3000),
            ..generic()
        },
    );
    set_capabilities(None, all).expect("restore");
    rustix::process::setrlimit(Resource::Memlock, limits).expect("restore");
    let whole = open("n1", generic()).caps().receive_frames;
    let shrunk = shrunk.expect("smaller rings").caps().receive_frames;
    assert!(shrunk < whole, "{shrunk} of {whole}");
    let text = fixed.expect_err("too large").to_string();
    assert!(
        text.contains("CAP_IPC_LOCK") && text.contains("ulimit -l"),
        "{text}"
    );
}
