//! What carries frames: UDP, Ethernet with several in one, captures that cut them, announcements.

use super::bench::Bench;
use super::samples::every_kind;

/// An Ethernet frame around a UDP datagram around `payload`.
fn datagram(ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0]);
    bytes.extend((28 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend(ports.0.to_be_bytes());
    bytes.extend(ports.1.to_be_bytes());
    bytes.extend((8 + payload.len() as u16).to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

/// In UDP, frames are known by themselves on any port; on the ports of the preference also those that are mangled.
#[test]
fn udp_is_recognised() {
    let Some(bench) = Bench::new("udp_is_recognised") else {
        return;
    };
    let whole = |frame: Vec<u8>| {
        let bytes = frame.len();
        (frame, bytes)
    };
    let frames = every_kind();
    let mut packets: Vec<_> = frames
        .iter()
        .map(|frame| whole(datagram((40001, 40002), frame)))
        .collect();
    let others: [&[u8]; 4] = [&[], b"\x16tls", b"\x10 short", &[0x10; 200]];
    packets.extend(others.map(|other| whole(datagram((40001, 40002), other))));
    packets.extend(frames.iter().map(|frame| {
        let mut longer = frame.clone();
        longer.push(0);
        whole(datagram((40001, 40002), &longer))
    }));
    let file = bench.pcap(&packets);
    let is_ours = |lines: Vec<String>| -> Vec<bool> {
        lines
            .iter()
            .map(|line| line.starts_with("tsumuji\t"))
            .collect()
    };
    let mut expected = vec![true; frames.len()];
    expected.resize(packets.len(), false);
    assert_eq!(is_ours(bench.lines(&file, &[])), expected);

    let mut expected = vec![true; packets.len()];
    expected[frames.len()] = false; // nothing in it
    let stated = ["-o", "tsumuji.udp_ports:1-3,40002"];
    assert_eq!(is_ours(bench.lines(&file, &stated)), expected);
}

/// An Ethernet frame around frames of ours.
fn ethernet(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5];
    for frame in frames {
        bytes.extend((frame.len() as u16).to_le_bytes());
        bytes.extend_from_slice(frame);
    }
    bytes
}

/// Frames that share an Ethernet frame are each shown, padding behind them as such, and a length beyond the end is told.
#[test]
fn joined_frames_are_shown() {
    let Some(bench) = Bench::new("joined_frames_are_shown") else {
        return;
    };
    let frames = every_kind();
    let (reset, close) = (&frames[8][..], &frames[9][..]);
    let mut padded = ethernet(&[reset, close]);
    padded.resize(60, 0);
    let mut beyond = ethernet(&[reset, close]);
    beyond.truncate(beyond.len() - 1);
    let packets = [padded, beyond].map(|frame| {
        let bytes = frame.len();
        (frame, bytes)
    });
    let file = bench.pcap(&packets);
    let fields = ["-e", "tsumuji.framed_bytes", "-e", "tsumuji.padding"];
    let lines = bench.lines(&file, &fields);
    let shown = "tsumuji\treset 3→5 session deadbeef | ";
    assert_eq!(
        lines,
        [
            format!(
                "{shown}close 3→5 ack 4294967290 credit 100 window 65536 KiB [REFUSED]\t12,28\t{}",
                "00".repeat(2)
            ),
            format!("{shown}MALFORMED: a length beyond the end\t12,28\t"),
        ]
    );
}

/// A capture that cuts frames is no fault of theirs: they are not malformed, and what is there is shown.
#[test]
fn cut_captures_are_told() {
    let Some(bench) = Bench::new("cut_captures_are_told") else {
        return;
    };
    let mut packets = Vec::new();
    for frame in every_kind() {
        let whole = ethernet(&[&frame]);
        for captured in 15..whole.len().min(90) {
            packets.push((whole[..captured].to_vec(), whole.len()));
        }
    }
    let file = bench.pcap(&packets);
    let lines = bench.lines(&file, &["-e", "tsumuji.cut"]);
    assert_eq!(lines.len(), packets.len());
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        assert!(
            columns[0] == "tsumuji" && !line.contains("MALFORMED"),
            "{line}"
        );
        assert!(!columns[2].is_empty(), "{line}");
    }
    bench.tshark(&file, &["-T", "json"]);
}

/// What a raw link sends to make itself known is no frame, and is named.
#[test]
fn announcements_are_named() {
    let Some(bench) = Bench::new("announcements_are_named") else {
        return;
    };
    let me = tsumuji_link::ether::MacAddr([2, 0, 0, 0, 0, 1]);
    let frame = tsumuji_link::ether::announcement(me).to_vec();
    let file = bench.pcap(&[(frame, 60)]);
    assert_eq!(
        bench.lines(&file, &[]),
        ["tsumuji\tannouncement to the switch"]
    );
}
