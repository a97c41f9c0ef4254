//! A second, independent reading of the allocator's rules: every segment is a plain list of blocks, every search
//! looks at all of them. Slow and simple; it exists to disagree with the real one.

use plimsoll_timeline::{PyTorchConfig, TieBreak};
use plimsoll_units::Bytes;

const MIB: u64 = 1 << 20;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Free,
    Unmapped,
    Used(u32),
}

#[derive(Clone, Debug)]
pub struct Piece {
    pub at: u64,
    pub size: u64,
    pub kind: Kind,
    pub requested: u64,
    born: u64,
    freed: u64,
}

/// A segment, or a reservation of an expandable segment.
#[derive(Clone, Debug)]
pub struct Region {
    pub small: bool,
    pub stream: u16,
    pub pieces: Vec<Piece>,
}

pub struct Naive {
    pub config: PyTorchConfig,
    pub regions: Vec<Region>,
    pub reserved_peak: u64,
    pub retries: u64,
    next_at: u64,
    clock: u64,
    searches: [u64; 2],
}

impl Naive {
    pub fn new(config: PyTorchConfig) -> Self {
        Naive {
            config,
            regions: Vec::new(),
            reserved_peak: 0,
            retries: 0,
            next_at: 0x7000_0000_0000,
            clock: 0,
            searches: [0; 2],
        }
    }

    pub fn reserved(&self) -> u64 {
        self.pieces().filter(|p| p.kind != Kind::Unmapped).map(|p| p.size).sum()
    }

    pub fn allocated(&self) -> u64 {
        self.pieces().filter(|p| matches!(p.kind, Kind::Used(_))).map(|p| p.size).sum()
    }

    pub fn requested(&self) -> u64 {
        self.pieces().filter(|p| matches!(p.kind, Kind::Used(_))).map(|p| p.requested).sum()
    }

    pub fn inactive_split(&self) -> u64 {
        let split = self.regions.iter().filter(|r| r.pieces.len() > 1);
        split.flat_map(|r| &r.pieces).filter(|p| p.kind == Kind::Free).map(|p| p.size).sum()
    }

    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.regions.iter().flat_map(|r| &r.pieces)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The address of the new block, or `None` when out of memory.
    pub fn malloc(&mut self, owner: u32, requested: u64, stream: u16) -> Option<u64> {
        let size = self.config.rounded(Bytes::new(requested)).get();
        let small = size <= MIB;
        self.searches[usize::from(!small)] += 1;
        let found = self.search(size, small, stream).or_else(|| {
            self.collect();
            self.driver(size, small, stream)
                .or_else(|| {
                    self.release_oversize(size, small, stream)
                        .then(|| self.driver(size, small, stream))
                        .flatten()
                })
                .or_else(|| {
                    self.flush();
                    self.retries += 1;
                    self.driver(size, small, stream)
                })
        });
        self.reserved_peak = self.reserved_peak.max(self.reserved());
        let (r, p) = found?;
        let born = self.tick();
        let pieces = &mut self.regions[r].pieces;
        let rest = pieces[p].size - size;
        let split = if small || self.config.expandable_segments {
            rest > 0
        } else {
            rest > MIB && self.config.max_split_size.is_none_or(|m| size < m.get())
        };
        let at = pieces[p].at;
        let kind = Kind::Used(owner);
        if split {
            let front = Piece { at, size, kind, requested, born, freed: NEVER };
            pieces[p].at += size;
            pieces[p].size = rest;
            pieces.insert(p, front);
        } else {
            pieces[p].kind = kind;
            pieces[p].requested = requested;
        }
        Some(at)
    }

    fn search(&self, size: u64, small: bool, stream: u16) -> Option<(usize, usize)> {
        let mut all = Vec::new();
        for (r, region) in self.regions.iter().enumerate() {
            if region.small != small || region.stream != stream {
                continue;
            }
            for (p, piece) in region.pieces.iter().enumerate() {
                if piece.kind == Kind::Free && piece.size >= size {
                    let tie = self.tie(piece);
                    let beyond = match region.pieces.get(p + 1) {
                        Some(n) if n.kind == Kind::Unmapped => n.size,
                        _ => 0,
                    };
                    all.push((piece.size, tie, r, p, piece.size + beyond));
                }
            }
        }
        all.sort();
        let mut best = all.first()?;
        if self.config.expandable_segments {
            for next in &all[1..] {
                if next.4 >= best.4 {
                    break;
                }
                best = next;
            }
        }
        if let Some(max) = self.config.max_split_size {
            let slack = self.config.max_non_split_rounding.get();
            if size < max.get() && best.0 >= max.get() {
                return None;
            }
            if size >= max.get() && best.0 >= size + slack {
                return None;
            }
        }
        Some((best.2, best.3))
    }

