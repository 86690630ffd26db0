//! The Wireshark dissector (`tools/wireshark/tsumuji.lua`) against the writers of `wire`: tshark must show what was written,
//! call malformed what `wire::parse` refuses, and never end in a Lua error.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tsumuji_link::capture::Capture;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{DeliveryClass, Lane, Link, LinkAddr, NodeId, Priority};
use tsumuji_wire::report::{FLOW_RECORD_BYTES, NO_MORE, state};
use tsumuji_wire::{Ack, Control, Data, DropReason, Frame, Hello, Permit, Share, flags, parse};
use tsumuji_wire::{FlowRecord, Inquiry, Report};

const BACKLOG_FRAMES: usize = 8; // fewer than any ring holds

/// A folder that goes away with the test, and tshark without the user's own plugins and preferences.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    /// `None`, and says why, where there is no tshark with Lua.
    fn new(test: &str) -> Option<Self> {
        let version = Command::new("tshark").arg("--version").output();
        match version {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("with Lua") => {}
            Ok(_) => {
                eprintln!("{test}: skipped: this tshark was built without Lua");
                return None;
            }
            Err(error) => {
                eprintln!(
                    "{test}: skipped: tshark does not run ({error}); `scripts/setup.sh test` installs it"
                );
                return None;
            }
        }
        let folder =
            std::env::temp_dir().join(format!("tsumuji-dissector-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        Some(Self { folder })
    }

    fn tshark(&self, file: &Path, arguments: &[&str]) -> String {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/tsumuji.lua");
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new("tshark")
            .env("WIRESHARK_CONFIG_DIR", self.folder.join("config"))
            .args(["-n", "-X"])
            .arg(format!("lua_script:{}", script.display()))
            .arg("-r")
            .arg(file)
            .args(arguments)
            .output()
            .expect("tshark");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{stderr}");
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        for text in [&stderr, stdout.as_str()] {
            let place = text.find("Lua Error").or(text.find("lua: "));
            if let Some(place) = place {
                panic!("{}", text[place..].lines().next().unwrap_or_default());
            }
        }
        stdout
    }

    fn lines(&self, file: &Path, arguments: &[&str]) -> Vec<String> {
        let mut all = vec![
            "-T",
            "fields",
            "-e",
            "_ws.col.Protocol",
            "-e",
            "_ws.col.Info",
        ];
        all.extend(arguments);
        self.tshark(file, &all).lines().map(str::to_owned).collect()
    }

    /// Each frame's layer of ours; repeated fields are arrays.
    fn layers(&self, file: &Path) -> Vec<Value> {
        let text = self.tshark(file, &["-T", "json", "--no-duplicate-keys"]);
        let frames: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        frames
            .into_iter()
            .map(|frame| frame["_source"]["layers"]["tsumuji"].clone())
            .collect()
    }

    /// Records frames as a node with `TSUMUJI_CAPTURE` does.
    fn capture(&self, frames: &[Vec<u8>]) -> PathBuf {
        let path = self.folder.join("trace.pcapng");
        let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
        let mut to = Shm::attach(&job, 1).expect("attach");
        let from = Shm::attach(&job, 0).expect("attach");
        let mut link = Capture::create(from, &path).expect("create");
        for some in frames.chunks(BACKLOG_FRAMES) {
            for frame in some {
                let sent = link.send_with(LinkAddr::Local(1), |slot| {
                    slot[..frame.len()].copy_from_slice(frame);
                    frame.len()
                });
                assert!(sent.expect("send"));
            }
            link.flush().expect("flush");
            let mut received = 0;
            while received < some.len() {
                received += to.recv_burst(64, |_, _| {}).expect("receive");
            }
        }
        link.finish().expect("written");
        path
    }

    /// A classic capture file of Ethernet frames, each with the bytes it had on the wire.
    fn pcap(&self, frames: &[(Vec<u8>, usize)]) -> PathBuf {
        let mut bytes = Vec::new();
        let words = |bytes: &mut Vec<u8>, words: &[u32]| {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        words(&mut bytes, &[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65535, 1]);
        for (frame, wire_bytes) in frames {
            words(&mut bytes, &[0, 0, frame.len() as u32, *wire_bytes as u32]);
            bytes.extend(frame);
        }
        let path = self.folder.join("trace.pcap");
        std::fs::write(&path, bytes).expect("write");
        path
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

const SOURCE: NodeId = NodeId(3);
const DESTINATION: NodeId = NodeId(5);

fn data(payload: &[u8]) -> Data<'_> {
    Data {
        source: SOURCE,
        destination: DESTINATION,
        flags: flags::ACK_NOW | flags::MORE,
        session: 0xdead_beef,
        number: 17,
        ack: 12,
        credit: 40,
        message: 4,
        offset: 0,
        length: 9000,
        floor_delta: 20,
        lane: Lane::new(DeliveryClass::Ordered, Priority::new(1).expect("legal"), 0),
        ack_delay: 7,
        payload,
    }
}

fn ack(bitmap: &[u8]) -> Ack<'_> {
    Ack {
        source: SOURCE,
        destination: DESTINATION,
        flags: flags::REFUSED,
        session: 0xdead_beef,
        ack: u32::MAX - 5, // so that the numbers wrap
        credit: 100,
        window_kib: 65536,
        ack_delay_us: 50,
        bitmap,
    }
}

fn share(payload: &[u8]) -> Share<'_> {
    Share {
        source: SOURCE,
        incarnation: 0x0102_0304,
        port: 9,
        epoch: 2,
        lap: u32::MAX,
        start: 1000,
        payload,
    }
}

const HELLO: Hello = Hello {
    source: SOURCE,
    destination: DESTINATION,
    flags: flags::SUCI,
    incarnation: 0xcafe,
    pairing: 1,
    nonce: 0x89ab_cdef,
    frame_bytes: 1472,
    credit: 256,
    message_limit: u32::MAX,
};

const CONTROL: Control = Control {
    source: SOURCE,
    destination: DESTINATION,
    session: 0xdead_beef,
};

/// Ask, or grant, of no frames.
const PERMIT: Permit = Permit {
    source: SOURCE,
    destination: DESTINATION,
    session: 0xdead_beef,
    round: 6,
    number: 77,
    frames: 0,
};

fn written(write: impl FnOnce(&mut [u8]) -> Option<usize>) -> Vec<u8> {
    let mut slot = vec![0; 2048];
    let bytes = write(&mut slot).expect("fits");
    slot.truncate(bytes);
    slot
}

/// Kind 7: header, inner frame, tag.
fn sealed(flags: u8, inner: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x17, flags];
    frame.extend((inner.len() as u16).to_le_bytes());
    frame.extend(0x0badu32.to_le_bytes());
    frame.extend((1_u64 << 40).to_le_bytes());
    frame.extend(inner);
    frame.extend([0xee; 16]);
    frame
}

