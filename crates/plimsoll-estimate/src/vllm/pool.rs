//! Blocks of the KV pool. Layers that keep different things form groups of equally many layers whose pages have
//! one size; a block is one page in every layer of a group. The printed number of tokens follows from the blocks,
//! and how it does has changed between releases.

use crate::kv::{Kept, LayerCache};
use crate::request::Version;

use super::facts::{Facts, latest};

/// What a group of layers takes from the pool for one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GroupKind {
    /// Blocks of so many tokens.
    Tokens {
        /// Positions that are kept.
        kept: Kept,
        /// Tokens per block.
        block: u64,
    },
    /// So many blocks, whatever the length.
    State {
        /// Blocks per request.
        blocks: u64,
    },
}

/// The layout of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Bytes that one block takes over all layers of a group.
    pub block_bytes: u64,
    /// The groups; equal ones are repeated.
    pub groups: Vec<GroupKind>,
    /// Layers per group.
    pub group_layers: u64,
    /// Most tokens that a step processes: what a window holds beyond its own length.
    pub batched: u64,
    by_concurrency: bool,
}

/// What the layout depends on besides the layers.
#[derive(Clone, Copy, Debug)]
pub struct PoolInputs {
    /// Release.
    pub version: Version,
    /// Tokens per block that was asked for.
    pub block: Option<u64>,
    /// Bytes of an element of a convolution state.
    pub conv_bytes: u64,
    /// Bytes of an element of a recurrent state.
    pub ssm_bytes: u64,
    /// Speculative tokens.
    pub speculative: u64,
    /// Most tokens of a step.
    pub batched: u64,
}

