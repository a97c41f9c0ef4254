//! A second reading of the rules of the best-fit allocator: every region is a plain list of pieces, every search looks
//! at all of them, bin by bin as the originals do. Slow and simple; it exists to disagree with the real one.

use plimsoll_timeline::{BfcConfig, Growth, Placement};
use plimsoll_units::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub at: u64,
    pub size: u64,
    pub owner: Option<u32>,
    stream: Option<u16>,
}

pub struct Naive {
    config: BfcConfig,
    /// Pieces of each region, with its place in the order of making.
    pub regions: Vec<(u64, Vec<Piece>)>,
    reserved: Vec<(u32, u64)>,
    next: u64,
    made: u64,
    high: u64,
    low: u64,
}

fn bin(size: u64) -> u32 {
    (size.max(256) >> 8).ilog2().min(20)
}

impl Naive {
    pub fn new(config: BfcConfig) -> Self {
        let limit = config.limit.map_or(u64::MAX, Bytes::get);
        let next = config.first_region.get().min(limit).div_ceil(256) * 256;
        let at = 1 << 60;
        Naive {
            config,
            regions: Vec::new(),
            reserved: Vec::new(),
            next,
            made: 0,
            high: at,
            low: at,
        }
    }

    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.regions.iter().flat_map(|(_, pieces)| pieces)
    }

    pub fn held(&self) -> u64 {
        let set_aside: u64 = self.reserved.iter().map(|r| r.1).sum();
        self.pieces().map(|p| p.size).sum::<u64>() + set_aside
    }

    pub fn in_use(&self) -> u64 {
        let set_aside: u64 = self.reserved.iter().map(|r| r.1).sum();
        self.pieces().filter(|p| p.owner.is_some()).map(|p| p.size).sum::<u64>() + set_aside
    }

    fn limit_room(&self) -> u64 {
        self.config.limit.map_or(1 << 55, Bytes::get).saturating_sub(self.held())
    }

    fn driver_has(&self, bytes: u64) -> bool {
        self.config.capacity.is_none_or(|c| self.held() + bytes <= c.get())
    }

    pub fn reserve(&mut self, owner: u32, size: u64) -> bool {
        let fits = size <= self.limit_room() / 256 * 256 && self.driver_has(size);
        if fits {
            self.reserved.push((owner, size));
        }
        fits
    }

    pub fn allocate(&mut self, owner: u32, requested: u64, stream: u16) -> Option<u64> {
        let size = requested.div_ceil(256) * 256;
        let found = self.search(size, stream).or_else(|| {
            self.extend(size);
            self.search(size, stream)
        });
        let (r, p) = found.or_else(|| {
            let unused = self.unused();
            let room = self.config.limit.map_or(u64::MAX, Bytes::get).saturating_sub(self.held());
            if !self.config.collects_regions || unused == 0 || size > room.saturating_add(unused) {
                return None;
            }
            self.regions.retain(|(_, pieces)| pieces.iter().any(|p| p.owner.is_some()));
            self.extend(size);
            self.search(size, stream)
        })?;
        let by_stream = self.config.by_stream;
        let pieces = &mut self.regions[r].1;
        let whole = pieces[p].clone();
        if whole.size >= 2 * size || whole.size - size >= self.config.max_dead_bytes.get().max(1) {
            pieces[p].size = size;
            let rest = Piece { at: whole.at + size, size: whole.size - size, ..whole };
            pieces.insert(p + 1, rest);
        }
        pieces[p].owner = Some(owner);
        if by_stream {
            pieces[p].stream = Some(stream);
        }
        Some(pieces[p].at)
    }

    /// Bins upwards; in a bin the smallest that fits, the lowest of equals.
    fn search(&self, size: u64, stream: u16) -> Option<(usize, usize)> {
        for wanted in bin(size)..=20 {
            let mut fits = Vec::new();
            for (r, (_, pieces)) in self.regions.iter().enumerate() {
                for (p, piece) in pieces.iter().enumerate() {
                    let mine = piece.stream.is_none_or(|s| s == stream);
                    if piece.owner.is_none()
                        && mine
                        && bin(piece.size) == wanted
                        && piece.size >= size
                    {
                        fits.push((piece.size, piece.at, r, p));
                    }
                }
            }
            fits.sort();
            if let Some(best) = fits.first() {
                return Some((best.2, best.3));
            }
        }
        None
    }

    fn unused(&self) -> u64 {
        let unused = self.regions.iter().filter(|(_, p)| p.iter().all(|p| p.owner.is_none()));
        unused.flat_map(|(_, p)| p).map(|p| p.size).sum()
    }

    fn extend(&mut self, size: u64) {
        let available = self.limit_room() / 256 * 256;
        let mut needed = size;
        if self.config.placement == Placement::Before
            && let Some(first) = self.regions.first().map(|(_, p)| &p[0])
            && first.owner.is_none()
            && first.stream.is_none()
        {
            needed = needed.saturating_sub(first.size).max(256);
        }
        if needed > available {
            return;
        }
        let mut bytes = size.min(available);
        let mut grown = true;
        if self.config.growth != Growth::Exact {
            grown = size > self.next;
            while size > self.next {
                self.next *= 2;
            }
            bytes = self.next.min(available);
        }
        while !self.driver_has(bytes) {
            let less = ((bytes as f32 * 0.9) as u64).div_ceil(256) * 256;
            bytes = less.min(bytes - 256);
            if bytes < needed || bytes < self.config.smallest_retreat.get() {
                return;
            }
        }
        if let (Growth::Doubling { cap }, false) = (self.config.growth, grown) {
            self.next = match cap {
                Some(cap) if self.next >= cap.get() / 2 => cap.get(),
                _ => self.next * 2,
            };
        }
        let piece = |at| Piece { at, size: bytes, owner: None, stream: None };
        match (self.config.placement, self.regions.first_mut()) {
            (Placement::Before, Some((_, pieces))) => {
                self.low -= bytes;
                pieces.insert(0, piece(self.low));
            }
            (Placement::Behind, Some((_, pieces))) => {
                pieces.push(piece(self.high));
                self.high += bytes;
            }
            (placement, _) => {
                let at = if placement == Placement::Before {
                    self.low -= bytes;
                    self.low
                } else {
                    self.high
                };
                if placement != Placement::Before {
                    self.high += bytes;
                    if placement == Placement::Apart {
                        self.high = (self.high + (2 << 20)).div_ceil(2 << 20) * (2 << 20);
                    }
                }
                self.regions.push((self.made, vec![piece(at)]));
            }
        }
        self.made += 1;
        // A new piece merges with its neighbours only.
        let (front, back) = (self.config.placement == Placement::Before, self.regions.len() - 1);
        let pieces = &mut self.regions[back].1;
        let at = if front { 0 } else { pieces.len() - 1 };
        merge(pieces, at);
    }

    pub fn free(&mut self, owner: u32) {
        self.reserved.retain(|r| r.0 != owner);
        for (_, pieces) in &mut self.regions {
            if let Some(p) = pieces.iter().position(|p| p.owner == Some(owner)) {
                pieces[p].owner = None;
                merge(pieces, p);
                return;
            }
        }
    }

    pub fn shrink(&mut self) {
        if !self.config.shrinks {
            return;
        }
        let keep = self.config.keeps_first_region;
        self.regions.retain(|(made, pieces)| {
            pieces.iter().any(|p| p.owner.is_some()) || keep && *made == 0
        });
        if let Some(size) = self.config.regrowth {
            self.next = size.get();
        }
    }

    pub fn release_stream(&mut self, stream: u16) {
        for (_, pieces) in &mut self.regions {
            for piece in pieces.iter_mut().filter(|p| p.stream == Some(stream)) {
                piece.stream = None;
            }
            let mut at = 0;
            while at + 1 < pieces.len() {
                let (a, b) = (&pieces[at], &pieces[at + 1]);
                if a.owner.is_none() && b.owner.is_none() && a.stream == b.stream {
                    pieces[at].size += b.size;
                    pieces.remove(at + 1);
                } else {
                    at += 1;
                }
            }
        }
    }
}

fn merge(pieces: &mut Vec<Piece>, p: usize) {
    let joins =
        |a: &Piece, b: &Piece| a.owner.is_none() && b.owner.is_none() && a.stream == b.stream;
    if p + 1 < pieces.len() && joins(&pieces[p], &pieces[p + 1]) {
        pieces[p].size += pieces[p + 1].size;
        pieces.remove(p + 1);
    }
    if p > 0 && joins(&pieces[p - 1], &pieces[p]) {
        pieces[p - 1].size += pieces[p].size;
        pieces.remove(p);
    }
}