/// Bytes of each step's body (R-62), and where its parts end.
const STEPS: [(&str, &[(&str, usize)]); 4] = [
    ("ask", &[("asker_nonce", 8), ("zeros", 40)]),
    ("challenge", &[("asker_nonce", 8), ("cookie", 40)]),
    (
        "first",
        &[
            ("asker_nonce", 8),
            ("cookie", 40),
            ("ephemeral", 72),
            ("noise_key_id", 92),
        ],
    ),
    (
        "second",
        &[("asker_nonce", 8), ("ephemeral", 40), ("noise_key_id", 60)],
    ),
];

fn body_bytes(step: usize) -> Option<usize> {
    let (_, parts) = STEPS.get(step)?;
    parts.last().map(|(_, end)| *end)
}

/// Kind 8: header, body, proof.
fn handshake(step: u8) -> Vec<u8> {
    let bytes = body_bytes(step.into()).expect("a step") as u8;
    let header = [0x18, 1, bytes, 0, step, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 0xab];
    let body: Vec<u8> = (0..bytes).collect();
    [&header[..], &body, &[0xcc; 32]].concat()
}

/// R-61, R-62 and R-65, read anew: what a seal takes for a legal frame of its own.
fn is_legal_seal(frame: &[u8]) -> bool {
    let stated = |at: usize| usize::from(u16::from_le_bytes([frame[at], frame[at + 1]]));
    if frame.len() < 16 {
        return false;
    }
    if frame[0] == 0x17 {
        let flags_known = matches!(frame[1], 0..=4);
        return flags_known && stated(2) > 0 && frame.len() >= 16 + stated(2) + 16;
    }
    frame[1] <= 1
        && frame[5..8] == [0; 3]
        && body_bytes(frame[4].into()) == Some(stated(2))
        && frame.len() >= 16 + stated(2) + 32
}

