//! Addresses, headers, `/etc/ethers`, and those tests of interfaces and claims that need no rights.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

const ME: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Addresses survive writing and reading; anything else is refused.
#[test]
fn mac_text() {
    assert_eq!(ME.to_string(), "02:00:00:00:00:01");
    assert_eq!("02:00:00:00:00:01".parse(), Ok(ME));
    assert_eq!("2:0:0:0:0:1".parse(), Ok(ME));
    assert_eq!("FF:ff:Ff:fF:ff:ff".parse(), Ok(MacAddr::BROADCAST));
    for bad in [
        "",
        ":",
        "02:00:00:00:00",
        "02:00:00:00:00:01:02",
        "02:00:00:00:00:001",
        "02:00:00:00:00:g1",
        "02-00-00-00-00-01",
        "+2:00:00:00:00:01",
        "02:00:00:00:00:01 ",
        "02:00:00::00:01",
    ] {
        assert!(bad.parse::<MacAddr>().is_err(), "{bad:?}");
    }
    assert!(MacAddr::BROADCAST.is_multicast() && !ME.is_multicast());
    assert!(ME.is_station() && !MacAddr::ZERO.is_station());
}

fn frame(destination: MacAddr, source: MacAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    write_header(&mut frame, destination, source);
    frame.extend_from_slice(payload);
    frame
}

/// A frame for us or for all is accepted with its padding; other frames are ignored, each kind for its reason.
#[test]
fn frames_are_sorted() {
    let padded = [&[1, 2, 3][..], &[0; 43]].concat();
    let frame_for = |to| frame(to, PEER, &padded);
    assert_eq!(accept(&frame_for(ME), ME), Ok((PEER, &padded[..])));
    assert_eq!(
        accept(&frame_for(MacAddr::BROADCAST), ME),
        Ok((PEER, &padded[..]))
    );
    let ignored = |bytes: &[u8]| accept(bytes, ME).expect_err("ignored");
    assert_eq!(ignored(&frame_for(PEER)), Ignored::Destination);
    let group = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    assert_eq!(ignored(&frame_for(group)), Ignored::Destination);
    for source in [ME, MacAddr::BROADCAST, MacAddr::ZERO, group] {
        assert_eq!(ignored(&frame(ME, source, &[1])), Ignored::Source);
    }
    assert_eq!(ignored(&frame(ME, PEER, &[])), Ignored::Empty);
    for bytes in 0..HEADER_BYTES {
        assert_eq!(ignored(&frame_for(ME)[..bytes]), Ignored::Short);
    }
    let mut other = frame_for(ME);
    other[12..14].copy_from_slice(&[8, 0]);
    assert_eq!(ignored(&other), Ignored::EtherType);
    // Zeros are no announcement: a link carries any bytes.
    assert!(accept(&frame(ME, PEER, &[0; 46]), ME).is_ok());
}

/// An announcement has Ethernet's least length, is ignored by all stations and counts as no drop.
#[test]
fn announcement_is_no_frame() {
    let bytes = announcement(PEER);
    assert_eq!(bytes.len(), 60);
    assert_eq!(accept(&bytes, ME), Err(Ignored::Announcement));
    assert!(!Ignored::Announcement.is_drop());
}

/// Random bytes cause no panic, and only well-formed frames are accepted.
#[test]
fn random_frames_do_no_harm() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..20_000 {
        let mut bytes = frame(ME, PEER, &[9; 40]);
        for _ in 0..3 {
            let at = random.usize(..bytes.len());
            bytes[at] ^= random.u8(..);
            bytes.truncate(random.usize(..80));
            if bytes.is_empty() {
                break;
            }
        }
        if let Ok((from, payload)) = accept(&bytes, ME) {
            assert!(from.is_station() && from != ME);
            assert_eq!(payload.len() + HEADER_BYTES, bytes.len());
        }
    }
}

/// A file that is removed when the test ends.
struct TextFile(PathBuf);

impl TextFile {
    fn new(name: &str, content: &[u8]) -> Self {
        let path =
            std::env::temp_dir().join(format!("tsumuji-ethers-{}-{name}", std::process::id()));
        let mut file = std::fs::File::create(&path).expect("create");
        file.write_all(content).expect("write");
        Self(path)
    }

