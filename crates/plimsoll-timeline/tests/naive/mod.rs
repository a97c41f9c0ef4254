//! A second, independent reading of the allocator's rules: every segment is a plain list of blocks, every search
//! looks at all of them. Slow and simple; it exists to disagree with the real one.

use std::collections::BTreeMap;

use plimsoll_timeline::{CaptureRule, PendingFrees, PoolOptions, PyTorchConfig, TieBreak};
use plimsoll_units::Bytes;

const MIB: u64 = 1 << 20;
const NEVER: u64 = u64::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Free,
    Unmapped,
    Used(u32),
    /// Freed; another stream may still use it.
    Pending(u32),
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

/// Pool, whether for small requests, stream: blocks never leave their home.
pub type Home = (u16, bool, u16);

/// A segment, or a reservation of an expandable segment.
#[derive(Clone, Debug)]
pub struct Region {
    pub home: Home,
    pub expandable: bool,
    pub pieces: Vec<Piece>,
    made: u64,
    page: u64,
}

impl Region {
    fn whole(&self) -> bool {
        !self.expandable && self.pieces.len() == 1 && self.pieces[0].kind == Kind::Free
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    users: u32,
    routes: u32,
    options: PoolOptions,
}

#[derive(Default)]
pub struct Naive {
    pub config: PyTorchConfig,
    pub regions: Vec<Region>,
    pub reserved_peak: u64,
    pub retries: u64,
    pub ooms: u64,
    pub rejections: u64,
    pub synchronized: u64,
    pub device: (u64, u64),
    next_at: u64,
    clock: u64,
    made: u64,
    searches: BTreeMap<(u16, bool), u64>,
    pools: BTreeMap<u16, Pool>,
    captures: u32,
    /// Streams recorded for a block, and whether that happened during a capture.
    shared: BTreeMap<u32, BTreeMap<u16, bool>>,
    waiting: Vec<u32>,
    /// How many of them, the first ones, are done.
    done: usize,
    deferred: Vec<u32>,
    asked: Vec<u32>,
}

/// A request on its way.
#[derive(Clone, Copy)]
struct Ask {
    size: u64,
    home: Home,
    expandable: bool,
    capturing: bool,
}

impl Naive {
    pub fn new(config: PyTorchConfig) -> Self {
        Naive { config, next_at: 0x7000_0000_0000, ..Naive::default() }
    }

    pub fn reserved(&self) -> u64 {
        self.pieces().filter(|p| p.kind != Kind::Unmapped).map(|p| p.size).sum()
    }

    /// Size and request of the blocks of small or large pools that `which` takes, and how many they are.
    pub fn sum(&self, small: bool, which: impl Fn(&Region, &Piece) -> bool) -> (u64, u64, u64) {
        let mut sum = (0, 0, 0);
        for region in self.regions.iter().filter(|r| r.home.1 == small) {
            for piece in region.pieces.iter().filter(|p| which(region, p)) {
                sum = (sum.0 + piece.size, sum.1 + piece.requested, sum.2 + 1);
            }
        }
        sum
    }

    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.regions.iter().flat_map(|r| &r.pieces)
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn capturing(&self, pool: u16) -> bool {
        let routed = pool != 0 || self.pools.values().any(|p| p.routes > 0);
        self.captures > 0 || self.config.captures == CaptureRule::AnyRouting && routed
    }

    pub fn begin(&mut self, pool: u16) {
        let entry = self.pools.entry(pool).or_default();
        entry.users += 1;
        entry.routes += 1;
    }

    pub fn end(&mut self, pool: u16) {
        self.pools.get_mut(&pool).unwrap().routes -= 1;
    }

    pub fn leave(&mut self, pool: u16) {
        self.pools.get_mut(&pool).unwrap().users -= 1;
    }

    pub fn capture(&mut self, begins: bool) {
        self.captures = if begins { self.captures + 1 } else { self.captures - 1 };
    }

    pub fn options(&mut self, pool: u16, options: PoolOptions) {
        self.pools.get_mut(&pool).unwrap().options = options;
    }

