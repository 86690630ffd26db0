//! The conformance suite on shared memory, with default sizes and with small ones, whose rings wrap all the time.

use crate::{common, conformance_tests};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};

fn job(nodes: usize, config: ShmConfig) -> Vec<Shm> {
    let fd = ShmJob::create(nodes, config).expect("create");
    (0..nodes as u16)
        .map(|node| Shm::attach(&fd, node).expect("attach"))
        .collect()
}

mod default {
    use super::*;
    conformance_tests!(|nodes| job(nodes, ShmConfig::for_nodes(nodes)));
}

mod small {
    use super::*;
    conformance_tests!(variant; |nodes| {
        let config = ShmConfig {
            frame_bytes: 600,
            ring_bytes: 8192,
            broadcast_bytes: 4096,
        };
        job(nodes, config)
    });
}

/// Memory damages nothing: nothing is checked, and nothing between.
mod checked {
    use super::*;
    conformance_tests!(variant; |nodes| common::checked(job(nodes, ShmConfig::for_nodes(nodes))));
}

mod damaged {
    use super::*;
    conformance_tests!(skip if None::<String>; |nodes| {
        common::damaged(job(nodes, ShmConfig::for_nodes(nodes)))
    }; damage_is_found);
}
