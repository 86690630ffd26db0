//! Any bytes parse to a frame or a reason; a frame written again parses to itself.

use tsumuji_wire::{Frame, bundle, parse};

/// The target.
pub fn frame(bytes: &[u8]) {
    let Ok(frame) = parse(bytes) else {
        return;
    };
    if let Frame::Data(data) = &frame
        && let Some(count) = bundle::count(data.payload)
    {
        let lengths = bundle::messages(data.payload).map(<[u8]>::len);
        assert_eq!(lengths.clone().count(), count);
        assert_eq!(
            lengths.sum::<usize>() + count * bundle::PREFIX_BYTES,
            data.payload.len()
        );
    }
    let mut slot = vec![0; bytes.len()];
    let written = match &frame {
        Frame::Data(data) => data.write(&mut slot),
        Frame::Datagram(datagram) => datagram.write(&mut slot),
        Frame::Ack(ack) => ack.write(&mut slot),
        Frame::Hello(hello) => hello.write_hello(&mut slot),
        Frame::Welcome(welcome) => welcome.write_welcome(&mut slot),
        Frame::Reset(reset) => reset.write_reset(&mut slot),
        Frame::Close(close) => close.write_close(&mut slot),
        Frame::Ask(ask) => ask.write_ask(&mut slot),
        Frame::Grant(grant) => grant.write_grant(&mut slot),
    };
    let written = written.expect("what was parsed fits where it was");
    let again = parse(&slot[..written]).expect("what was written parses");
    assert_eq!(format!("{frame:?}"), format!("{again:?}"));
}