    fn driver(&mut self, size: u64, small: bool, stream: u16) -> Option<(usize, usize)> {
        let bytes = if small {
            2 * MIB
        } else if size < 10 * MIB {
            self.config.large_segment.get()
        } else {
            size.div_ceil(2 * MIB) * 2 * MIB
        };
        if self.config.memory_limit.is_some_and(|l| self.reserved() + bytes > l.get()) {
            return None;
        }
        if self.config.expandable_segments {
            return self.expand(size, small, stream);
        }
        if self.config.capacity.is_some_and(|c| self.reserved() + bytes > c.get()) {
            return None;
        }
        let (at, born) = (self.next_at, self.tick());
        self.next_at += bytes;
        let freed = self.searches[usize::from(!small)];
        let piece = Piece { at, size: bytes, kind: Kind::Free, requested: 0, born, freed };
        self.regions.push(Region { small, stream, pieces: vec![piece] });
        Some((self.regions.len() - 1, 0))
    }

    fn expand(&mut self, size: u64, small: bool, stream: u16) -> Option<(usize, usize)> {
        let page = if small { 2 * MIB } else { self.config.large_segment.get() };
        let (r, start) = self.run(size, small, stream).unwrap_or_else(|| {
            let device = self.config.capacity.map_or(1 << 42, Bytes::get);
            let bytes = (device + device / 8).max(size).div_ceil(page) * page;
            let at = self.next_at.div_ceil(page) * page;
            self.next_at = (at + bytes).div_ceil(2 * MIB) * 2 * MIB;
            let born = self.tick();
            let kind = Kind::Unmapped;
            let piece = Piece { at, size: bytes, kind, requested: 0, born, freed: 0 };
            self.regions.push(Region { small, stream, pieces: vec![piece] });
            (self.regions.len() - 1, 0)
        });
        // Bring the run to the front of one growing free piece at index `at`.
        let mut at = start;
        if self.regions[r].pieces[at].kind == Kind::Unmapped {
            at = self.map(r, at, size, page)?;
        }
        while self.regions[r].pieces[at].size < size {
            let missing = size - self.regions[r].pieces[at].size;
            at = self.map(r, at + 1, missing, page)?;
        }
        Some((r, at))
    }

