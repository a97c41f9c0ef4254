//! From an [`Architecture`] to the list of its parameters. One function per kind of part; names come from the
//! naming tables, shapes from the architecture, nothing from anywhere else.

use crate::arch::{
    Architecture, Attention, Embedding, Ffn, GatedDelta, HeadTransform, LatentAttention, Layer,
    Mamba1, Mamba2, Mixer, Mlp, Moe, Norm, Patch, Positions, QkNorm, Stack, StackRole,
};

use super::naming::Names;
use super::{Inventory, Parameter, Part};

/// Every parameter of `architecture`, as `parameters()` of the published class lists them: tied tables once, buffers
/// left out. Sizes saturate, they never wrap.
///
/// ```
/// use plimsoll_model::{hf, inventory};
/// let config = br#"{"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
///                   "vocab_size": 50257}"#;
/// let imported = hf::from_config(config).unwrap();
/// assert_eq!(inventory::inventory(&imported.architecture).elements(), 124_439_808);
/// ```
pub fn inventory(architecture: &Architecture) -> Inventory {
    let names = architecture.naming.names();
    let rows = architecture.stacks.iter().map(|s| s.layers.len()).sum::<usize>().saturating_mul(16);
    let mut out = Emitter {
        rows: Vec::with_capacity(rows.min(1 << 16)),
        names,
        prefix: String::with_capacity(64),
        stack: None,
        layer: None,
    };
    if let Some(embedding) = &architecture.embedding {
        out.tables(architecture, embedding);
    }
    for (index, stack) in architecture.stacks.iter().enumerate() {
        out.stack = Some(index);
        out.stack(architecture, stack);
    }
    (out.stack, out.layer, out.names) = (None, None, names);
    out.head(architecture);
    out.rows.extend(architecture.extra.iter().map(|extra| Parameter {
        name: extra.name.clone(),
        shape: extra.shape.clone(),
        count: 1,
        stack: extra.stack,
        layer: extra.layer,
        part: extra.part,
        bias: extra.bias,
        frozen: false,
    }));
    Inventory { parameters: out.rows }
}

struct Emitter {
    rows: Vec<Parameter>,
    names: &'static Names,
    prefix: String,
    stack: Option<usize>,
    layer: Option<usize>,
}

impl Emitter {
    /// One tensor. `path` follows the rules of [`Names`]. An empty path emits nothing: the convention has no such
    /// part.
    fn push(&mut self, part: Part, path: &str, bias: bool, shape: &[u64]) {
        if path.is_empty() {
            return;
        }
        let (path, suffix) = match (path.strip_prefix('='), bias) {
            (Some(whole), false) => (whole, ""),
            (Some(whole), true) => (whole, "_bias"),
            (None, false) => (path, ".weight"),
            (None, true) => (path, ".bias"),
        };
        let mut name = String::with_capacity(self.prefix.len() + path.len() + suffix.len());
        name.push_str(&self.prefix);
        name.push_str(path);
        name.push_str(suffix);
        self.rows.push(Parameter {
            name,
            shape: shape.to_vec(),
            count: 1,
            stack: self.stack,
            layer: self.layer,
            part,
            bias,
            frozen: false,
        });
    }

    /// A tensor whose name is `prefix` + `path` + `tail`.
    fn push_under(&mut self, part: Part, path: &str, tail: &str, bias: bool, shape: &[u64]) {
        let kept = self.prefix.len();
        self.prefix.push_str(path);
        self.push(part, tail, bias, shape);
        self.prefix.truncate(kept);
    }

    fn linear(&mut self, part: Part, path: &str, outputs: u64, inputs: u64, bias: bool) {
        let shape = if self.names.transposed { [inputs, outputs] } else { [outputs, inputs] };
        self.push(part, path, false, &shape);
        if bias {
            self.push(part, path, true, &[outputs]);
        }
    }

    fn norm(&mut self, part: Part, path: &str, norm: Norm, shape: &[u64]) {
        if norm.weight {
            self.push(part, path, false, shape);
        }
        if norm.bias {
            self.push(part, path, true, shape);
        }
    }

    fn at(&mut self, prefix: &str) {
        self.prefix.clear();
        self.prefix.push_str(prefix);
    }

