//! What a build of llama.cpp does, by build number. The builds are data with a source; the code only asks.

use serde::Deserialize;

const DATA: &str = include_str!("../../data/llamacpp.json");

/// The fork's own build number from which large products of host experts run on a GPU (ik_llama.cpp PR 520, June
/// 2025; logs of build 3722 do not, of 3772 do).
const FORK_OFFLOADS_EXPERTS: u64 = 3741;

#[derive(Deserialize)]
struct File {
    changes: Vec<Change>,
}

#[derive(Deserialize)]
struct Change {
    key: String,
    build: u64,
}

/// Behaviour of one build. Each field is a change; its meaning stands in the data file.
#[derive(Clone, Debug, Default)]
pub(super) struct Behaviour {
    pub(super) sliding_cache: bool,
    pub(super) encoder_without_cache: bool,
    pub(super) sliding_by_ubatch: bool,
    pub(super) glu: bool,
    pub(super) ordered_expert_sum: bool,
    pub(super) indexed_store: bool,
    pub(super) early_expert_weights: bool,
    pub(super) fused_qkv_views: bool,
    pub(super) output_layer_first: bool,
    pub(super) context_pad_256: bool,
    pub(super) embedding_select: bool,
    pub(super) latent_value_in_key: bool,
    pub(super) value_before_key: bool,
    pub(super) rotated_cache: bool,
    pub(super) next_token_hidden: bool,
    pub(super) half_mask_input: bool,
    pub(super) single_output: bool,
    pub(super) attention_scratch: bool,
    /// Graph outputs include the normed hidden state.
    pub(super) hidden_is_output: bool,
    /// Rows of a mask come in multiples of this.
    pub(super) mask_rows: u64,
    /// ik_llama.cpp: norm and scale in one operator.
    pub(super) fused_norm: bool,
    /// ik_llama.cpp: gate, up and activation in one operator.
    pub(super) fused_up_gate: bool,
    /// ik_llama.cpp: the same for experts (`-fmoe`).
    pub(super) fused_expert_up_gate: bool,
    /// ik_llama.cpp: activation and product in one operator.
    pub(super) fused_mul_unary: bool,
    /// Large products of experts on the host run on a GPU.
    pub(super) offloaded_experts: bool,
    /// ik_llama.cpp: the sum over experts in one operator.
    pub(super) fused_expert_sum: bool,
}

impl Behaviour {
    /// Behaviour of mainline build `build`; the newest known for `None`.
    pub(super) fn mainline(build: Option<u64>) -> Self {
        // The file is part of the crate and a test reads it; an unreadable one would mean the oldest behaviour.
        let changes = serde_json::from_str::<File>(DATA).map_or_else(|_| Vec::new(), |f| f.changes);
        let on =
            |key: &str| changes.iter().any(|c| c.key == key && build.is_none_or(|b| b >= c.build));
        Behaviour {
            sliding_cache: on("sliding_cache"),
            encoder_without_cache: on("encoder_without_cache"),
            sliding_by_ubatch: on("sliding_by_ubatch"),
            glu: on("glu"),
            ordered_expert_sum: on("ordered_expert_sum"),
            indexed_store: on("indexed_store"),
            early_expert_weights: on("early_expert_weights"),
            fused_qkv_views: on("fused_qkv_views"),
            output_layer_first: on("output_layer_first"),
            context_pad_256: on("context_pad_256"),
            embedding_select: on("embedding_select"),
            latent_value_in_key: on("latent_value_in_key"),
            value_before_key: on("value_before_key"),
            rotated_cache: on("rotated_cache"),
            next_token_hidden: on("next_token_hidden"),
            half_mask_input: on("half_mask_input"),
            single_output: on("single_output"),
            attention_scratch: on("attention_scratch"),
            hidden_is_output: on("embedding_select"),
            offloaded_experts: true,
            mask_rows: if on("half_mask_input") { 1 } else { 64 },
            ..Behaviour::default()
        }
    }

    /// Behaviour of the ik_llama.cpp fork, which left mainline in mid 2024 and fuses operators of its own.
    pub(super) fn fork(build: Option<u64>) -> Self {
        Behaviour {
            offloaded_experts: build.is_none_or(|b| b >= FORK_OFFLOADS_EXPERTS),
            sliding_cache: false,
            latent_value_in_key: true,
            fused_norm: true,
            fused_up_gate: true,
            fused_expert_up_gate: true,
            fused_mul_unary: true,
            fused_expert_sum: true,
            mask_rows: 64,
            ..Behaviour::default()
        }
    }

    /// Families with several positions per token.
    pub(super) fn sectioned_positions(&self, family: &str) -> bool {
        matches!(
            super::gguf_family(family),
            "qwen2vl" | "qwen3vl" | "qwen3vlmoe" | "qwen35" | "qwen35moe"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_file_reads_and_every_change_takes_effect() {
        let file: File = serde_json::from_str(DATA).unwrap();
        assert!(file.changes.len() > 10);
        let newest = Behaviour::mainline(None);
        assert!(newest.sliding_cache && newest.attention_scratch && newest.single_output);
        let old = Behaviour::mainline(Some(3805));
        assert!(!old.sliding_cache && !old.glu && !old.single_output);
        assert!(Behaviour::mainline(Some(5427)).sliding_cache);
    }
}