impl Pool {
    /// Lays out the caches of one rank's layers. `None` where no layer keeps anything.
    pub fn new(facts: &Facts, caches: &[LayerCache], inputs: &PoolInputs) -> Option<Pool> {
        let mut block = inputs.block.unwrap_or(facts.cache.block).max(1);
        let state = caches.iter().filter_map(|c| state_bytes(c, inputs)).max();
        let token_bytes = caches.iter().filter_map(token_bytes).max();
        if let (Some(state), Some(bytes)) = (state, token_bytes) {
            // An attention page must hold at least one state; blocks grow in steps of the kernels' alignment.
            let step = facts.cache.block.max(1);
            let needed = state.div_ceil(bytes.saturating_mul(step).max(1)).saturating_mul(step);
            block = block.max(needed);
        }
        let state_kind = GroupKind::State { blocks: inputs.speculative.saturating_add(1) };
        let hybrid = inputs.version >= facts.cache.hybrid_since.0;
        let kept_of = |kept: Kept| if hybrid { kept } else { Kept::Full };
        let page = match token_bytes {
            Some(bytes) => bytes.saturating_mul(block),
            None => state?,
        };
        let mut kinds: Vec<(GroupKind, u64)> = Vec::new();
        let mut sum = 0u64;
        for cache in caches {
            let kind = match *cache {
                LayerCache::Tokens { kept, bytes } => {
                    let bytes = bytes.max(1);
                    sum = sum.saturating_add(bytes.saturating_mul(block));
                    // Smaller pages hold more tokens, by a whole factor.
                    let factor = (page / bytes.saturating_mul(block).max(1)).max(1);
                    GroupKind::Tokens { kept: kept_of(kept), block: block.saturating_mul(factor) }
                }
                LayerCache::State { .. } => {
                    sum = sum.saturating_add(page);
                    state_kind
                }
            };
            match kinds.iter_mut().find(|(k, _)| *k == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        let by_concurrency = inputs.version >= facts.cache.tokens_by_concurrency_since.0;
        let batched = inputs.batched;
        if let Some(kind) = single_kind(&kinds, block) {
            let (block_bytes, groups) = (sum, vec![kind]);
            let group_layers = caches.len() as u64;
            return Some(Pool { block_bytes, groups, group_layers, batched, by_concurrency });
        }
        let growth = latest(&facts.cache.group_growth_permille, inputs.version, |g| g.since)
            .map_or(1000, |g| g.permille);
        let least = kinds.iter().map(|(_, n)| *n).min()?;
        let most = kinds.iter().map(|(_, n)| *n).max()?;
        let group_layers =
            if most.saturating_mul(1000) < least.saturating_mul(growth) { most } else { least };
        let groups = kinds
            .iter()
            .flat_map(|(kind, n)| std::iter::repeat_n(*kind, n.div_ceil(group_layers) as usize))
            .collect();
        let block_bytes = page.saturating_mul(group_layers);
        Some(Pool { block_bytes, groups, group_layers, batched, by_concurrency })
    }

    /// Blocks in `bytes`.
    pub fn blocks(&self, bytes: u64) -> u64 {
        bytes / self.block_bytes.max(1)
    }

    /// Blocks that a request of `length` tokens takes at most.
    pub fn request_blocks(&self, length: u64) -> u64 {
        self.groups.iter().fold(0u64, |sum, group| {
            sum.saturating_add(match *group {
                GroupKind::State { blocks } => blocks,
                GroupKind::Tokens { kept: Kept::Full, block } => length.div_ceil(block),
                GroupKind::Tokens { kept: Kept::Window(window), block } => {
                    let held = window.saturating_sub(1).saturating_add(self.batched).min(length);
                    held.div_ceil(block).saturating_add(1)
                }
                GroupKind::Tokens { kept: Kept::Chunk(chunk), block } => {
                    chunk.saturating_add(self.batched).min(length).div_ceil(block)
                }
            })
        })
    }

    /// Bytes that a request of `length` tokens takes at most.
    pub fn request_bytes(&self, length: u64) -> u64 {
        self.request_blocks(length).saturating_mul(self.block_bytes)
    }

    /// Requests of `length` tokens at a time, in thousandths.
    pub fn concurrency_permille(&self, blocks: u64, length: u64) -> u64 {
        let permille = u128::from(blocks) * 1000 / u128::from(self.request_blocks(length).max(1));
        u64::try_from(permille).unwrap_or(u64::MAX)
    }

    /// The number of tokens that the engine prints.
    pub fn tokens(&self, blocks: u64, length: u64) -> u64 {
        let smallest = self.groups.iter().filter_map(|g| match g {
            GroupKind::Tokens { block, .. } => Some(*block),
            GroupKind::State { .. } => None,
        });
        match smallest.min() {
            Some(block) if !self.by_concurrency => {
                (blocks / self.groups.len().max(1) as u64).saturating_mul(block)
            }
            _ => {
                let request = u128::from(self.request_blocks(length).max(1));
                u64::try_from(u128::from(blocks) * u128::from(length) / request).unwrap_or(u64::MAX)
            }
        }
    }

    /// The longest request of at most `limit` tokens that `bytes` hold; 0 if none.
    pub fn longest(&self, bytes: u64, limit: u64) -> u64 {
        let fits = |length: u64| self.request_bytes(length) <= bytes;
        if limit == 0 || !fits(1) {
            return 0;
        }
        let (mut good, mut bad) = (1, limit.saturating_add(1));
        while bad - good > 1 {
            let middle = good + (bad - good) / 2;
            if fits(middle) { good = middle } else { bad = middle }
        }
        good
    }

    /// Tokens of the smallest block.
    pub fn block_tokens(&self) -> u64 {
        let blocks = self.groups.iter().filter_map(|g| match g {
            GroupKind::Tokens { block, .. } => Some(*block),
            GroupKind::State { .. } => None,
        });
        blocks.min().unwrap_or(1)
    }
}

/// One kind over all layers, or layers of one kind whose widths differ: a single group.
fn single_kind(kinds: &[(GroupKind, u64)], block: u64) -> Option<GroupKind> {
    let kept = |kind: &GroupKind| match kind {
        GroupKind::Tokens { kept, .. } => Some(*kept),
        GroupKind::State { .. } => None,
    };
    let (first, _) = kinds.first()?;
    if !kinds.iter().all(|(kind, _)| kept(kind) == kept(first)) {
        return None;
    }
    Some(match kept(first) {
        Some(kept) => GroupKind::Tokens { kept, block },
        None => *first,
    })
}

fn token_bytes(cache: &LayerCache) -> Option<u64> {
    match cache {
        LayerCache::Tokens { bytes, .. } => Some(*bytes),
        LayerCache::State { .. } => None,
    }
}

fn state_bytes(cache: &LayerCache, inputs: &PoolInputs) -> Option<u64> {
    match *cache {
        LayerCache::Tokens { .. } => None,
        LayerCache::State { conv, conv_step, ssm } => {
            let conv = conv.saturating_add(conv_step.saturating_mul(inputs.speculative));
            let conv = conv.saturating_mul(inputs.conv_bytes);
            Some(conv.saturating_add(ssm.saturating_mul(inputs.ssm_bytes)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::facts;
    use super::*;

    fn tokens(kept: Kept, bytes: u64, layers: usize) -> Vec<LayerCache> {
        vec![LayerCache::Tokens { kept, bytes }; layers]
    }

    fn inputs(minor: u64, batched: u64, speculative: u64) -> PoolInputs {
        PoolInputs {
            version: Version { major: 0, minor, patch: 0 },
            block: None,
            conv_bytes: 2,
            ssm_bytes: 4,
            speculative,
            batched,
        }
    }

    /// Pool bytes as printed in GiB hundredths.
    fn gib(hundredths: u64) -> u64 {
        (hundredths << 30) / 100
    }

    #[test]
    fn sliding_models_form_groups_of_equal_size() {
        // Blocks and tokens as logs of 0.19 print them.
        for (name, full, window, layers, bytes, pool, blocks, printed) in [
            ("gemma-2-9b", 21, Kept::Window(4096), 21, 8192, 5412, 21110, 168_880),
            ("gemma-3-12b", 8, Kept::Window(1024), 40, 8192, 4772, 48867, 130_304),
            ("gemma-3-27b", 10, Kept::Window(1024), 52, 8192, 1953, 15997, 36_560),
            ("llama-4-scout, 4 ranks", 12, Kept::Chunk(8192), 36, 1024, 1675, 91495, 365_968),
        ] {
            let mut caches = tokens(Kept::Full, bytes, full);
            caches.extend(tokens(window, bytes, layers));
            let pool_layout = Pool::new(facts(), &caches, &inputs(19, 8192, 0)).unwrap();
            let found = pool_layout.blocks(gib(pool));
            assert!(found.abs_diff(blocks) <= blocks / 1000 + 1, "{name}: {found} blocks");
            assert_eq!(pool_layout.tokens(blocks, 8192), printed, "{name}");
        }
    }

    #[test]
    fn states_enlarge_the_attention_block() {
        // Qwen3.5-122B-A10B: fp8 keys and values, f32 states; blocks of 4176 tokens, 4192 with one draft token.
        let state = LayerCache::State { conv: 36_864, conv_step: 12_288, ssm: 1 << 20 };
        for (speculative, attention, expected) in [(0, 12, 4176), (1, 13, 4192)] {
            let mut caches = vec![state; 36];
            caches.extend(tokens(Kept::Full, 1024, attention));
            let pool = Pool::new(facts(), &caches, &inputs(19, 2048, speculative)).unwrap();
            assert_eq!(pool.block_tokens(), expected);
            assert_eq!(pool.groups.len(), 4);
        }
    }

    #[test]
    fn newer_releases_print_concurrency_times_length() {
        // gemma-4-26B-A4B in 0.25: 5 full layers of 4096 bytes, 25 sliding ones of 8192; 83.89 GiB.
        let mut caches = tokens(Kept::Full, 4096, 5);
        caches.extend(tokens(Kept::Window(1024), 8192, 25));
        let pool = Pool::new(facts(), &caches, &inputs(25, 2496, 0)).unwrap();
        let blocks = pool.blocks(gib(8389));
        let printed = pool.tokens(blocks, 262_144);
        assert!(printed.abs_diff(3_875_400) < 3_875, "{printed}");
        assert_eq!(pool.concurrency_permille(blocks, 262_144) / 10, 1478);
    }

    #[test]
    fn the_longest_request_is_exact() {
        let pool = Pool::new(facts(), &tokens(Kept::Full, 4096, 32), &inputs(19, 2048, 0)).unwrap();
        let bytes = pool.block_bytes * 10 + 1;
        assert_eq!(pool.longest(bytes, 8192), 160);
        assert!(pool.request_bytes(160) <= bytes && pool.request_bytes(161) > bytes);
        assert_eq!(pool.longest(0, 8192), 0);
    }
}