const INQUIRY: Inquiry = Inquiry {
    source: SOURCE,
    destination: DESTINATION,
    session: 0xdead_beef,
    nonce: 17,
    first: NodeId(4),
    most: 30,
};

fn report(payload: &[u8]) -> Report<'_> {
    Report {
        source: SOURCE,
        destination: DESTINATION,
        session: 0xdead_beef,
        nonce: 17,
        next: if payload.is_empty() {
            NO_MORE
        } else {
            NodeId(12)
        },
        payload,
    }
}

fn record(peer: u16) -> FlowRecord {
    FlowRecord {
        peer,
        state: state::UP,
        incoming_backlog: true,
        rtt_ns: 1,
        rttvar_ns: 2,
        in_flight_frames: 3,
        window_kib: 4,
        queued_messages: 5,
        queued_bytes: 1 << 40,
        retransmitted_frames: 7,
        credit_frames: 8,
        superseded_messages: 9,
        late_messages: 10,
        lost_messages: 11,
        granted_frames: 12,
        incoming_window_frames: 13,
        incoming_bytes: u64::from(peer) << 33,
    }
}

fn records(peers: [u16; 2]) -> Vec<u8> {
    let written = |peer| {
        let mut room = [0; FLOW_RECORD_BYTES];
        record(peer).write(&mut room).expect("fits");
        room
    };
    peers.map(written).concat()
}

/// One of every kind, with and without what is optional.
fn every_kind() -> Vec<Vec<u8>> {
    let bitmap: Vec<u8> = [0x02, 0, 0xff].into_iter().chain([1; 20]).collect();
    vec![
        written(|slot| data(&[1; 1400]).write(slot)),
        written(|slot| {
            let mut data = data(&[2; 200]);
            (data.number, data.offset) = (19, 8800);
            (data.flags, data.floor_delta) = (flags::BUSY, u16::MAX);
            data.lane = Lane::new(DeliveryClass::Unordered, Priority::BULK, 31);
            data.write(slot)
        }),
        // The content of the first again.
        written(|slot| {
            let mut data = data(&[1; 1400]);
            data.number = 20;
            data.write(slot)
        }),
        written(|slot| share(&1.5_f64.to_le_bytes()).write(slot)),
        written(|slot| ack(&bitmap).write(slot)),
        written(|slot| ack(&[]).write(slot)),
        written(|slot| HELLO.write_hello(slot)),
        written(|slot| HELLO.write_welcome(slot)),
        written(|slot| CONTROL.write_reset(slot)),
        written(|slot| CONTROL.write_close(slot)),
        sealed(2, &[7; 50]),
        sealed(1, &written(|slot| data(&[3; 10]).write(slot))),
        sealed(4, &[8; 60]),
        sealed(3, &written(|slot| share(&[5; 8]).write(slot))),
        handshake(0),
        handshake(1),
        handshake(2),
        handshake(3),
        written(|slot| {
            let mut ack = ack(&[]);
            ack.flags = flags::NACK;
            ack.write(slot)
        }),
        written(|slot| {
            let ask = Permit {
                frames: 20,
                ..PERMIT
            };
            ask.write_ask(slot)
        }),
        written(|slot| PERMIT.write_ask(slot)),
        written(|slot| {
            let grant = Permit {
                frames: 8,
                ..PERMIT
            };
            grant.write_grant(slot)
        }),
        written(|slot| PERMIT.write_grant(slot)),
        written(|slot| {
            let mut data = data(&[4; 30]);
            (data.number, data.message, data.length) = (21, 5, 30);
            data.lane = Lane::latest(11);
            data.write(slot)
        }),
        written(|slot| INQUIRY.write(slot)),
        written(|slot| report(&records([6, 9])).write(slot)),
        written(|slot| report(&[]).write(slot)),
    ]
}