    fn tables(&mut self, architecture: &Architecture, embedding: &Embedding) {
        let names = self.names;
        self.at(&architecture.root);
        self.push(Part::TokenEmbedding, names.token, false, &[embedding.vocab, embedding.width]);
        if let Some(row) = self.rows.last_mut() {
            row.count = embedding.tables.max(1);
        }
        if !embedding.per_stack {
            let width = if names.wide_positions { architecture.hidden } else { embedding.width };
            self.positions(embedding, width);
        }
        if let Some(rows) = embedding.token_types {
            self.push(Part::TypeEmbedding, names.segment, false, &[rows, embedding.width]);
        }
        if let (Some(norm), false) = (embedding.norm, embedding.per_stack) {
            self.norm(Part::EmbeddingNorm, names.embedding_norm, norm, &[embedding.width]);
        }
        if let Some(bias) = embedding.projection {
            self.linear(
                Part::EmbeddingProjection,
                names.embedding_projection,
                architecture.hidden,
                embedding.width,
                bias,
            );
        }
    }

    fn positions(&mut self, embedding: &Embedding, width: u64) {
        let names = self.names;
        match embedding.positions {
            Positions::Learned { rows } | Positions::Sinusoidal { rows, is_parameter: true } => {
                self.push(Part::PositionEmbedding, names.position, false, &[rows, width]);
            }
            _ => {}
        }
    }

    fn stack(&mut self, architecture: &Architecture, stack: &Stack) {
        self.names = stack.naming.names();
        self.layer = None;
        self.at(&stack.root);
        if let Some(patch) = &stack.patch {
            self.patch(stack, patch);
        }
        let text = matches!(stack.role, StackRole::Encoder | StackRole::Decoder);
        if let (Some(embedding), true) = (&architecture.embedding, text)
            && embedding.per_stack
        {
            self.positions(embedding, stack.hidden);
            if let Some(norm) = embedding.norm {
                self.norm(Part::EmbeddingNorm, self.names.stack_norm, norm, &[stack.hidden]);
            }
        }
        let layers =
            if stack.shared { stack.layers.get(..1).unwrap_or(&[]) } else { &stack.layers[..] };
        for (index, layer) in layers.iter().enumerate() {
            self.layer = Some(index);
            self.prefix.clear();
            self.prefix.push_str(&stack.prefix);
            self.prefix.push('.');
            push_decimal(&mut self.prefix, index);
            self.prefix.push('.');
            if let Some(naming) = layer.naming {
                self.names = naming.names();
                self.layer(stack.hidden, layer);
                self.names = stack.naming.names();
            } else {
                self.layer(stack.hidden, layer);
            }
        }
        self.layer = None;
        if let Some(norm) = stack.final_norm {
            self.at(&stack.root);
            self.norm(Part::FinalNorm, self.names.final_norm, norm, &[stack.hidden]);
        }
    }

    fn patch(&mut self, stack: &Stack, patch: &Patch) {
        let names = self.names;
        let hidden = stack.hidden;
        if stack.role == StackRole::Audio {
            self.push(Part::Patch, names.patch, false, &[hidden, patch.channels, patch.size]);
            self.push(Part::Patch, names.patch, true, &[hidden]);
            self.push(Part::Patch2, names.patch2, false, &[hidden, hidden, patch.size]);
            self.push(Part::Patch2, names.patch2, true, &[hidden]);
            if patch.position_rows > 0 {
                self.push(
                    Part::PositionEmbedding,
                    names.position,
                    false,
                    &[patch.position_rows, hidden],
                );
                // A fixed sinusoid that `parameters()` lists.
                if let Some(row) = self.rows.last_mut() {
                    row.frozen = true;
                }
            }
            return;
        }
        let square = [hidden, patch.channels, patch.size, patch.size];
        self.push(Part::Patch, names.patch, false, &square);
        if patch.bias {
            self.push(Part::Patch, names.patch, true, &[hidden]);
        }
        let ones = names.leading_ones;
        if patch.extra_tokens > 0 {
            // Tokens beyond the first have names of their own and are spelt out as extras.
            let shape: &[u64] = if ones { &[1, 1, hidden] } else { &[hidden] };
            self.push(Part::ExtraToken, names.class_token, false, shape);
        }
        if patch.position_rows > 0 {
            let shape: &[u64] = if ones {
                &[1, patch.position_rows, hidden]
            } else {
                &[patch.position_rows, hidden]
            };
            self.push(Part::PositionEmbedding, names.stack_position, false, shape);
        }
    }

