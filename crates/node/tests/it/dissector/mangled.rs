//! Frames with wrong bytes and wrong lengths.

use fastrand::Rng;
use tsumuji_wire::{Admission, DropReason, Frame, Join, parse};

use super::bench::Bench;
use super::samples::{every_kind, is_legal_seal};

/// Of mangled frames the dissector calls malformed what `parse` refuses, and never fails itself.
#[test]
fn mangled_frames_are_told() {
    let Some(bench) = Bench::new("mangled_frames_are_told") else {
        return;
    };
    let mut dice = Rng::with_seed(7);
    let mut frames = Vec::new();
    for frame in every_kind() {
        // Every length of the header, and some beyond; then bytes of the header changed.
        for bytes in 1..frame.len().min(64) {
            frames.push(frame[..bytes].to_vec());
        }
        for _ in 0..100 {
            let mut frame = frame.clone();
            for _ in 0..=dice.usize(..2) {
                let at = dice.usize(..frame.len().min(41));
                frame[at] = [0, 255, 128, dice.u8(..)][dice.usize(..4)];
            }
            frame.resize(frame.len() + [0, 0, 1, 30][dice.usize(..4)], 0); // padding
            frames.push(frame);
        }
    }
    let file = bench.capture(&frames);
    let lines = bench.lines(&file, &[]);
    assert_eq!(lines.len(), frames.len());
    let (mut refused, mut sealed, mut damaged) = (0, 0, 0);
    for (frame, line) in frames.iter().zip(&lines) {
        assert!(line.starts_with("tsumuji\t"), "{line} for {frame:x?}");
        let told = line.contains("MALFORMED") || line.contains("DROPPED: sealed");
        if frame[0] == 0x1b {
            // Nor checksums. A sound frame may hold a malformed one, but none here does.
            let sound = tsumuji_link::checked::open(frame).is_ok();
            assert_eq!(told, !sound, "{line} for {frame:x?}");
            damaged += usize::from(!sound);
            continue;
        }
        if frame[0] == 0x17 || frame[0] == 0x18 {
            // `parse` knows no envelopes. What a legal and readable one holds may be malformed in turn.
            let legal = is_legal_seal(frame);
            let shows_inner = legal && frame[0] == 0x17 && frame[1] & 1 == 1;
            assert!(told != legal || shows_inner, "{line} for {frame:x?}");
            sealed += usize::from(!legal);
            continue;
        }
        if frame[0] == 0x1c || frame[0] == 0x1d {
            // Nor frames that no engine takes.
            let sound = Join::parse(frame).is_some() || Admission::parse(frame).is_some();
            assert_eq!(told, !sound, "{line} for {frame:x?}");
            refused += usize::from(!sound);
            continue;
        }
        let expected = match parse(frame) {
            // What the engine finds out.
            Ok(Frame::Hello(hello) | Frame::Welcome(hello)) => hello.frame_bytes < 64,
            Ok(Frame::Ack(ack)) => ack.bitmap.len() > 512,
            Ok(Frame::Data(data)) => data.is_bundle() && data.bundled().is_none(),
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
    assert!(damaged > 50, "only {damaged} of {}", frames.len());
    bench.tshark(&file, &["-T", "json"]); // every field, where Lua errors would show
}