    /// The address of the new block, or `None` when out of memory.
    pub fn malloc(&mut self, owner: u32, requested: u64, stream: u16, pool: u16) -> Option<u64> {
        let capturing = self.capturing(pool);
        if !capturing {
            self.start_deferred();
            if self.config.pending_frees == PendingFrees::NextRequest {
                self.done = self.waiting.len();
            }
            let rest = self.waiting.split_off(std::mem::take(&mut self.done));
            self.finish_waiting();
            self.waiting = rest;
        }
        let size = self.config.rounded(Bytes::new(requested)).get();
        let home = (pool, size <= MIB, stream);
        let mut ask = Ask { size, home, expandable: self.config.expandable_segments, capturing };
        let found = self.search(ask).or_else(|| self.get_more(&mut ask));
        self.reserved_peak = self.reserved_peak.max(self.reserved());
        let (r, p) = found?;
        let born = self.tick();
        let no_split = self.pools.get(&ask.home.0).is_some_and(|pool| pool.options.no_split);
        let pieces = &mut self.regions[r].pieces;
        let rest = pieces[p].size - size;
        let split = if no_split {
            false
        } else if ask.home.1 || ask.expandable {
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

    /// Everything after a miss. May send the request to another pool.
    fn get_more(&mut self, ask: &mut Ask) -> Option<(usize, usize)> {
        self.collect();
        let rejections = self.rejections;
        let mut found = self.driver(*ask);
        if found.is_none() && self.rejections == rejections && ask.home.0 == 0 {
            let mut helpers: Vec<u16> = self.pools.keys().copied().collect();
            helpers.retain(|p| self.pools[p].options.use_on_oom);
            for pool in helpers {
                let home = (pool, ask.home.1, ask.home.2);
                let other = Ask { home, expandable: false, ..*ask };
                if let Some(found) = self.search(other) {
                    *ask = other;
                    return Some(found);
                }
            }
        }
        if found.is_none() && self.rejections == rejections && self.release_oversize(*ask) {
            found = self.driver(*ask);
        }
        if found.is_none() && self.rejections == rejections && !ask.capturing {
            self.flush_unless(false);
            self.retries += 1;
            found = self.driver(*ask);
        }
        self.ooms += u64::from(found.is_none() && self.rejections == rejections);
        found
    }

    fn search(&mut self, ask: Ask) -> Option<(usize, usize)> {
        *self.searches.entry((ask.home.0, ask.home.1)).or_default() += 1;
        let mut all = Vec::new();
        for (r, region) in self.regions.iter().enumerate().filter(|(_, r)| r.home == ask.home) {
            for (p, piece) in region.pieces.iter().enumerate() {
                if piece.kind == Kind::Free && piece.size >= ask.size {
                    let beyond = match region.pieces.get(p + 1) {
                        Some(n) if n.kind == Kind::Unmapped => n.size,
                        _ => 0,
                    };
                    let (tie, reach) = (self.tie(region, piece), piece.size + beyond);
                    all.push((piece.size, tie, r, p, reach, region.expandable));
                }
            }
        }
        all.sort();
        let mut best = *all.first()?;
        if best.5 && !ask.expandable {
            best = *all.iter().find(|one| !one.5)?;
        } else if best.5 {
            for next in &all[1..] {
                if !best.5 || next.4 >= best.4 {
                    break;
                }
                best = *next;
            }
        }
        if let Some(max) = self.config.max_split_size {
            let slack = self.config.max_non_split_rounding.get();
            if ask.size < max.get() && best.0 >= max.get() {
                return None;
            }
            if ask.size >= max.get() && best.0 >= ask.size + slack {
                return None;
            }
        }
        Some((best.2, best.3))
    }

    fn driver(&mut self, ask: Ask) -> Option<(usize, usize)> {
        let bytes = if ask.home.1 {
            2 * MIB
        } else if ask.size < 10 * MIB {
            self.config.large_segment.get()
        } else {
            ask.size.div_ceil(2 * MIB) * 2 * MIB
        };
        if self.config.memory_limit.is_some_and(|l| self.reserved() + bytes > l.get()) {
            return None;
        }
        if self.config.reject_above.is_some_and(|l| self.reserved() + bytes > l.get()) {
            self.rejections += 1;
            return None;
        }
        if ask.expandable {
            return self.expand(ask);
        }
        if self.config.capacity.is_some_and(|c| self.reserved() + bytes > c.get()) {
            return None;
        }
        self.device.0 += 1;
        let at = self.next_at;
        self.next_at += bytes;
        Some((self.region(ask.home, at, bytes, Kind::Free, false), 0))
    }

    fn region(&mut self, home: Home, at: u64, size: u64, kind: Kind, expandable: bool) -> usize {
        let page = if home.1 { 2 * MIB } else { self.config.large_segment.get() };
        let freed = self.age(home);
        let (born, requested) = (self.tick(), 0);
        self.made += 1;
        let pieces = vec![Piece { at, size, kind, requested, born, freed }];
        self.regions.push(Region { home, expandable, pieces, made: self.made, page });
        self.regions.len() - 1
    }

    fn age(&self, home: Home) -> u64 {
        self.searches.get(&(home.0, home.1)).copied().unwrap_or(0)
    }

    fn expand(&mut self, ask: Ask) -> Option<(usize, usize)> {
        let page = if ask.home.1 { 2 * MIB } else { self.config.large_segment.get() };
        let (r, mut at) = match self.run(ask) {
            Some(found) => found,
            None => {
                let device = self.config.capacity.map_or(1 << 42, Bytes::get);
                let size = (device + device / 8).max(ask.size).div_ceil(page) * page;
                let start = self.next_at.div_ceil(page) * page;
                self.next_at = (start + size).div_ceil(2 * MIB) * 2 * MIB;
                (self.region(ask.home, start, size, Kind::Unmapped, true), 0)
            }
        };
        // Bring the run to the front of one growing free piece at index `at`.
        if self.regions[r].pieces[at].kind == Kind::Unmapped {
            at = self.map(r, at, ask.size)?;
        }
        while self.regions[r].pieces[at].size < ask.size {
            let missing = ask.size - self.regions[r].pieces[at].size;
            at = self.map(r, at + 1, missing)?;
        }
        Some((r, at))
    }

    fn run(&self, ask: Ask) -> Option<(usize, usize)> {
        let mut order: Vec<usize> = (0..self.regions.len())
            .filter(|r| self.regions[*r].home == ask.home && self.regions[*r].expandable)
            .collect();
        order.sort_by_key(|r| self.regions[*r].pieces[0].at);
        for r in order {
            let pieces = &self.regions[r].pieces;
            for p in 0..pieces.len() {
                if pieces[p].kind != Kind::Unmapped {
                    continue;
                }
                let start = if p > 0 && pieces[p - 1].kind == Kind::Free { p - 1 } else { p };
                let usable = (pieces[start..].iter())
                    .take_while(|p| matches!(p.kind, Kind::Free | Kind::Unmapped));
                if usable.map(|p| p.size).sum::<u64>() >= ask.size {
                    return Some((r, start));
                }
            }
        }
        None
    }

    fn map(&mut self, r: usize, p: usize, bytes: u64) -> Option<usize> {
        let (piece, page) = (self.regions[r].pieces[p].clone(), self.regions[r].page);
        let mapped = bytes.min(piece.size).div_ceil(page) * page;
        if self.config.capacity.is_some_and(|c| self.reserved() + mapped > c.get()) {
            return None;
        }
        if mapped < piece.size {
            let born = self.tick();
            let rest = Piece { at: piece.at + mapped, size: piece.size - mapped, born, ..piece };
            self.regions[r].pieces.insert(p + 1, rest);
        }
        let freed = self.age(self.regions[r].home);
        let piece = &mut self.regions[r].pieces[p];
        piece.size = mapped;
        piece.kind = Kind::Free;
        piece.freed = freed;
        self.device.0 += 1;
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

    fn find(&self, kind: &Kind) -> Option<(usize, usize)> {
        self.regions.iter().enumerate().find_map(|(r, region)| {
            region.pieces.iter().position(|p| p.kind == *kind).map(|p| (r, p))
        })
    }

    /// Another stream uses a block.
    pub fn record(&mut self, owner: u32, stream: u16) {
        let (r, _) = self.find(&Kind::Used(owner)).unwrap();
        if self.regions[r].home.2 != stream {
            let capturing = self.capturing(0);
            *self.shared.entry(owner).or_default().entry(stream).or_default() |= capturing;
        }
    }

    pub fn free(&mut self, owner: u32) {
        if self.shared.contains_key(&owner) {
            self.pend(owner);
            if self.capturing(0) {
                self.deferred.push(owner);
            } else {
                self.shared.remove(&owner);
                self.wait(owner);
            }
        } else {
            self.complete(owner);
        }
    }

    /// A free that says itself when it completes, with [`complete`](Self::complete).
    pub fn ask_free(&mut self, owner: u32) {
        self.shared.remove(&owner);
        self.pend(owner);
        self.asked.push(owner);
    }

    fn pend(&mut self, owner: u32) {
        let (r, p) = self.find(&Kind::Used(owner)).unwrap();
        self.regions[r].pieces[p].kind = Kind::Pending(owner);
    }

    fn wait(&mut self, owner: u32) {
        match self.config.pending_frees {
            PendingFrees::Immediate => self.complete(owner),
            _ => self.waiting.push(owner),
        }
    }

    fn start_deferred(&mut self) {
        for owner in std::mem::take(&mut self.deferred) {
            let streams = self.shared.remove(&owner).unwrap_or_default();
            if streams.values().any(|captured| !captured) {
                self.wait(owner);
            } else {
                self.complete(owner);
            }
        }
    }

    /// The streams are done with what waits now; the next request will see it.
    pub fn finish_streams(&mut self) {
        self.done = self.waiting.len();
    }

    fn finish_waiting(&mut self) {
        self.done = 0;
        for owner in std::mem::take(&mut self.waiting) {
            self.complete(owner);
        }
    }

    /// A block becomes free; nothing happens to one that is free already.
    pub fn complete(&mut self, owner: u32) {
        self.asked.retain(|asked| *asked != owner);
        let found = self.find(&Kind::Used(owner)).or_else(|| self.find(&Kind::Pending(owner)));
        if let Some((r, p)) = found {
            let freed = self.age(self.regions[r].home);
            self.regions[r].pieces[p].kind = Kind::Free;
            self.regions[r].pieces[p].freed = freed;
            self.merge(r, p);
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
        if reserved <= threshold {
            return;
        }
        let (target, now, mut freed) = (reserved - threshold, self.age((0, false, 0)), 0);
        loop {
            let whole = |r: &Region| (r.home.0, r.home.1) == (0, false) && r.whole();
            let ages: Vec<u64> =
                self.regions.iter().filter(|r| whole(r)).map(|r| now - r.pieces[0].freed).collect();
            if freed >= target || ages.is_empty() {
                return;
            }
            let mean = ages.iter().sum::<u64>() as f64 / ages.len() as f64;
            self.regions.retain(|r| {
                let old = whole(r) && (now - r.pieces[0].freed) as f64 >= mean;
                freed += if old { r.pieces[0].size } else { 0 };
                self.device.1 += u64::from(old);
                !old
            });
        }
    }

    fn release_oversize(&mut self, ask: Ask) -> bool {
        let Some(max) = self.config.max_split_size else { return false };
        let key = ask.size.max(max.get());
        let mut free: Vec<(u64, u64, usize)> = Vec::new();
        for (r, region) in self.regions.iter().enumerate().filter(|(_, r)| r.home == ask.home) {
            for p in region.pieces.iter().filter(|p| p.kind == Kind::Free) {
                free.push((p.size, self.tie(region, p), r));
            }
        }
        free.sort();
        let first = free.iter().position(|f| f.0 >= key);
        let mut gone = Vec::new();
        let mut released = 0;
        let enough = match first {
            Some(one) if !self.regions[free[one].2].expandable => {
                gone.extend(self.regions[free[one].2].whole().then_some(free[one].2));
                !gone.is_empty()
            }
            _ => {
                for one in free[..first.unwrap_or(free.len())].iter().rev() {
                    if released >= key || one.0 < max.get() {
                        break;
                    }
                    if self.regions[one.2].whole() {
                        gone.push(one.2);
                        released += one.0;
                    }
                }
                released >= key
            }
        };
        gone.sort();
        for r in gone.into_iter().rev() {
            self.device.1 += 1;
            self.regions.remove(r);
        }
        enough
    }

    pub fn flush(&mut self) {
        self.flush_unless(self.capturing(0));
    }

    fn flush_unless(&mut self, capturing: bool) {
        if !capturing {
            self.synchronized += 1;
            self.start_deferred();
            self.finish_waiting();
            for owner in std::mem::take(&mut self.asked) {
                self.complete(owner);
            }
        }
        let may = |pool: u16| {
            let unused = self.pools.get(&pool).is_some_and(|p| p.users == 0);
            if pool == 0 { !capturing } else { unused }
        };
        self.device.1 += self.regions.iter().filter(|r| may(r.home.0) && r.whole()).count() as u64;
        self.regions.retain(|r| !(may(r.home.0) && r.whole()));
        // In the order of torch's free lists: it decides which left-over end is the older block.
        let mut order = Vec::new();
        for region in self.regions.iter().filter(|r| may(r.home.0) && r.expandable) {
            for piece in region.pieces.iter().filter(|p| p.kind == Kind::Free) {
                let (pool, small, stream) = region.home;
                let large_first = if pool == 0 { small } else { !small };
                order.push((
                    pool,
                    large_first,
                    stream,
                    piece.size,
                    self.tie(region, piece),
                    piece.at,
                ));
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
        let page = self.regions[r].page;
        let piece = self.regions[r].pieces[p].clone();
        let base = self.regions[r].pieces[0].at;
        let (from, to) = (piece.at - base, piece.at + piece.size - base);
        let (start, end) = (base + from.div_ceil(page) * page, base + to / page * page);
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
        self.device.1 += 1;
        true
    }

    fn tie(&self, region: &Region, piece: &Piece) -> u64 {
        match self.config.tie_break {
            TieBreak::LowestAddress => piece.at,
            TieBreak::OldestBlock => piece.born,
            TieBreak::OldestSegment => (region.made << 44) + piece.at - region.pieces[0].at,
        }
    }
}
