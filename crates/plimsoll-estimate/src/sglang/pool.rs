//! SGLang's pools: one for tokens (two with sliding windows), one for recurrent states, sized by fixed ratios.

use crate::kv::{Kept, LayerCache};

use super::facts::facts;

/// Tokens and states that fit in a number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Tokens of layers that keep all positions (of all layers, without windows).
    pub tokens: u64,
    /// Tokens of sliding layers; 0 where there are none.
    pub window_tokens: u64,
    /// Recurrent states; 0 where there are none.
    pub states: u64,
    /// Bytes of the token pools, with the one extra slot that padding writes to.
    pub token_bytes: u64,
    /// Bytes of the state pool, extra slot included.
    pub state_bytes: u64,
}

/// What one token and one sequence cost on a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// Bytes per token in layers that keep all positions.
    pub full: u64,
    /// Bytes per token in sliding layers.
    pub window: u64,
    /// Bytes of the states of one sequence.
    pub state: u64,
}

impl Costs {
    /// Sums the caches of a rank's layers.
    pub fn new(caches: &[LayerCache], conv_bytes: u64, speculative: u64) -> Costs {
        let mut costs = Costs::default();
        for cache in caches {
            match *cache {
                LayerCache::Tokens { kept: Kept::Window(_), bytes } => {
                    costs.window = costs.window.saturating_add(bytes);
                }
                // Chunked layers keep everything: there is no chunk pool.
                LayerCache::Tokens { bytes, .. } => costs.full = costs.full.saturating_add(bytes),
                LayerCache::State { conv, ssm, .. } => {
                    let bytes = conv
                        .saturating_mul(conv_bytes)
                        .saturating_add(ssm.saturating_mul(facts().state_element_bytes));
                    // Speculation keeps an intermediate state per drafted token of a running sequence.
                    let copies = speculative.saturating_add(1);
                    costs.state = costs.state.saturating_add(bytes.saturating_mul(copies));
                }
            }
        }
        if costs.full == 0 {
            // Only sliding layers: one pool.
            (costs.full, costs.window) = (costs.window, 0);
        }
        costs
    }

    /// Divides `bytes`.
    pub fn divide(&self, bytes: u64) -> Pools {
        let mut pools = Pools::default();
        let mut rest = bytes;
        if self.state > 0 {
            let ratio = facts().mamba_full_memory_ratio_permille;
            let share = if self.full == 0 { bytes } else { scale(bytes, ratio, ratio + 1000) };
            pools.states = share.checked_div(self.state).unwrap_or(0);
            rest = bytes.saturating_sub(pools.states.saturating_mul(self.state));
            pools.state_bytes = pools.states.saturating_add(1).saturating_mul(self.state);
        }
        let ratio = facts().swa_full_tokens_ratio_permille;
        let per_token = u128::from(self.full) * 1000 + u128::from(self.window) * u128::from(ratio);
        let tokens = (u128::from(rest) * 1000).checked_div(per_token).unwrap_or(0);
        pools.tokens = u64::try_from(tokens).unwrap_or(u64::MAX);
        if self.window > 0 {
            pools.window_tokens = scale(pools.tokens, ratio, 1000);
        }
        let full = pools.tokens.saturating_add(1).saturating_mul(self.full);
        let window = match self.window {
            0 => 0,
            window => pools.window_tokens.saturating_add(1).saturating_mul(window),
        };
        pools.token_bytes = full.saturating_add(window);
        pools
    }
}

fn scale(n: u64, numerator: u64, denominator: u64) -> u64 {
    let wide = u128::from(n) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slot_more_is_allocated() {
        // Qwen3-8B: 72816 tokens of 147456 bytes; 10,737,303,552 bytes were allocated.
        let cache = LayerCache::Tokens { kept: Kept::Full, bytes: 4096 };
        let costs = Costs::new(&[cache; 36], 2, 0);
        let pools = costs.divide(10 << 30);
        assert_eq!((pools.tokens, pools.token_bytes), (72_817, 147_456 * 72_818));
    }

    #[test]
    fn windows_hold_a_share_of_the_tokens() {
        let full = LayerCache::Tokens { kept: Kept::Full, bytes: 1000 };
        let window = LayerCache::Tokens { kept: Kept::Window(512), bytes: 1000 };
        let pools = Costs::new(&[full, window, window], 2, 0).divide(2_600_000);
        assert_eq!((pools.tokens, pools.window_tokens), (1000, 800));
    }
}
