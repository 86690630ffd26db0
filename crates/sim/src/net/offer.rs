//! Gives the messages of simulated programs to their engines: at once, when there is room, or borrowed while they leave.

use super::Net;
use crate::host::{Borrowing, Wish};
use crate::oracle::Expected;
use crate::payload::{checksum, fill};
use crate::process::Process;
use tsumuji_proto::{Channel, NodeId, Payload, SubmitError};

impl<P: Process> Net<P> {
    /// Drops the messages that a program still wanted to send to a dead peer.
    pub(super) fn abort(&mut self, from: NodeId, to: NodeId) {
        let dropped = self.host_mut(from).wishes.remove(&to);
        self.wishes -= dropped.map_or(0, |wishes| wishes.len());
    }

    /// Submits a program's messages to `to`, as far as the queue takes them.
    pub(super) fn offer(&mut self, from: NodeId, to: NodeId) {
        loop {
            let host = &mut self.hosts[usize::from(from.0)];
            let Some((channel, wish)) = host
                .wishes
                .get_mut(&to)
                .and_then(|wishes| wishes.pop_front())
            else {
                host.wishes.remove(&to);
                return;
            };
            self.wishes -= 1;
            if matches!(wish, Wish::Borrowed { .. }) && host.borrowing.is_some() {
                return self.put_back(from, to, channel, wish);
            }
            // A refused message is made again from the same state.
            let rng = self.payload_rng.clone();
            match self.submit(from, to, channel, &wish) {
                Ok(()) => match wish {
                    Wish::Made { bytes, count } if count > 1 => {
                        self.put_back(
                            from,
                            to,
                            channel,
                            Wish::Made {
                                bytes,
                                count: count - 1,
                            },
                        );
                    }
                    _ => {}
                },
                Err(SubmitError::QueueFull { .. }) => {
                    self.payload_rng = rng;
                    return self.put_back(from, to, channel, wish);
                }
                Err(SubmitError::PeerDead { .. }) => {
                    self.put_back(from, to, channel, wish);
                    return self.abort(from, to);
                }
                Err(other) => self.fail(&format!("{from} could not submit: {other}")),
            }
        }
    }

    fn put_back(&mut self, from: NodeId, to: NodeId, channel: Channel, wish: Wish) {
        self.host_mut(from)
            .wishes
            .entry(to)
            .or_default()
            .push_front((channel, wish));
        self.wishes += 1;
    }

    fn submit(
        &mut self,
        from: NodeId,
        to: NodeId,
        channel: Channel,
        wish: &Wish,
    ) -> Result<(), SubmitError> {
        let now = self.now();
        let host = &mut self.hosts[usize::from(from.0)];
        let Some(process) = host.process.as_mut() else {
            return Ok(());
        };
        host.card.begin(now, 0);
        let (seed, body) = match wish {
            Wish::Given(bytes) => (0, bytes.clone()),
            Wish::Made { bytes, .. } | Wish::Borrowed { bytes } => {
                let (seed, mut body) = (self.payload_rng.bits(), vec![0; *bytes]);
                fill(seed, &mut body);
                (seed, body)
            }
        };
        let message = Expected {
            bytes: body.len(),
            checksum: checksum(&body),
            submitted: now,
            keep: matches!(wish, Wish::Given(_)),
        };
        // Only what is not tracked passes the queue.
        let tracked_mask = match wish {
            Wish::Made { .. } if host.config.ring_bytes > 0 => 0xf1,
            _ => 1,
        };
        let notify = seed & tracked_mask == 0;
        let id = match wish {
            Wish::Made { .. } if seed & 2 == 0 => {
                process.submit(to, channel, Payload::Shared(body.into()), notify)?
            }
            Wish::Given(_) | Wish::Made { .. } => {
                process.submit(to, channel, Payload::Copied(&body, &[]), notify)?
            }
            Wish::Borrowed { bytes } => {
                let id = process.submit_borrowed(to, channel, *bytes, notify)?;
                // Cancelled at once, at the end, or somewhere between.
                let ahead_bytes = bytes / 4 * (seed >> 1 & 7) as usize;
                host.borrowing = Some(Borrowing {
                    to,
                    id,
                    body,
                    ahead_bytes,
                });
                id
            }
        };
        let verdict = self
            .oracle
            .submitted((from, to), channel, message, (id, notify));
        self.judge(verdict);
        Ok(())
    }

    /// Ends the borrowing of a message of which enough has left, or which failed. False if there is none.
    pub(super) fn take_back(&mut self, node: NodeId) -> bool {
        let host = &mut self.hosts[usize::from(node.0)];
        let Some(process) = host.process.as_mut() else {
            return false;
        };
        let Some(borrowing) = &host.borrowing else {
            return false;
        };
        let (peer, borrowed) = (borrowing.to, borrowing.borrowed());
        let unsent = process.unsent_bytes(&borrowed);
        if matches!(unsent, Ok(Some(bytes)) if bytes > borrowing.ahead_bytes) {
            return false;
        }
        let kept = process.retain(&borrowed);
        self.check(kept, || {
            format!("{node} could not retain a borrowed message")
        });
        self.host_mut(node).borrowing = None;
        // Messages to any peer that waited to be borrowed may be now.
        let waiting: Vec<NodeId> = self.host(node).wishes.keys().copied().collect();
        for to in std::iter::once(peer).chain(waiting) {
            self.offer(node, to);
        }
        true
    }
}
