//! Placement of blocks on multiprocessors.

use super::kernel::processors;
use crate::device::{DeviceModel, RESOURCES};

/// Placed blocks: multiprocessor, and number of blocks.
pub(super) type Placement = Vec<(usize, u32)>;

/// The free resources of every multiprocessor.
#[derive(Debug)]
pub(super) struct Processors {
    free: Vec<[u32; RESOURCES]>,
    /// The free resources of all multiprocessors together.
    left: [u64; RESOURCES],
    /// For each multiprocessor the number of blocks that fit, of the kernel that is being placed.
    room: Vec<u32>,
    /// At index `n`: the number of multiprocessors with room for `n` blocks.
    with_room: Vec<u64>,
}

impl Processors {
    pub fn new(device: &DeviceModel) -> Self {
        let processors = processors(device).0 as usize;
        let most = device.processor()[RESOURCES - 1] as usize;
        let left = device.processor().map(|has| u64::from(has) * processors as u64);
        Self {
            free: vec![device.processor(); processors],
            left,
            room: vec![0; processors],
            with_room: vec![0; most + 1],
        }
    }

    /// Places up to `parts` blocks, each on the multiprocessor with the most room, if at least `least` of them fit. Returns the
    /// placement and the number of placed blocks.
    pub fn place(&mut self, needs: [u32; RESOURCES], parts: u64, least: u64) -> (Placement, u64) {
        if self.left.iter().zip(needs).any(|(&left, needs)| left < least * u64::from(needs)) {
            return (Placement::new(), 0);
        }
        self.with_room.fill(0);
        let mut rooms = 0;
        for (room, free) in self.room.iter_mut().zip(&self.free) {
            *room = u32::MAX;
            for (free, needs) in free.iter().zip(&needs) {
                *room = (*room).min(free / (*needs).max(1));
            }
            self.with_room[*room as usize] += 1;
            rooms += u64::from(*room);
        }
        if rooms < least {
            return (Placement::new(), 0);
        }
        // Multiprocessors are filled until each has room for `level` blocks, and some for one block less.
        let (mut level, mut left) = (self.with_room.len() - 1, parts);
        let mut above = 0;
        while level > 0 {
            above += self.with_room[level];
            if above > left {
                break;
            }
            left -= above;
            level -= 1;
        }
        let mut placement = Placement::new();
        let mut placed = 0;
        for (at, (&room, free)) in self.room.iter().zip(&mut self.free).enumerate() {
            let mut count = room.saturating_sub(level as u32);
            if level > 0 && left > 0 && room as usize >= level {
                count += 1;
                left -= 1;
            }
            if count > 0 {
                free.iter_mut().zip(needs).for_each(|(free, needs)| *free -= needs * count);
                placement.push((at, count));
                placed += u64::from(count);
            }
        }
        self.left.iter_mut().zip(needs).for_each(|(left, needs)| *left -= u64::from(needs) * placed);
        (placement, placed)
    }

    /// Frees the resources of these blocks.
    pub fn release(&mut self, needs: [u32; RESOURCES], placement: &Placement) {
        for &(at, count) in placement {
            self.free[at].iter_mut().zip(needs).for_each(|(free, needs)| *free += needs * count);
            self.left.iter_mut().zip(needs).for_each(|(left, needs)| *left += u64::from(needs * count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_go_where_there_is_most_room() {
        let mut device = DeviceModel::named("h200").unwrap();
        device.spec.processors = 3;
        let mut processors = Processors::new(&device);
        let half = [1024, 0, 0, 1];
        assert_eq!(processors.place(half, 1, 1), (vec![(0, 1)], 1));
        assert_eq!(processors.place(half, 3, 1), (vec![(0, 1), (1, 1), (2, 1)], 3));
        assert_eq!(processors.place(half, 9, 3).1, 0);
        let (placement, placed) = processors.place(half, 9, 2);
        assert_eq!((&placement, placed), (&vec![(1, 1), (2, 1)], 2));
        assert_eq!(processors.place(half, 1, 1).1, 0);
        processors.release(half, &placement);
        assert_eq!(processors.place(half, 9, 1).1, 2);
    }
}