/// A number that tshark printed, decimal or hexadecimal.
fn number(layer: &Value, field: &str) -> u64 {
    let text = layer[format!("tsumuji.{field}")]
        .as_str()
        .unwrap_or_else(|| panic!("no {field} in {layer}"));
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{field} is {text}"))
}

fn check(layer: &Value, fields: &[(&str, u64)]) {
    for (field, expected) in fields {
        assert_eq!(number(layer, field), *expected, "{field} of {layer}");
    }
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.join(":")
}

fn bits(layer: &Value, group: &str) -> Vec<String> {
    let tree = layer[format!("tsumuji.{group}_tree")].as_object();
    let set = tree
        .into_iter()
        .flatten()
        .filter(|(_, value)| *value == "1");
    set.filter_map(|(name, _)| name.rsplit('.').next().map(str::to_owned))
        .collect()
}

/// Every field of every kind reads as it was written, the bitmap as numbers.
#[test]
fn fields_read_as_written() {
    let Some(bench) = Bench::new("fields_read_as_written") else {
        return;
    };
    let frames = every_kind();
    let file = bench.capture(&frames);
    let layers = bench.layers(&file);
    assert_eq!(layers.len(), frames.len());
    let ends = [("source", 3), ("destination", 5)];
    for (frame, layer) in frames.iter().zip(&layers) {
        let kind = u64::from(frame[0] & 0xf);
        check(layer, &[("version", 1), ("kind", kind)]);
        match parse(frame) {
            Ok(Frame::Data(data)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("flags", data.flags.into()),
                        ("payload_bytes", data.payload.len() as u64),
                        ("session", data.session.into()),
                        ("number", data.number.into()),
                        ("ack", data.ack.into()),
                        ("credit", data.credit.into()),
                        ("message", data.message.into()),
                        ("offset", data.offset.into()),
                        ("length", data.length.into()),
                        ("floor_delta", data.floor_delta.into()),
                        ("lane", data.lane.0.into()),
                        ("ack_delay", data.ack_delay.into()),
                        ("ack_delay_us", u64::from(data.ack_delay) * 4),
                    ],
                );
                assert_eq!(layer["tsumuji.payload"], hex(data.payload));
                let lane = &layer["tsumuji.lane_tree"];
                let class = u64::from(data.lane.class() != DeliveryClass::Ordered);
                if class == 1 {
                    check(lane, &[("lane.latest", u64::from(data.lane.is_latest()))]);
                }
                check(
                    lane,
                    &[
                        ("lane.unordered", class),
                        ("lane.priority", data.lane.priority().get().into()),
                        ("lane.channel", data.lane.channel().into()),
                    ],
                );
            }
            Ok(Frame::Share(share)) => {
                check(
                    layer,
                    &[
                        ("source", 3),
                        ("port", share.port.into()),
                        ("incarnation", share.incarnation.into()),
                        ("epoch", share.epoch.into()),
                        ("lap", share.lap.into()),
                        ("start", share.start.into()),
                        ("payload_bytes", share.payload.len() as u64),
                    ],
                );
                assert_eq!(layer["tsumuji.payload"], hex(share.payload));
            }
            Ok(Frame::Ack(ack)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("session", ack.session.into()),
                        ("ack", ack.ack.into()),
                        ("credit", ack.credit.into()),
                        ("window_kib", ack.window_kib.into()),
                        ("ack_delay_us", ack.ack_delay_us.into()),
                        ("bitmap_bytes", ack.bitmap.len() as u64),
                    ],
                );
                let expected: Vec<String> = (0..ack.bitmap.len() * 8)
                    .filter(|i| ack.bitmap[i / 8] >> (i % 8) & 1 == 1)
                    .map(|i| ack.ack.wrapping_add(i as u32).to_string())
                    .collect();
                let arrived = &layer["tsumuji.arrived_count_tree"]["tsumuji.arrived"];
                let arrived = arrived.as_array().cloned().unwrap_or_default();
                assert_eq!(arrived, expected);
            }
            Ok(Frame::Hello(hello) | Frame::Welcome(hello)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("incarnation", hello.incarnation.into()),
                        ("pairing", hello.pairing.into()),
                        ("nonce", hello.nonce.into()),
                        ("frame_bytes", hello.frame_bytes.into()),
                        ("first_credit", hello.credit.into()),
                        ("message_limit", hello.message_limit.into()),
                    ],
                );
            }
            Ok(Frame::Reset(control) | Frame::Close(control)) => {
                check(layer, &ends);
                check(layer, &[("session", control.session.into())]);
            }
            Ok(Frame::Ask(permit)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("session", permit.session.into()),
                        ("round", permit.round.into()),
                        ("first", permit.number.into()),
                        ("again_frames", permit.frames.into()),
                    ],
                );
            }
            Ok(Frame::Grant(permit)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("session", permit.session.into()),
                        ("round", permit.round.into()),
                        ("expected", permit.number.into()),
                        ("granted_frames", permit.frames.into()),
                    ],
                );
            }
            Ok(Frame::Inquiry(inquiry)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("session", inquiry.session.into()),
                        ("inquiry_nonce", inquiry.nonce.into()),
                        ("first_peer", inquiry.first.0.into()),
                        ("most", inquiry.most.into()),
                    ],
                );
            }
            Ok(Frame::Report(report)) => {
                check(layer, &ends);
                check(
                    layer,
                    &[
                        ("session", report.session.into()),
                        ("inquiry_nonce", report.nonce.into()),
                        ("next_peer", report.next.0.into()),
                        ("records_bytes", report.payload.len() as u64),
                    ],
                );
                let told: Vec<FlowRecord> = report.records().collect();
                let trees = layer["tsumuji.flow_tree"].as_array();
                let trees: Vec<&Value> = trees.into_iter().flatten().collect();
                assert_eq!(trees.len(), told.len());
                for (tree, flow) in trees.into_iter().zip(told) {
                    check(
                        tree,
                        &[
                            ("flow.peer", flow.peer.into()),
                            ("flow.state", flow.state.into()),
                            ("flow.incoming_backlog", 1),
                            ("flow.rtt_ns", 1),
                            ("flow.rttvar_ns", 2),
                            ("flow.in_flight_frames", 3),
                            ("flow.window_kib", 4),
                            ("flow.queued_messages", 5),
                            ("flow.queued_bytes", flow.queued_bytes),
                            ("flow.retransmitted_frames", 7),
                            ("flow.credit_frames", 8),
                            ("flow.superseded_messages", 9),
                            ("flow.late_messages", 10),
                            ("flow.lost_messages", 11),
                            ("flow.granted_frames", 12),
                            ("flow.incoming_window_frames", 13),
                            ("flow.incoming_bytes", flow.incoming_bytes),
                        ],
                    );
                }
            }
            Err(_) if kind == 7 => {
                check(
                    layer,
                    &[
                        ("flags", frame[1].into()),
                        ("inner_bytes", frame.len() as u64 - 32),
                        ("key_id", 0xbad),
                        ("counter", 1 << 40),
                    ],
                );
                assert_eq!(layer["tsumuji.tag"], hex(&[0xee; 16]));
            }
            Err(_) => {
                let (_, parts) = STEPS[usize::from(frame[4])];
                let bytes = frame.len() - 16 - 32;
                check(
                    layer,
                    &[
                        ("flags", 1),
                        ("body_bytes", bytes as u64),
                        ("step", frame[4].into()),
                    ],
                );
                let is = |at: &Value, field: &str, range: std::ops::Range<usize>| {
                    let shown = &at[format!("tsumuji.{field}")];
                    assert_eq!(*shown, hex(&frame[range]), "{field} of {layer}");
                };
                is(layer, "reserved", 5..8);
                is(layer, "key_print", 8..16);
                is(layer, "body", 16..16 + bytes);
                is(layer, "proof", 16 + bytes..frame.len());
                let mut begin = 0;
                for (part, end) in parts {
                    is(&layer["tsumuji.body_tree"], part, 16 + begin..16 + end);
                    begin = *end;
                }
            }
        }
    }
    assert_eq!(bits(&layers[0], "flags"), ["ack_now", "more"]);
    assert_eq!(bits(&layers[1], "flags"), ["busy"]);
    assert_eq!(bits(&layers[4], "flags"), ["refused"]);
    assert_eq!(bits(&layers[6], "flags"), ["suci"]);
    assert_eq!(bits(&layers[18], "flags"), ["nack"]);
    assert_eq!(layers[0]["tsumuji.floor"], "4294967293"); // 17 − 20
    assert!(layers[1]["tsumuji.floor"].is_null()); // 65535 tells only that it is far away
    assert_eq!(layers[2]["tsumuji.first_sent_in"], "1");
    assert!(layers[1]["tsumuji.first_sent_in"].is_null());
    assert_eq!(layers[10]["tsumuji.inner"], hex(&[7; 50]));
    assert_eq!(layers[10]["tsumuji.tag"], hex(&[0xee; 16]));
    check(&layers[11]["tsumuji"], &[("kind", 0), ("number", 17)]); // readable: dissected in its envelope
}