    fn run(&self, size: u64, small: bool, stream: u16) -> Option<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.regions.len())
            .filter(|r| self.regions[*r].small == small && self.regions[*r].stream == stream)
            .collect();
        order.sort_by_key(|r| self.regions[*r].pieces[0].at);
        for r in order {
            let pieces = &self.regions[r].pieces;
            for p in 0..pieces.len() {
                if pieces[p].kind != Kind::Unmapped {
                    continue;
                }
                let start = if p > 0 && pieces[p - 1].kind == Kind::Free { p - 1 } else { p };
                let usable =
                    pieces[start..].iter().take_while(|p| !matches!(p.kind, Kind::Used(_)));
                if usable.map(|p| p.size).sum::<u64>() >= size {
                    return Some((r, start));
                }
            }
        }
        None
    }

    fn map(&mut self, r: usize, p: usize, bytes: u64, page: u64) -> Option<usize> {
        let piece = self.regions[r].pieces[p].clone();
        let mapped = bytes.min(piece.size).div_ceil(page) * page;
        if self.config.capacity.is_some_and(|c| self.reserved() + mapped > c.get()) {
            return None;
        }
        if mapped < piece.size {
            let born = self.tick();
            let rest = Piece { at: piece.at + mapped, size: piece.size - mapped, born, ..piece };
            self.regions[r].pieces.insert(p + 1, rest);
        }
        let small = self.regions[r].small;
        let piece = &mut self.regions[r].pieces[p];
        piece.size = mapped;
        piece.kind = Kind::Free;
        piece.freed = self.searches[usize::from(!small)];
        // Pages count from here on, even if the request fails in the end and they are given back.
        self.reserved_peak = self.reserved_peak.max(self.reserved());
        Some(self.merge(r, p))
    }

    /// Merges piece `p` with neighbours of its kind; it keeps its own birth. Returns its new index.
    fn merge(&mut self, r: usize, mut p: usize) -> usize {
        let pieces = &mut self.regions[r].pieces;
        if p + 1 < pieces.len() && pieces[p + 1].kind == pieces[p].kind {
            pieces[p].size += pieces[p + 1].size;
            pieces.remove(p + 1);
        }
        if p > 0 && pieces[p - 1].kind == pieces[p].kind {
            pieces[p].size += pieces[p - 1].size;
            pieces[p].at = pieces[p - 1].at;
            pieces.remove(p - 1);
            p -= 1;
        }
        p
    }

    pub fn free(&mut self, owner: u32) {
        for r in 0..self.regions.len() {
            let wanted = Kind::Used(owner);
            if let Some(p) = self.regions[r].pieces.iter().position(|p| p.kind == wanted) {
                let freed = self.searches[usize::from(!self.regions[r].small)];
                self.regions[r].pieces[p].kind = Kind::Free;
                self.regions[r].pieces[p].freed = freed;
                self.merge(r, p);
                return;
            }
        }
    }

    fn collect(&mut self) {
        let (Some(t), Some(limit)) =
            (self.config.garbage_collection_threshold, self.config.memory_limit)
        else {
            return;
        };
        let threshold = (t * limit.get() as f64) as u64;
        let reserved = self.reserved();
        if reserved <= threshold || self.config.expandable_segments {
            return;
        }
        let (target, now, mut freed) = (reserved - threshold, self.searches[1], 0);
        loop {
            let whole =
                |r: &Region| !r.small && r.pieces.len() == 1 && r.pieces[0].kind == Kind::Free;
            let ages: Vec<u64> =
                self.regions.iter().filter(|r| whole(r)).map(|r| now - r.pieces[0].freed).collect();
            if freed >= target || ages.is_empty() {
                return;
            }
            let mean = ages.iter().sum::<u64>() as f64 / ages.len() as f64;
            self.regions.retain(|r| {
                let old = whole(r) && (now - r.pieces[0].freed) as f64 >= mean;
                freed += if old { r.pieces[0].size } else { 0 };
                !old
            });
        }
    }

    fn release_oversize(&mut self, size: u64, small: bool, stream: u16) -> bool {
        let Some(max) = self.config.max_split_size else { return false };
        let key = size.max(max.get());
        let mut free: Vec<(u64, u64, usize)> = Vec::new();
        for (r, region) in self.regions.iter().enumerate() {
            if region.small == small && region.stream == stream {
                for p in region.pieces.iter().filter(|p| p.kind == Kind::Free) {
                    free.push((p.size, self.tie(p), r));
                }
            }
        }
        free.sort();
        let whole =
            |r: usize| self.regions[r].pieces.len() == 1 && !self.config.expandable_segments;
        let mut gone = Vec::new();
        let mut released = 0;
        let enough = if let Some(one) =
            free.iter().find(|f| f.0 >= key && !self.config.expandable_segments)
        {
            if whole(one.2) {
                gone.push(one.2);
            }
            !gone.is_empty()
        } else {
            for one in free.iter().rev() {
                if released >= key || one.0 < max.get() {
                    break;
                }
                if whole(one.2) {
                    gone.push(one.2);
                    released += one.0;
                }
            }
            released >= key
        };
        gone.sort();
        for r in gone.into_iter().rev() {
            self.regions.remove(r);
        }
        enough
    }

    pub fn flush(&mut self) {
        if !self.config.expandable_segments {
            self.regions.retain(|r| r.pieces.len() > 1 || r.pieces[0].kind != Kind::Free);
            return;
        }
        // In the order of torch's free lists: it decides which left-over end is the older block.
        let mut order = Vec::new();
        for region in &self.regions {
            for piece in region.pieces.iter().filter(|p| p.kind == Kind::Free) {
                order.push((!region.small, region.stream, piece.size, self.tie(piece), piece.at));
            }
        }
        order.sort();
        let mut touched = Vec::new();
        for (.., at) in order {
            for r in 0..self.regions.len() {
                let found = self.regions[r].pieces.iter().position(|p| p.at == at);
                if let Some(p) = found
                    && self.unmap(r, p)
                {
                    touched.push(self.regions[r].pieces[0].at);
                }
            }
        }
        // A reservation whose last page went is dropped; one that was never mapped stays.
        self.regions.retain(|r| {
            let unmapped = r.pieces.len() == 1 && r.pieces[0].kind == Kind::Unmapped;
            !(unmapped && touched.contains(&r.pieces[0].at))
        });
    }

    /// Gives back the whole pages of a free piece; whether there were any.
    fn unmap(&mut self, r: usize, p: usize) -> bool {
        let page = if self.regions[r].small { 2 * MIB } else { self.config.large_segment.get() };
        let piece = self.regions[r].pieces[p].clone();
        let (start, end) = (piece.at.div_ceil(page) * page, (piece.at + piece.size) / page * page);
        if start >= end {
            return false;
        }
        let mut parts = Vec::new();
        if start > piece.at {
            let (size, born) = (start - piece.at, self.tick());
            parts.push(Piece { size, born, ..piece.clone() });
        }
        let kind = Kind::Unmapped;
        let middle = parts.len();
        parts.push(Piece { at: start, size: end - start, kind, ..piece.clone() });
        if piece.at + piece.size > end {
            let (size, born) = (piece.at + piece.size - end, self.tick());
            parts.push(Piece { at: end, size, born, ..piece });
        }
        self.regions[r].pieces.splice(p..=p, parts);
        self.merge(r, p + middle);
        true
    }

    fn tie(&self, piece: &Piece) -> u64 {
        match self.config.tie_break {
            TieBreak::LowestAddress => piece.at,
            TieBreak::OldestBlock => piece.born,
        }
    }
}
