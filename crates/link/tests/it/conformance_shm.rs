//! The conformance suite on shared memory, with default sizes and with small ones, whose rings wrap all the time.

use crate::common::{job, job_with};
use crate::{common, conformance_tests};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tsumuji_link::Link;
use tsumuji_link::conformance::{Neighbours, rings_conform};
use tsumuji_link::shm::{Shm, ShmAttachError, ShmConfig, ShmJob};

mod default {
    use super::*;
    conformance_tests!(job);
}

mod small {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let config = ShmConfig {
            frame_bytes: 600,
            ring_bytes: 8192,
            broadcast_bytes: 4096,
        };
        job_with(nodes, config)
    });
}

/// Memory damages nothing: nothing is checked, and nothing between.
mod checked {
    use super::*;
    conformance_tests!(variant; |nodes| common::checked(job(nodes)));
}

mod damaged {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| common::damaged(job(nodes)); damage_is_found);
}

struct Two {
    job: OwnedFd,
    first: Shm,
    second: Option<Shm>,
}

impl Neighbours for Two {
    type Link = Shm;

    fn begin() -> Self {
        let config = ShmConfig {
            frame_bytes: 600,
            ring_bytes: 8192,
            broadcast_bytes: 4096,
        };
        let job = ShmJob::create(2, config).expect("create");
        let [first, second] = [0, 1].map(|node| Shm::attach(&job, node).expect("attach"));
        let second = Some(second);
        Self { job, first, second }
    }

    fn links(&mut self) -> [&mut Shm; 2] {
        [&mut self.first, self.second.as_mut().expect("it lives")]
    }

    fn first(&mut self) -> &mut Shm {
        &mut self.first
    }

    fn carry(&mut self) {
        for link in self.links() {
            link.flush().expect("flush");
        }
    }

    fn vanish(&mut self) {
        self.second = None;
    }

    fn succeed(&mut self) {
        let begun = Instant::now();
        while self.second.is_none() {
            match Shm::attach(&self.job, 1) {
                // A child that another test forks keeps the lock until it executes another program.
                Err(ShmAttachError::Taken { .. }) if begun.elapsed() < Duration::from_secs(10) => {}
                attached => self.second = Some(attached.expect("attach")),
            }
        }
    }
}

/// Rings pass the suite that the simulator's pass, too.
#[test]
fn rings_are_as_simulated() {
    rings_conform::<Two>();
}
