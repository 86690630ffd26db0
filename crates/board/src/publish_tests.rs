use super::*;
use crate::Reads;
use fastrand::Rng;
use tsumuji_wire::NodeId;

const CAPACITY_BYTES: usize = 40;

/// A frame under way.
#[derive(Debug, Clone)]
struct Frame {
    epoch: u32,
    lap: u32,
    start: u32,
    is_packed: bool,
    payload: Vec<u8>,
}

#[derive(Default)]
struct Wire(Vec<Frame>);

impl Carrier for Wire {
    type Error = std::convert::Infallible;

    fn update(&mut self, readers: &[NodeId], datagram: Datagram<'_>) -> Result<usize, Self::Error> {
        assert_eq!(readers, [NodeId(1)]);
        assert!(datagram.payload.len() <= CAPACITY_BYTES);
        self.0.push(Frame {
            epoch: datagram.epoch,
            lap: datagram.lap,
            start: datagram.key,
            is_packed: datagram.channel_id == 2,
            payload: datagram.payload.to_vec(),
        });
        Ok(0)
    }
}

fn boards(elements: usize) -> (Board, Board) {
    let owned = vec![0..23, 23..23];
    let mut owner = Board::new(1, NodeId(0), owned.clone()).unwrap();
    owner.set_elements(Elements::Fixed(elements), CAPACITY_BYTES);
    (owner, Board::new(1, NodeId(1), owned).unwrap())
}

fn deliver(board: &mut Board, frame: &Frame) {
    board.apply(&Datagram {
        source: NodeId(0),
        incarnation: 5,
        channel_id: 1 + u16::from(frame.is_packed),
        epoch: frame.epoch,
        lap: frame.lap,
        key: frame.start,
        payload: &frame.payload,
    });
}

fn contents(board: &Board) -> Vec<f64> {
    (0..board.len()).map(|index| board.get(index)).collect()
}

/// A range is cut into frames of the set number of elements, never more than a frame holds.
#[test]
fn publish_cuts_frames() {
    for (elements, expected) in [(1, 23), (4, 6), (900, 5)] {
        let (mut owner, mut copy) = boards(elements);
        let values: Vec<f64> = (0..23).map(f64::from).collect();
        let mut wire = Wire::default();
        let done = owner
            .publish(&mut wire, 0..23, &values, Lap::FIRST)
            .unwrap();
        assert_eq!((done.frames, wire.0.len()), (expected, expected as usize));
        wire.0.iter().for_each(|frame| deliver(&mut copy, frame));
        assert_eq!(contents(&copy), values);
    }
}

/// A last update that was lost completely arrives by repair alone, frame by frame, although laps differ within the range.
#[test]
fn repair_heals_a_lost_last_update() {
    let (mut owner, mut copy) = boards(3);
    let mut wire = Wire::default();
    owner
        .publish(&mut wire, 0..23, &[1.0; 23], Lap::FIRST)
        .unwrap();
    owner
        .publish(&mut wire, 5..9, &[2.0; 4], Lap::FIRST.next())
        .unwrap();
    wire.0.clear();
    for _ in 0..2 * owner.len() {
        let before = wire.0.len();
        owner.repair(&mut wire).unwrap();
        assert!(wire.0.len() <= before + 1, "one frame a call");
    }
    let longest = wire.0.iter().map(|frame| frame.payload.len()).max();
    assert_eq!(
        longest,
        Some(3 * size_of::<f64>()),
        "as many elements as are fixed"
    );
    wire.0.iter().for_each(|frame| deliver(&mut copy, frame));
    assert_eq!(contents(&copy), contents(&owner));
    assert_eq!(copy.oldest(NodeId(0)), Some(Lap::FIRST));
    assert_eq!(copy.staleness(NodeId(0)), Some(1));
}

