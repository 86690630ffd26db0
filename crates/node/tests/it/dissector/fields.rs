//! Fields and the info column of sound frames.

use serde_json::Value;
use tsumuji_node::DeliveryClass;
use tsumuji_wire::{Frame, parse};

use super::bench::Bench;
use super::samples::*;

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
                        ("channel", (data.channel.number() >> 16).into()),
                        ("ack_delay", data.ack_delay.into()),
                        ("ack_delay_us", u64::from(data.ack_delay) * 4),
                    ],
                );
                assert_eq!(layer["tsumuji.payload"], hex(data.payload));
                if data.is_bundle() {
                    check(layer, &[("bundle_messages", 3)]);
                    let messages = &layer["tsumuji.bundled"];
                    assert_eq!(messages[0], hex(&[7, 8, 9]));
                    assert_eq!(messages[1], hex(&[6]));
                }
                let channel = &layer["tsumuji.channel_tree"];
                let class = match data.channel.class() {
                    DeliveryClass::Ordered => 0,
                    DeliveryClass::Unordered => 1,
                    DeliveryClass::Datagram => 2,
                };
                check(
                    channel,
                    &[
                        ("channel.class", class),
                        ("channel.priority", data.channel.priority().get().into()),
                        ("channel.id", data.channel.id().into()),
                    ],
                );
            }
            Ok(Frame::Datagram(datagram)) => {
                check(
                    layer,
                    &[
                        ("source", 3),
                        ("channel.id", datagram.channel_id.into()),
                        ("incarnation", datagram.incarnation.into()),
                        ("epoch", datagram.epoch.into()),
                        ("lap", datagram.lap.into()),
                        ("key", datagram.key.into()),
                        ("payload_bytes", datagram.payload.len() as u64),
                    ],
                );
                assert_eq!(layer["tsumuji.payload"], hex(datagram.payload));
            }
            Ok(Frame::Ack(ack) | Frame::Close(ack)) => {
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
            Ok(Frame::Reset(control)) => {
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
            Err(_) if kind == 11 => {
                let sum = u32::from_le_bytes(frame[4..8].try_into().expect("4 bytes"));
                check(
                    layer,
                    &[
                        ("flags", 0),
                        ("inner_bytes", frame.len() as u64 - 8),
                        ("checksum", sum.into()),
                    ],
                );
                check(&layer["tsumuji"], &[("kind", 1), ("channel.id", 9)]);
            }
            Err(_) if kind == 12 || kind == 13 => {
                let ends = [2, 4].map(|at| u16::from_le_bytes([frame[at], frame[at + 1]]));
                let [source, destination] = ends.map(u64::from);
                check(
                    layer,
                    &[
                        ("source", source),
                        ("destination", destination),
                        ("text_bytes", frame.len() as u64 - 16),
                        ("join_nonce", 1 << 60),
                    ],
                );
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
        "data 3→5 #19 msg 4 [8800..9000)/9000 unord prio3 ch3100 ack 12 credit 40 [BUSY]",
        "data 3→5 #20 msg 4 [0..1400)/9000 ord prio1 ack 12 credit 40 [ACK_NOW, MORE, sent again]",
        "datagram 3 ch9 epoch 2 lap 4294967295 key 1000, 8 bytes",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB and 4294967291, 10–18, 26, 34, … [REFUSED]",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB [REFUSED]",
        "hello 3→5 incarnation 0000cafe pairing 1 nonce 89abcdef frames ≤ 1472 B, 256 at once, messages ≤ 4294967295 B [SUCI]",
        "welcome 3→5 incarnation 0000cafe pairing 1 nonce 89abcdef frames ≤ 1472 B, 256 at once, messages ≤ 4294967295 B [SUCI]",
        "reset 3→5 session deadbeef",
        "close 3→5 ack 4294967290 credit 100 window 65536 KiB [REFUSED]",
        "sealed key 00000bad counter 1099511627776, 50 bytes [GROUP]",
        "sealed key 00000bad counter 1099511627776, 50 bytes: data 3→5 #17 msg 4 [0..10)/9000 ord prio1 ack 12 credit 40 [ACK_NOW, MORE] [READABLE]",
        "sealed key 00000bad counter 1099511627776, 60 bytes [CONTROL]",
        "sealed key 00000bad counter 1099511627776, 32 bytes: datagram 3 ch9 epoch 2 lap 4294967295 key 1000, 8 bytes [READABLE, GROUP]",
        "handshake ask key 01020304050607ab [READABLE]",
        "handshake challenge key 01020304050607ab [READABLE]",
        "handshake first key 01020304050607ab [READABLE]",
        "handshake second key 01020304050607ab [READABLE]",
        "ack 3→5 ack 4294967290 credit 100 window 65536 KiB [NACK]",
        "ask 3→5 round 6 to send 20 frames from #77 again",
        "ask 3→5 round 6 for the window from #77 on",
        "grant 3→5 round 6 8 frames from #77 again",
        "grant 3→5 round 6 nothing, #77 is expected",
        "data 3→5 #21 msg 5 [0..30)/30 dgram prio0 ch11 ack 12 credit 40 [ACK_NOW, MORE]",
        "data 3→5 #22 msg 6 [0..10)/10 ord prio1 ack 12 credit 40 [BUNDLE, 3 messages]",
        "datagram 3 ch9 epoch 2 lap 4294967295 key 1000, 8 bytes",
        "join \"pc3 4711\"",
        "join as 5",
        "admission by 3 as 5",
        "admission refused by 3 \"it is not dead\"",
        "admission refused by 3 \"it admits nobody\" [FINAL]",
    ];
    assert_eq!(lines, expected.map(|info| format!("tsumuji\t{info}")));
}
