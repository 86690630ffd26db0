//! What the simulated programs wish to send, on its way into their engines: at once, when there is room, or
//! lent while it leaves.

use super::Net;
use crate::host::{Lending, Wish};
use crate::oracle::Expected;
use crate::payload::{checksum, fill};
use crate::process::Process;
use tsumuji_proto::{Lane, NodeId, Payload, SubmitError};

impl<P: Process> Net<P> {
    /// A program drops what it still wished to send to a dead peer.
    pub(super) fn give_up(&mut self, from: NodeId, to: NodeId) {
        for (_, wish) in self.host_mut(from).wishes.remove(&to).unwrap_or_default() {
            self.wishes -= 1;
            self.refused_messages += match wish {
                Wish::Given(_) | Wish::Lent { .. } => 1,
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
            if matches!(wish, Wish::Lent { .. }) && host.lending.is_some() {
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
        let Some(process) = host.process.as_mut() else {
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
                    process.submit(to, lane, Payload::Copied(bytes), true)?,
                    message,
                    true,
                )
            }
            Wish::Made { bytes, .. } => {
                let seed = self.payload_rng.bits();
                let mut body = process.buffer(*bytes);
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
                let id = if seed & 6 == 0 {
                    process.submit(to, lane, Payload::Owned(body), notify)?
                } else if seed & 2 == 0 {
                    process.submit(to, lane, Payload::Shared(body.into()), notify)?
                } else {
                    let id = process.submit(to, lane, Payload::Copied(&body), notify);
                    process.recycle(body);
                    id?
                };
                (id, message, notify)
            }
            Wish::Lent { bytes } => {
                let seed = self.payload_rng.bits();
                let notify = seed & 1 == 0;
                let id = process.submit_lent(to, lane, *bytes, notify)?;
                let mut body = vec![0; *bytes];
                fill(seed, &mut body);
                let message = Expected {
                    bytes: *bytes,
                    checksum: checksum(&body),
                    submitted: now,
                    keep: false,
                };
                // Taken back at once, at the end, or somewhere between.
                let ahead_bytes = bytes / 4 * (seed >> 1 & 7) as usize;
                host.lending = Some(Lending {
                    to,
                    id,
                    body,
                    ahead_bytes,
                });
                (id, message, notify)
            }
        };
        let verdict = self
            .oracle
            .submitted((from, to), lane, message, (id, notify));
        self.judge(verdict);
        Ok(())
    }

    /// Takes back a message of which enough has left, or all failed. False if there is none.
    pub(super) fn take_back(&mut self, node: NodeId) -> bool {
        let host = &mut self.hosts[usize::from(node.0)];
        let Some(process) = host.process.as_mut() else {
            return false;
        };
        let Some(lending) = &host.lending else {
            return false;
        };
        let (peer, loan) = (lending.to, lending.loan());
        let unsent = process.unsent_bytes(&loan);
        if matches!(unsent, Ok(Some(bytes)) if bytes > lending.ahead_bytes) {
            return false;
        }
        let kept = process.keep(&loan);
        self.check(kept, || format!("{node} could not keep what it lent"));
        self.host_mut(node).lending = None;
        // Whoever waited to lend one may now, whomever it is for.
        let waiting: Vec<NodeId> = self.host(node).wishes.keys().copied().collect();
        for to in std::iter::once(peer).chain(waiting) {
            self.offer(node, to);
        }
        true
    }
}
