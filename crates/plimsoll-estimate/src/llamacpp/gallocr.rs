//! The planner that sizes ggml's compute buffers: it walks a graph once, gives every tensor an offset and keeps the
//! highest end. It is a best-fit list of free blocks with the last block as the reserve, as `ggml_dyn_tallocr`
//! describes it; offsets, not contents, decide the result, so the walk is exact.

/// A free stretch of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    offset: u64,
    size: u64,
}

/// One buffer under planning.
#[derive(Clone, Debug)]
pub(super) struct Planner {
    alignment: u64,
    free: Vec<Block>,
    high_water: u64,
}

impl Planner {
    /// An empty buffer whose tensors start at multiples of `alignment` bytes.
    pub(super) fn new(alignment: u64) -> Self {
        Planner {
            alignment: alignment.max(1),
            free: vec![Block { offset: 0, size: u64::MAX / 2 }],
            high_water: 0,
        }
    }

    /// Bytes that the buffer must have.
    pub(super) fn high_water(&self) -> u64 {
        self.high_water
    }

    fn padded(&self, size: u64) -> u64 {
        size.div_ceil(self.alignment).saturating_mul(self.alignment).min(u64::MAX / 4)
    }

    /// Takes the smallest free block that fits, the last (open) block only if no other does. Returns the offset.
    pub(super) fn take(&mut self, size: u64) -> u64 {
        let size = self.padded(size);
        let last = self.free.len().saturating_sub(1);
        let mut best: Option<(usize, u64)> = None;
        for (i, block) in self.free[..last].iter().enumerate() {
            if block.size >= size && best.is_none_or(|(_, s)| block.size <= s) {
                best = Some((i, block.size));
            }
        }
        let index = best.map_or(last, |(i, _)| i);
        let Some(block) = self.free.get_mut(index) else { return 0 };
        let offset = block.offset;
        block.offset = offset.saturating_add(size);
        block.size = block.size.saturating_sub(size);
        if block.size == 0 && self.free.len() > 1 {
            self.free.remove(index);
        }
        self.high_water = self.high_water.max(offset.saturating_add(size));
        offset
    }

    /// Gives a stretch back and joins it with its neighbours.
    pub(super) fn give(&mut self, offset: u64, size: u64) {
        let size = self.padded(size);
        let at = self.free.partition_point(|b| b.offset < offset);
        self.free.insert(at, Block { offset, size });
        if let Some(next) = self.free.get(at + 1).copied()
            && offset.saturating_add(size) == next.offset
        {
            self.free[at].size = self.free[at].size.saturating_add(next.size);
            self.free.remove(at + 1);
        }
        if at > 0 {
            let previous = self.free[at - 1];
            if previous.offset.saturating_add(previous.size) == offset {
                self.free[at - 1].size = previous.size.saturating_add(self.free[at].size);
                self.free.remove(at);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_tightest_hole_and_grows_only_at_the_end() {
        let mut p = Planner::new(128);
        let a = p.take(1000);
        let b = p.take(100);
        let c = p.take(500);
        let d = p.take(1);
        assert_eq!((a, b, c, d), (0, 1024, 1152, 1664));
        p.give(a, 1000);
        p.give(c, 500);
        assert_eq!(p.take(300), 1152);
        assert_eq!(p.take(1024), 0);
        assert_eq!(p.high_water(), 1792);
    }

    #[test]
    fn neighbours_join() {
        let mut p = Planner::new(1);
        let a = p.take(10);
        let b = p.take(10);
        let c = p.take(10);
        p.give(a, 10);
        p.give(c, 10);
        p.give(b, 10);
        assert_eq!(p.free, vec![Block { offset: 0, size: u64::MAX / 2 }]);
    }
}
