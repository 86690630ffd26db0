//! What the simulated programs wish to send, on its way into their engines: at once, when there is room, or piece by piece.

use super::Net;
use crate::host::{Feeding, Wish};
use crate::machine::Machine;
use crate::oracle::Expected;
use crate::payload::{checksum, fill};
use tsumuji_proto::{Lane, NodeId, Payload, SubmitError};

impl<E: Machine> Net<E> {
    /// A program drops what it still wished to send to a dead peer.
    pub(super) fn give_up(&mut self, from: NodeId, to: NodeId) {
        for (_, wish) in self.host_mut(from).wishes.remove(&to).unwrap_or_default() {
            self.wishes -= 1;
            self.refused_messages += match wish {
                Wish::Given(_) | Wish::Fed { .. } => 1,
                Wish::Made { count, .. } => count,
            };
        }
    }

    /// Submits what a program wishes to send to `to`, as far as the queue takes it.
    pub(super) fn offer(&mut self, from: NodeId, to: NodeId) {
        loop {
            let host = &mut self.hosts[usize::from(from.0)];
            let Some((lane, wish)) = host
                .wishes
                .get_mut(&to)
                .and_then(|wishes| wishes.pop_front())
            else {
                host.wishes.remove(&to);
                return;
            };
            self.wishes -= 1;
            if matches!(wish, Wish::Fed { .. }) && host.feeding.contains_key(&to) {
                return self.put_back(from, to, lane, wish);
            }
            // Kept aside: a refused message is made anew from the same state.
            let rng = self.payload_rng.clone();
            match self.submit(from, to, lane, &wish) {
                Ok(()) => match wish {
                    Wish::Made { bytes, count } if count > 1 => {
                        self.put_back(
                            from,
                            to,
                            lane,
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
                    return self.put_back(from, to, lane, wish);
                }
                Err(SubmitError::PeerDead { .. }) => {
                    self.put_back(from, to, lane, wish);
                    return self.give_up(from, to);
                }
                Err(other) => self.fail(&format!("{from} could not submit: {other}")),
            }
        }
    }

    fn put_back(&mut self, from: NodeId, to: NodeId, lane: Lane, wish: Wish) {
        self.host_mut(from)
            .wishes
            .entry(to)
            .or_default()
            .push_front((lane, wish));
        self.wishes += 1;
    }

    fn submit(
        &mut self,
        from: NodeId,
        to: NodeId,
        lane: Lane,
        wish: &Wish,
    ) -> Result<(), SubmitError> {
        let now = self.now();
        let host = &mut self.hosts[usize::from(from.0)];
        let Some(engine) = host.engine.as_mut() else {
            return Ok(());
        };
        let (id, message, notify) = match wish {
            Wish::Given(bytes) => {
                let sum = checksum(bytes);
                let message = Expected {
                    bytes: bytes.len(),
                    checksum: sum,
                    submitted: now,
                    keep: true,
                };
                (
                    engine.submit(now, to, lane, Payload::Copied(bytes), true)?,
                    message,
                    true,
                )
            }
            Wish::Made { bytes, .. } => {
                let seed = self.payload_rng.bits();
                let mut body = engine.buffer(*bytes);
                body.resize(*bytes, 0);
                fill(seed, &mut body);
                let sum = checksum(&body);
                let message = Expected {
                    bytes: *bytes,
                    checksum: sum,
                    submitted: now,
                    keep: false,
                };
                let notify = seed & 1 == 0;
                let id = if seed & 2 == 0 {
                    engine.submit(now, to, lane, Payload::Owned(body), notify)?
                } else {
                    let id = engine.submit(now, to, lane, Payload::Copied(&body), notify);
                    engine.recycle(body);
                    id?
                };
                (id, message, notify)
            }
            Wish::Fed { bytes } => {
                let seed = self.payload_rng.bits();
                let notify = seed & 1 == 0;
                let id = engine.submit_stream(to, lane, *bytes, notify)?;
                let mut body = vec![0; *bytes];
                fill(seed, &mut body);
                let message = Expected {
                    bytes: *bytes,
                    checksum: checksum(&body),
                    submitted: now,
                    keep: false,
                };
                if *bytes > 0 {
                    host.feeding.insert(to, Feeding { body, taken: 0 });
                }
                (id, message, notify)
            }
        };
        let verdict = self
            .oracle
            .submitted((from, to), lane, message, (id, notify));
        self.judge(verdict);
        Ok(())
    }

    /// Gives the engine what it wants of messages that are handed over piece by piece. False if it wants nothing.
    pub(super) fn feed_hungry(&mut self, node: NodeId) -> bool {
        let host = &mut self.hosts[usize::from(node.0)];
        let Some(engine) = host.engine.as_mut() else {
            return false;
        };
        let hungry = host.feeding.keys().find(|peer| engine.is_hungry(**peer));
        let Some(peer) = hungry.copied() else {
            return false;
        };
        let Some(feeding) = host.feeding.get_mut(&peer) else {
            return false;
        };
        match engine.feed(peer, &feeding.body[feeding.taken..]) {
            Ok(0) => self.fail(&format!("{node} is hungry for {peer} and takes nothing")),
            Ok(bytes) => {
                feeding.taken += bytes;
                if feeding.taken < feeding.body.len() {
                    return true;
                }
            }
            // The session it was begun in is over, whatever the peer is now.
            Err(SubmitError::PeerDead { .. }) => {}
            Err(other) => self.fail(&format!("{node} could not feed {peer}: {other}")),
        }
        self.host_mut(node).feeding.remove(&peer);
        self.offer(node, peer);
        true
    }
}