/// The info column tells what a frame does, in one line.
#[test]
fn info_column_reads_well() {
    let Some(bench) = Bench::new("info_column_reads_well") else {
        return;
    };
    let file = bench.capture(&every_kind());
    let lines = bench.lines(&file, &[]);
    let expected = [
        "data 3→5 #17 msg 4 [0..1400)/9000 ord prio1 ack 12 credit 40 [ACK_NOW, MORE]",
        "data 3→5 #19 msg 4 [8800..9000)/9000 unord prio3 ch15 ack 12 credit 40 [BUSY]",
        "data 3→5 #20 msg 4 [0..1400)/9000 ord prio1 ack 12 credit 40 [ACK_NOW, MORE, sent again]",
        "share 3 port 9 epoch 2 lap 4294967295 start 1000, 8 bytes",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB and 4294967291, 10–18, 26, 34, … [REFUSED]",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB [REFUSED]",
        "hello 3→5 life 0000cafe pairing 1 nonce 89abcdef frames ≤ 1472 B, 256 at once, messages ≤ 4294967295 B [SUCI]",
        "welcome 3→5 life 0000cafe pairing 1 nonce 89abcdef frames ≤ 1472 B, 256 at once, messages ≤ 4294967295 B [SUCI]",
        "reset 3→5 session deadbeef",
        "close 3→5 session deadbeef",
        "sealed key 00000bad counter 1099511627776, 50 bytes [GROUP]",
        "sealed key 00000bad counter 1099511627776, 50 bytes: data 3→5 #17 msg 4 [0..10)/9000 ord prio1 ack 12 credit 40 [ACK_NOW, MORE] [READABLE]",
        "sealed key 00000bad counter 1099511627776, 60 bytes [CONTROL]",
        "sealed key 00000bad counter 1099511627776, 32 bytes: share 3 port 9 epoch 2 lap 4294967295 start 1000, 8 bytes [READABLE, GROUP]",
        "handshake ask key 01020304050607ab [READABLE]",
        "handshake challenge key 01020304050607ab [READABLE]",
        "handshake first key 01020304050607ab [READABLE]",
        "handshake second key 01020304050607ab [READABLE]",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB [NACK]",
        "ask 3→5 round 6 to send 20 frames from #77 again",
        "ask 3→5 round 6 for the window from #77 on",
        "grant 3→5 round 6 8 frames from #77 again",
        "grant 3→5 round 6 nothing, #77 is expected",
        "data 3→5 #21 msg 5 [0..30)/30 latest prio2 ch11 ack 12 credit 40 [ACK_NOW, MORE]",
        "inquiry 3→5 for 30 flows from peer 4 on",
        "report 3→5, 2 flows, more from peer 12 on",
        "report 3→5, 0 flows",
    ];
    assert_eq!(lines, expected.map(|info| format!("tsumuji\t{info}")));
}