    fn layer(&mut self, hidden: u64, layer: &Layer) {
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(hidden, attention),
            Mixer::Latent(latent) => self.latent(hidden, latent),
            Mixer::Mamba1(mamba) => self.mamba1(hidden, mamba),
            Mixer::Mamba2(mamba) => self.mamba2(hidden, mamba),
            Mixer::GatedDelta(delta) => self.gated_delta(hidden, delta),
            Mixer::ShortConv { kernel, bias, .. } => self.short_conv(hidden, *kernel, *bias),
            Mixer::Parallel(attention, mamba) => {
                self.attention(hidden, attention);
                self.mamba2(hidden, mamba);
            }
            Mixer::None => {}
        }
        if let Some(cross) = &layer.cross {
            self.cross(hidden, cross);
        }
        match &layer.ffn {
            Ffn::Dense(mlp) => self.mlp(hidden, mlp),
            Ffn::Moe(moe) => self.moe(hidden, moe),
            Ffn::None => {}
        }
        self.layer_norms(hidden, layer);
    }

    fn layer_norms(&mut self, hidden: u64, layer: &Layer) {
        const PARTS: [Part; 4] = [Part::Norm1, Part::Norm2, Part::Norm3, Part::Norm4];
        let names = self.names;
        let own = if layer.cross.is_some() { layer.norms.saturating_sub(1) } else { layer.norms };
        let skipped = usize::from(names.drops_first_norm && own == 1);
        for (part, path) in PARTS.iter().zip(names.norms).skip(skipped).take(own.min(4) as usize) {
            self.norm(*part, path, layer.norm, &[hidden]);
        }
        if layer.cross.is_some() && layer.norms > 0 {
            self.norm(Part::Norm3, names.cross_norm, layer.norm, &[hidden]);
        }
    }

    fn attention(&mut self, hidden: u64, a: &Attention) {
        let names = self.names;
        let query = a.heads.saturating_mul(a.head_dim).saturating_mul(1 + u64::from(a.gated));
        let key = a.kv_heads.saturating_mul(a.head_dim);
        let value = a.kv_heads.saturating_mul(a.value_dim);
        if a.fused_qkv {
            let all = query.saturating_add(key).saturating_add(value);
            self.linear(Part::Qkv, names.qkv, all, hidden, a.qkv_bias);
        } else {
            self.linear(Part::Query, names.q, query, hidden, a.qkv_bias);
            if !a.shares_kv {
                self.linear(Part::Key, names.k, key, hidden, a.key_bias.unwrap_or(a.qkv_bias));
                if !a.value_is_key {
                    self.linear(Part::Value, names.v, value, hidden, a.qkv_bias);
                }
            }
        }
        self.linear(Part::Output, names.o, hidden, a.heads.saturating_mul(a.value_dim), a.out_bias);
        let (query_shape, key_shape, bias): (&[u64], &[u64], bool) = match a.qk_norm {
            QkNorm::None => (&[], &[], false),
            QkNorm::PerHead => (&[a.head_dim], &[a.head_dim], false),
            QkNorm::PerHeadLayer => (&[a.head_dim], &[a.head_dim], true),
            QkNorm::Full => (&[a.heads.saturating_mul(a.head_dim)], &[key], false),
            QkNorm::PerHeadWeights => (&[a.heads, a.head_dim], &[a.kv_heads, a.head_dim], false),
        };
        if a.qk_norm != QkNorm::None {
            let norm = Norm { bias, ..Norm::LAYER };
            self.head_norm(Part::QueryNorm, names.q_norm, norm, query_shape);
            if !a.shares_kv {
                self.head_norm(Part::KeyNorm, names.k_norm, norm, key_shape);
            }
        }
        if a.sinks {
            self.push(Part::Sinks, names.sinks, false, &[a.heads]);
        }
    }

    /// A norm on queries or keys. Where a convention keeps one module per head (its path has a `*`), the row stands
    /// for all of them.
    fn head_norm(&mut self, part: Part, path: &str, norm: Norm, shape: &[u64]) {
        match shape {
            [heads, width] if path.contains('*') => {
                let first = self.rows.len();
                self.norm(part, path, norm, &[*width]);
                self.rows.iter_mut().skip(first).for_each(|row| row.count = *heads);
            }
            _ => self.norm(part, path, norm, shape),
        }
    }

    fn cross(&mut self, hidden: u64, a: &Attention) {
        let [q, k, v, o] = self.names.cross;
        let key = a.kv_heads.saturating_mul(a.head_dim);
        self.linear(Part::CrossQuery, q, a.heads.saturating_mul(a.head_dim), hidden, a.qkv_bias);
        self.linear(Part::CrossKey, k, key, hidden, a.key_bias.unwrap_or(a.qkv_bias));
        self.linear(
            Part::CrossValue,
            v,
            a.kv_heads.saturating_mul(a.value_dim),
            hidden,
            a.qkv_bias,
        );
        self.linear(Part::CrossOutput, o, hidden, a.heads.saturating_mul(a.value_dim), a.out_bias);
    }

    fn latent(&mut self, hidden: u64, a: &LatentAttention) {
        let at = self.names.latent;
        let query = a.heads.saturating_mul(a.nope_dim.saturating_add(a.rope_dim));
        let up = a.heads.saturating_mul(a.nope_dim.saturating_add(a.value_dim));
        let kept = self.prefix.len();
        self.prefix.push_str(at);
        if let Some(rank) = a.q_lora_rank {
            self.linear(Part::QueryDown, "q_a_proj", rank, hidden, a.bias);
            self.norm(Part::QueryDownNorm, "q_a_layernorm", Norm::RMS, &[rank]);
            self.linear(Part::QueryUp, "q_b_proj", query, rank, false);
        } else {
            self.linear(Part::Query, "q_proj", query, hidden, false);
        }
        let down = a.kv_lora_rank.saturating_add(a.rope_dim);
        self.linear(Part::KvDown, "kv_a_proj_with_mqa", down, hidden, a.bias);
        self.norm(Part::KvDownNorm, "kv_a_layernorm", Norm::RMS, &[a.kv_lora_rank]);
        self.linear(Part::KvUp, "kv_b_proj", up, a.kv_lora_rank, false);
        self.linear(Part::Output, "o_proj", hidden, a.heads.saturating_mul(a.value_dim), a.bias);
        if let Some((heads, channels)) = a.indexer {
            let rank = a.q_lora_rank.unwrap_or(hidden);
            self.linear(Part::Indexer, "indexer.wq_b", heads.saturating_mul(channels), rank, false);
            self.linear(Part::Indexer, "indexer.wk", channels, hidden, false);
            self.norm(Part::Indexer, "indexer.k_norm", Norm::LAYER, &[channels]);
            self.linear(Part::Indexer, "indexer.weights_proj", heads, hidden, false);
        }
        self.prefix.truncate(kept);
    }

    fn mamba1(&mut self, hidden: u64, m: &Mamba1) {
        let at = self.names.ssm;
        let kept = self.prefix.len();
        self.prefix.push_str(at);
        let projected = m.dt_rank.saturating_add(m.state.saturating_mul(2));
        self.push(Part::SsmA, "=A_log", false, &[m.inner, m.state]);
        self.push(Part::SsmD, "=D", false, &[m.inner]);
        self.push(Part::SsmConv, "conv1d", false, &[m.inner, 1, m.conv]);
        if m.conv_bias {
            self.push(Part::SsmConv, "conv1d", true, &[m.inner]);
        }
        self.linear(Part::SsmIn, "in_proj", m.inner.saturating_mul(2), hidden, m.bias);
        self.linear(Part::SsmX, "x_proj", projected, m.inner, false);
        self.linear(Part::SsmDt, "dt_proj", m.inner, m.dt_rank, true);
        self.linear(Part::SsmOut, "out_proj", hidden, m.inner, m.bias);
        if m.inner_norms {
            self.norm(Part::SsmNorm, "dt_layernorm", Norm::RMS, &[m.dt_rank]);
            self.norm(Part::SsmNorm, "b_layernorm", Norm::RMS, &[m.state]);
            self.norm(Part::SsmNorm, "c_layernorm", Norm::RMS, &[m.state]);
        }
        self.prefix.truncate(kept);
    }

    fn mamba2(&mut self, hidden: u64, m: &Mamba2) {
        let at = self.names.ssm;
        let kept = self.prefix.len();
        self.prefix.push_str(at);
        let conv = m.conv_channels();
        self.push(Part::SsmDt, "=dt", true, &[m.heads]);
        self.push(Part::SsmA, "=A_log", false, &[m.heads]);
        self.push(Part::SsmD, "=D", false, &[m.heads]);
        self.push(Part::SsmConv, "conv1d", false, &[conv, 1, m.conv]);
        if m.conv_bias {
            self.push(Part::SsmConv, "conv1d", true, &[conv]);
        }
        let projected = m.inner.saturating_add(conv).saturating_add(m.heads);
        self.linear(Part::SsmIn, "in_proj", projected, hidden, m.bias);
        if m.norm {
            self.norm(Part::SsmNorm, "norm", Norm::RMS, &[m.inner]);
        }
        self.linear(Part::SsmOut, "out_proj", hidden, m.inner, m.bias);
        self.prefix.truncate(kept);
    }

    fn gated_delta(&mut self, hidden: u64, d: &GatedDelta) {
        let at = self.names.ssm;
        let kept = self.prefix.len();
        self.prefix.push_str(at);
        let value = d.value_heads.saturating_mul(d.value_dim);
        let conv = d.conv_channels();
        if self.names.kimi_delta {
            self.kimi_delta(hidden, d, value, conv);
            self.prefix.truncate(kept);
            return;
        }
        self.push(Part::SsmDt, "=dt", true, &[d.value_heads]);
        self.push(Part::SsmA, "=A_log", false, &[d.value_heads]);
        self.push(Part::SsmConv, "conv1d", false, &[conv, 1, d.conv]);
        self.norm(Part::SsmNorm, "norm", Norm::RMS, &[d.value_dim]);
        self.linear(Part::SsmOut, "out_proj", hidden, value, false);
        if self.names.split_delta {
            self.linear(Part::SsmIn, "in_proj_qkv", conv, hidden, false);
            self.linear(Part::SsmIn, "in_proj_z", value, hidden, false);
            self.linear(Part::SsmIn2, "in_proj_b", d.value_heads, hidden, false);
            self.linear(Part::SsmIn2, "in_proj_a", d.value_heads, hidden, false);
        } else {
            self.linear(Part::SsmIn, "in_proj_qkvz", conv.saturating_add(value), hidden, false);
            self.linear(Part::SsmIn2, "in_proj_ba", d.value_heads.saturating_mul(2), hidden, false);
        }
        self.prefix.truncate(kept);
    }

    /// Kimi delta attention: projections of their own, gates through the rank of one head.
    fn kimi_delta(&mut self, hidden: u64, d: &GatedDelta, value: u64, conv: u64) {
        let key = d.key_heads.saturating_mul(d.key_dim);
        self.linear(Part::SsmIn, "q_proj", key, hidden, false);
        self.linear(Part::SsmIn, "k_proj", key, hidden, false);
        self.linear(Part::SsmIn, "v_proj", value, hidden, false);
        self.push(Part::SsmConv, "conv1d", false, &[conv, 1, d.conv]);
        self.push(Part::SsmDt, "=forget_gate.dt", true, &[value]);
        self.push(Part::SsmA, "=forget_gate.A_log", false, &[1, 1, d.value_heads, 1]);
        self.linear(Part::SsmIn2, "forget_gate.f_a_proj", d.value_dim, hidden, false);
        self.linear(Part::SsmIn2, "forget_gate.f_b_proj", value, d.value_dim, false);
        self.linear(Part::SsmIn2, "b_proj", d.value_heads, hidden, false);
        self.linear(Part::SsmIn2, "g_a_proj", d.value_dim, hidden, false);
        self.linear(Part::SsmIn2, "g_b_proj", value, d.value_dim, false);
        self.norm(Part::SsmNorm, "o_norm", Norm::RMS, &[d.value_dim]);
        self.linear(Part::SsmOut, "o_proj", hidden, value, false);
    }

    fn short_conv(&mut self, hidden: u64, kernel: u64, bias: bool) {
        let at = self.names.ssm;
        self.push_under(Part::SsmConv, at, "conv", false, &[hidden, 1, kernel]);
        if bias {
            self.push_under(Part::SsmConv, at, "conv", true, &[hidden]);
        }
        let kept = self.prefix.len();
        self.prefix.push_str(at);
        self.linear(Part::SsmIn, "in_proj", hidden.saturating_mul(3), hidden, bias);
        self.linear(Part::SsmOut, "out_proj", hidden, hidden, bias);
        self.prefix.truncate(kept);
    }

    fn mlp(&mut self, hidden: u64, mlp: &Mlp) {
        let names = self.names;
        if mlp.gated && mlp.fused_gate {
            self.linear(Part::GateUp, names.gate_up, mlp.width.saturating_mul(2), hidden, mlp.bias);
        } else {
            if mlp.gated {
                self.linear(Part::Gate, names.gate, mlp.width, hidden, mlp.bias);
            }
            let up =
                if mlp.gated && !names.gated_up.is_empty() { names.gated_up } else { names.up };
            self.linear(Part::Up, up, mlp.width, hidden, mlp.bias);
        }
        self.linear(Part::Down, names.down, hidden, mlp.width, mlp.bias);
    }

    fn moe(&mut self, hidden: u64, moe: &Moe) {
        let names = self.names;
        self.linear(Part::Router, names.router, moe.experts, hidden, moe.router_bias);
        if moe.correction_bias {
            self.push(Part::Router, names.correction, true, &[moe.experts]);
            if let Some(row) = self.rows.last_mut() {
                row.frozen = true;
            }
        }
        let oriented = |outputs: u64, inputs: u64| {
            if names.experts_in_first {
                [moe.experts, inputs, outputs]
            } else {
                [moe.experts, outputs, inputs]
            }
        };
        let (part, path, outputs) = if moe.expert.gated {
            (Part::ExpertGateUp, names.expert_gate_up, moe.expert.width.saturating_mul(2))
        } else {
            (Part::ExpertUp, names.expert_up, moe.expert.width)
        };
        self.push(part, path, false, &oriented(outputs, hidden));
        if moe.expert.bias {
            self.push(part, path, true, &[moe.experts, outputs]);
        }
        self.push(Part::ExpertDown, names.expert_down, false, &oriented(hidden, moe.expert.width));
        if moe.expert.bias {
            self.push(Part::ExpertDown, names.expert_down, true, &[moe.experts, hidden]);
        }
        if let Some(shared) = &moe.shared {
            if shared.gated && shared.fused_gate {
                let both = shared.width.saturating_mul(2);
                self.linear(Part::SharedUp, names.shared_gate_up, both, hidden, shared.bias);
            } else {
                if shared.gated {
                    self.linear(
                        Part::SharedGate,
                        names.shared_gate,
                        shared.width,
                        hidden,
                        shared.bias,
                    );
                }
                self.linear(Part::SharedUp, names.shared_up, shared.width, hidden, shared.bias);
            }
            self.linear(Part::SharedDown, names.shared_down, hidden, shared.width, shared.bias);
        }
        if moe.shared_gate {
            self.linear(Part::SharedScale, names.shared_scale, 1, hidden, false);
        }
    }

    fn head(&mut self, architecture: &Architecture) {
        let names = self.names;
        let head = &architecture.head;
        let hidden = architecture.main_stack().map_or(architecture.hidden, |s| s.hidden);
        let width = match &architecture.embedding {
            Some(embedding) if names.narrow_head || head.tied => embedding.width,
            _ => hidden,
        };
        match head.transform {
            Some(HeadTransform::MaskedLm) => {
                let inner = if names.narrow_head { width } else { hidden };
                self.at(&architecture.head_root);
                self.linear(Part::HeadDense, names.head_dense, inner, hidden, !names.lean_head);
                let norm = Norm { bias: !names.lean_head, ..Norm::LAYER };
                self.norm(Part::HeadNorm, names.head_norm, norm, &[inner]);
            }
            Some(HeadTransform::Pooler) => {
                self.at(&architecture.root);
                self.linear(Part::HeadDense, names.pooler, hidden, hidden, true);
            }
            None => {}
        }
        if head.outputs == 0 {
            return;
        }
        self.at(&architecture.head_root);
        let path =
            if head.transform == Some(HeadTransform::Pooler) { "classifier" } else { names.head };
        if !head.tied {
            self.push(Part::Head, path, false, &[head.outputs, width]);
        }
        if head.bias {
            let masked =
                head.transform == Some(HeadTransform::MaskedLm) && !names.head_bias.is_empty();
            if masked {
                // The whole name, as the table has it.
                let kept = self.rows.len();
                self.push(Part::Head, names.head_bias, false, &[head.outputs]);
                self.rows.iter_mut().skip(kept).for_each(|row| row.bias = true);
            } else {
                self.push(Part::Head, path, true, &[head.outputs]);
            }
        }
    }
}

/// Appends `number` without the formatting machinery; names are the hot path of an import.
fn push_decimal(text: &mut String, number: usize) {
    if number >= 10 {
        push_decimal(text, number / 10);
    }
    text.push(char::from(b'0' + (number % 10) as u8));
}