    fn read(&self) -> Result<Ethers, EthersError> {
        Ethers::read(&self.0)
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Names resolve, comments and blank lines are skipped, the first line of a name counts.
#[test]
fn ethers_resolve() {
    let file = TextFile::new(
        "good",
        b"# hosts\n\n2:0:0:0:0:1 Alpha # the first\n\t02:00:00:00:00:02\tbeta\r\n02:00:00:00:00:03 beta",
    );
    let ethers = file.read().expect("read");
    assert_eq!(ethers.resolve("alpha").expect("alpha"), ME);
    assert_eq!(ethers.resolve("BETA").expect("beta"), PEER);
    let missing = ethers.resolve("gamma").expect_err("missing").to_string();
    assert!(missing.contains("gamma is not in ") && missing.contains("good"));
}

/// A bad line is named by file and number; a missing or endless file is refused.
#[test]
fn ethers_errors_name_the_line() {
    for (name, bad) in [
        ("mac", &b"02:00:00:00:00 host"[..]),
        ("alone", b"02:00:00:00:00:01"),
        ("more", b"02:00:00:00:00:01 host other"),
        ("group", b"ff:ff:ff:ff:ff:ff all"),
        ("binary", b"\xff\xfe\x00\x01 \x1b[2J"),
        ("host", b"02:00:00:00:00:01 h\xff"),
    ] {
        let content = [b"# first\n02:00:00:00:00:09 ok\n", bad, b"\n"].concat();
        let file = TextFile::new(name, &content);
        let text = file.read().expect_err(name).to_string();
        assert!(text.contains(&format!("-{name}:3: ")), "{text}");
        assert!(!text.contains('\x1b'), "{text:?}");
    }
    let missing = Ethers::read(std::path::Path::new("/nonexistent/ethers")).expect_err("missing");
    assert!(missing.to_string().contains("/nonexistent/ethers"));
    let endless = Ethers::read(std::path::Path::new("/dev/zero")).expect_err("endless");
    assert!(matches!(endless, EthersError::TooLarge { .. }));
}

/// The error for a missing interface lists the existing ones, also for impossible names.
#[test]
fn missing_interface_lists_the_others() {
    for name in ["no-such-if", "", "a-name-far-longer-than-any", "a\0b"] {
        let error = Interface::open(name).expect_err(name);
        assert!(matches!(error, InterfaceError::NotFound { .. }), "{error}");
        for there in list().expect("list").iter().take(1) {
            assert!(error.to_string().contains(&there.name), "{error}");
        }
    }
}

/// The loopback interface is recognised.
#[test]
fn loopback_is_refused() {
    let Ok(lo) = Interface::open("lo") else {
        eprintln!("skipped: no loopback interface here");
        return;
    };
    assert_eq!((lo.kind, lo.mac), (InterfaceKind::Loopback, MacAddr::ZERO));
    assert!(lo.mtu_bytes > 0 && lo.index > 0);
    assert!(matches!(
        lo.require_ethernet(),
        Err(InterfaceError::Loopback { .. })
    ));
    assert_eq!(
        lo.wait_up(Duration::ZERO).is_ok(),
        lo.state == InterfaceState::Up
    );
    assert_eq!(Watch::new(&lo).refresh(), None);
}

/// An interface is claimed once; a second claimant learns which process has it and how to get its own; afterwards it is free again.
#[test]
fn claims_exclude_each_other() {
    let interface = Interface {
        name: "a-long-name-123".to_owned(),
        // No interface has this index, so nothing else claims it.
        index: 0x7000_0000 | std::process::id(),
        mac: ME,
        mtu_bytes: 1500,
        kind: InterfaceKind::Ethernet,
        state: InterfaceState::Up,
    };
    let first = claim(&interface).expect("free");
    let refused = claim(&interface).expect_err("held").to_string();
    assert!(refused.contains("by this process already"), "{refused}");
    assert!(
        refused.contains("ip link add link a-long-name-123 name a-long-name-12a type macvlan"),
        "{refused}"
    );
    drop(first);
    drop(claim(&interface).expect("free again"));
}

/// The command names the capabilities and the running program.
#[test]
fn setcap_is_spelled_out() {
    let command = setcap_command(&[Capability::NetRaw, Capability::Bpf]);
    assert!(command.starts_with("setcap cap_net_raw,cap_bpf+ep "));
    let program = std::env::current_exe().expect("a path");
    let name = program.file_name().expect("a name").to_string_lossy();
    assert!(command.contains(&*name), "{command}");
}