/// Of mangled frames the dissector calls malformed what `parse` refuses, and never fails itself.
#[test]
fn mangled_frames_are_told() {
    let Some(bench) = Bench::new("mangled_frames_are_told") else {
        return;
    };
    let mut state = 7_u64;
    let mut dice = move |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let mut frames = Vec::new();
    for frame in every_kind() {
        // Every length of the header, and some beyond; then bytes of the header changed.
        for bytes in 1..frame.len().min(64) {
            frames.push(frame[..bytes].to_vec());
        }
        for _ in 0..100 {
            let mut frame = frame.clone();
            for _ in 0..=dice(2) {
                let at = dice(frame.len().min(41));
                frame[at] = [0, 255, 128, dice(256) as u8][dice(4)];
            }
            frame.resize(frame.len() + [0, 0, 1, 30][dice(4)], 0); // padding
            frames.push(frame);
        }
    }
    let file = bench.capture(&frames);
    let lines = bench.lines(&file, &[]);
    assert_eq!(lines.len(), frames.len());
    let (mut refused, mut sealed) = (0, 0);
    for (frame, line) in frames.iter().zip(&lines) {
        assert!(line.starts_with("tsumuji\t"), "{line} for {frame:x?}");
        let told = line.contains("MALFORMED") || line.contains("DROPPED: sealed");
        if frame[0] == 0x17 || frame[0] == 0x18 {
            // `parse` knows no envelopes. What a legal and readable one holds may be malformed in turn.
            let legal = is_legal_seal(frame);
            let shows_inner = legal && frame[0] == 0x17 && frame[1] & 1 == 1;
            assert!(told != legal || shows_inner, "{line} for {frame:x?}");
            sealed += usize::from(!legal);
            continue;
        }
        let expected = match parse(frame) {
            // What the engine finds out (R-4, R-5).
            Ok(Frame::Hello(hello) | Frame::Welcome(hello)) => hello.frame_bytes < 64,
            Ok(Frame::Ack(ack)) => ack.bitmap.len() > 512,
            Ok(_) => false,
            Err(DropReason::Sealed) => {
                assert!(
                    line.contains("sealed") || line.contains("MALFORMED"),
                    "{line}"
                );
                true
            }
            Err(_) => true,
        };
        assert_eq!(told, expected, "{line} for {frame:x?}");
        refused += usize::from(expected);
    }
    assert!(refused > 300, "only {refused} of {}", frames.len());
    assert!(sealed > 100, "only {sealed} of {}", frames.len());
    bench.tshark(&file, &["-T", "json"]); // every field, where Lua errors would show
}

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
                "{shown}close 3→5 session deadbeef\t12,12\t{}",
                "00".repeat(18)
            ),
            format!("{shown}MALFORMED: a length beyond the end\t12,12\t"),
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