/// Frames lost, repeated and reordered at random (seeded) never take an element back; repair then makes copies equal.
#[test]
fn copies_never_go_back() {
    for seed in 1..20u64 {
        let mut random = Rng::with_seed(seed);
        let (mut owner, mut copy) = boards(random.usize(1..=5));
        let mut under_way: Vec<Frame> = Vec::new();
        let mut lap = Lap::FIRST;
        for step in 0..400 {
            let mut wire = Wire::default();
            let start = random.usize(..23);
            let end = random.usize(start + 1..=23);
            // The value is the lap, so that going back is noticed.
            owner
                .publish(
                    &mut wire,
                    start..end,
                    &vec![f64::from(lap.get()); end - start],
                    lap,
                )
                .unwrap();
            owner.repair(&mut wire).unwrap();
            lap = lap.next();
            if step % 100 == 99 {
                for board in [&mut owner, &mut copy] {
                    board.begin_epoch(step / 100 + 1);
                }
            }
            under_way.append(&mut wire.0);
            for _ in 0..random.u64(..8) {
                if under_way.is_empty() {
                    break;
                }
                let pick = random.usize(..under_way.len());
                let before = contents(&copy);
                match random.u64(..4) {
                    0 => drop(under_way.swap_remove(pick)),
                    1 => deliver(&mut copy, &under_way[pick]),
                    _ => deliver(&mut copy, &under_way.swap_remove(pick)),
                }
                let after = contents(&copy);
                assert!(
                    before
                        .iter()
                        .zip(&after)
                        .all(|(before, after)| before <= after),
                    "seed {seed}"
                );
            }
        }
        let mut wire = Wire::default();
        for _ in 0..owner.len() {
            owner.repair(&mut wire).unwrap();
        }
        wire.0.iter().for_each(|frame| deliver(&mut copy, frame));
        assert_eq!(contents(&copy), contents(&owner), "seed {seed}");
    }
}

/// A reader of some elements gets those and no others, packed side by side, and stamps guard them as they do whole ranges.
#[test]
fn packed_readers_get_what_they_read() {
    let (mut owner, mut copy) = boards(4);
    let list: Box<[u32]> = [1, 2, 7, 19, 20, 21, 22].into();
    owner.set_reader(NodeId(1), Reads::Packed(list.clone()));
    copy.set_reads(NodeId(0), Reads::Packed(list.clone()));
    let mut wire = Wire::default();
    let values: Vec<f64> = (0..23).map(f64::from).collect();
    owner
        .publish(&mut wire, 0..23, &values, Lap::FIRST)
        .unwrap();
    assert_eq!(wire.0.len(), 2, "seven elements, four in a frame");
    assert!(wire.0.iter().all(|frame| frame.is_packed));
    let first: Vec<Frame> = wire.0.drain(..).collect();
    let second = Lap::FIRST.next();
    owner
        .publish(&mut wire, 5..20, &[50.0; 15], second)
        .unwrap();
    assert_eq!(wire.0.len(), 1, "7 and 19 are next to each other");
    wire.0
        .iter()
        .chain(&first)
        .for_each(|frame| deliver(&mut copy, frame));
    for (index, value) in contents(&copy).into_iter().enumerate() {
        let expected = match index {
            7 | 19 => 50.0,
            _ if list.contains(&(index as u32)) => index as f64,
            _ => 0.0,
        };
        assert_eq!(value, expected, "{index}");
    }
    assert_eq!(copy.oldest(NodeId(0)), Some(Lap::FIRST));
    owner.publish(&mut wire, 3..7, &[1.0; 4], second).unwrap();
    assert_eq!(wire.0.len(), 1, "nobody reads 3 to 6");
}

/// What is packed heals by repair alone, too.
#[test]
fn packed_readers_are_repaired() {
    let (mut owner, mut copy) = boards(3);
    let list: Box<[u32]> = (0..23).step_by(2).collect();
    owner.set_reader(NodeId(1), Reads::Packed(list.clone()));
    copy.set_reads(NodeId(0), Reads::Packed(list.clone()));
    let mut lost = Wire::default();
    owner
        .publish(&mut lost, 0..23, &[1.0; 23], Lap::FIRST)
        .unwrap();
    owner
        .publish(&mut lost, 5..9, &[2.0; 4], Lap::FIRST.next())
        .unwrap();
    let mut wire = Wire::default();
    for _ in 0..12 {
        owner.repair(&mut wire).unwrap();
    }
    wire.0.iter().for_each(|frame| deliver(&mut copy, frame));
    for index in list {
        assert_eq!(copy.get(index as usize), owner.get(index as usize));
    }
    assert_eq!(copy.staleness(NodeId(0)), Some(1));
}

/// Packed datagrams that nobody asked for, or beyond the list, are refused.
#[test]
fn packed_datagrams_stay_within_the_list() {
    let (_, mut copy) = boards(3);
    let frame = |start, elements: usize| Frame {
        epoch: 0,
        lap: 1,
        start,
        is_packed: true,
        payload: vec![0; 8 * elements],
    };
    deliver(&mut copy, &frame(0, 1));
    assert_eq!(copy.drops().not_owner, 1, "all is read here");
    copy.set_reads(NodeId(0), Reads::Packed([3, 9].into()));
    deliver(&mut copy, &frame(1, 2));
    deliver(&mut copy, &frame(u32::MAX, 1));
    assert_eq!(copy.drops().not_owner, 3);
    deliver(&mut copy, &frame(1, 1));
    assert_eq!((copy.drops().not_owner, copy.oldest(NodeId(0))), (3, None));
}
