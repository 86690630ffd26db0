//! Where a board keeps its values: shared with readers on other threads, or private to the thread that owns the board.

use crate::Lap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use tsumuji_wire::NodeId;

/// Values, and the newest lap heard of each node (0: none).
pub trait Store {
    /// Element `index`. Panics beyond the end.
    fn get(&self, index: usize) -> f64;
    /// Writes element `index`. Panics beyond the end.
    fn set(&mut self, index: usize, value: f64);
    /// Newest lap heard of `node`, 0: none, or no such node.
    fn lap(&self, node: usize) -> u32;
    /// Sets it. Panics for no such node.
    fn set_lap(&mut self, node: usize, lap: u32);
}

/// Values as relaxed atomics behind an `Arc`: single elements that are never torn, but need not belong together.
#[derive(Debug)]
pub struct Shared(pub(crate) Arc<Cells>);

/// Values in plain memory, for programs that compute on the thread that polls.
#[derive(Debug)]
pub struct Private {
    pub(crate) values: Vec<f64>,
    laps: Vec<u32>,
}

/// The part that readers on other threads see.
#[derive(Debug)]
pub(crate) struct Cells {
    /// Elements as `f64::to_bits`.
    values: Box<[AtomicU64]>,
    laps: Box<[AtomicU32]>,
}

/// Reads the copy from any thread.
#[derive(Debug, Clone)]
pub struct Reader {
    pub(crate) cells: Arc<Cells>,
}

impl Shared {
    pub(crate) fn new(len: usize, nodes: usize) -> Self {
        Self(Arc::new(Cells {
            values: (0..len).map(|_| AtomicU64::new(0)).collect(),
            laps: (0..nodes).map(|_| AtomicU32::new(0)).collect(),
        }))
    }
}

impl Private {
    pub(crate) fn new(len: usize, nodes: usize) -> Self {
        Self {
            values: vec![0.0; len],
            laps: vec![0; nodes],
        }
    }
}

impl Store for Shared {
    fn get(&self, index: usize) -> f64 {
        self.0.get(index)
    }

    fn set(&mut self, index: usize, value: f64) {
        self.0.values[index].store(value.to_bits(), Relaxed);
    }

    fn lap(&self, node: usize) -> u32 {
        self.0.laps.get(node).map_or(0, |lap| lap.load(Relaxed))
    }

    fn set_lap(&mut self, node: usize, lap: u32) {
        self.0.laps[node].store(lap, Relaxed);
    }
}

impl Store for Private {
    fn get(&self, index: usize) -> f64 {
        self.values[index]
    }

    fn set(&mut self, index: usize, value: f64) {
        self.values[index] = value;
    }

    fn lap(&self, node: usize) -> u32 {
        self.laps.get(node).copied().unwrap_or(0)
    }

    fn set_lap(&mut self, node: usize, lap: u32) {
        self.laps[node] = lap;
    }
}

impl Reader {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.cells.values.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.cells.values.is_empty()
    }

    /// Element `index`. Panics beyond the end.
    pub fn get(&self, index: usize) -> f64 {
        self.cells.get(index)
    }

    /// Newest lap of `source` of which anything arrived.
    pub fn lap(&self, source: NodeId) -> Option<Lap> {
        Lap::new(self.cells.laps.get(usize::from(source.0))?.load(Relaxed))
    }
}

impl Cells {
    fn get(&self, index: usize) -> f64 {
        f64::from_bits(self.values[index].load(Relaxed))
    }
}
