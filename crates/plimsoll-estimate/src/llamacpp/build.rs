//! The compute graph that llama.cpp reserves for one micro-batch of a model, as far as memory is concerned.
//!
//! One builder serves all families: the architecture says which norms, mixers and feed-forward parts a layer has,
//! and the order of the operators follows `llm_graph_context` (attention, feed-forward, mixture) and the model
//! builders of llama.cpp. The order matters, since it decides what is alive at the same time.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{
    Attention, Ffn, Layer, Mixer, ModelKind, Norm, NormKind, NormPlacement, Positions,
};
use plimsoll_units::DType;

use super::behaviour::Behaviour;
use super::graph::{Graph, HOST, Place, TensorId};
use super::kv::CachePlan;
use super::layout::Layout;

mod attention;
mod ffn;
mod latent;
mod latent_fork;
mod recurrent;

/// Sizes of one reserved batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch {
    /// Tokens.
    pub(super) tokens: u64,
    /// Sequences.
    pub(super) sequences: u64,
    /// Rows of logits.
    pub(super) outputs: u64,
}

/// What the builder needs to know besides the model.
pub(super) struct Context<'a> {
    pub(super) arch: &'a Architecture,
    pub(super) layers: &'a [Layer],
    pub(super) behaviour: &'a Behaviour,
    pub(super) layout: &'a Layout<'a>,
    pub(super) cache: &'a CachePlan,
    pub(super) batch: Batch,
    pub(super) flash_attention: bool,
    pub(super) cache_k: DType,
    pub(super) cache_v: DType,
    /// States kept per sequence beyond the first (speculative decoding).
    pub(super) draft: u64,
    /// ik_llama.cpp.
    pub(super) fork: bool,
    /// Its MLA mode.
    pub(super) mla: u64,
    /// Its limit for one attention product in MiB (`-amb`); 0 for none.
    pub(super) attention_max_mib: u64,
}

pub(super) struct Builder<'a> {
    pub(super) cx: &'a Context<'a>,
    pub(super) g: Graph,
    positions: Option<TensorId>,
    masks: [Option<TensorId>; 2],
    k_index: [Option<TensorId>; 2],
    v_index: [Option<TensorId>; 2],
    rotations: [Option<TensorId>; 2],
    state_index: Option<TensorId>,
}

/// Builds the graph.
pub(super) fn build(cx: &Context<'_>) -> Graph {
    let mut b = Builder {
        cx,
        g: Graph::default(),
        positions: None,
        masks: [None; 2],
        k_index: [None; 2],
        v_index: [None; 2],
        rotations: [None; 2],
        state_index: None,
    };
    b.run();
    b.g
}

impl Builder<'_> {
    fn run(&mut self) {
        let cx = self.cx;
        let mut x = self.embed();
        let out_ids = self.g.input(DType::I32, [cx.batch.outputs, 1, 1, 1]);
        let last = cx.layers.len().saturating_sub(1);
        let late_rows = self.rows_after_norm();
        for (il, layer) in cx.layers.iter().enumerate() {
            let rows = (il == last && !late_rows).then_some(out_ids);
            x = self.layer(il, layer, x, rows);
        }
        self.finish(x, late_rows.then_some(out_ids));
    }

    /// Families whose hidden state feeds a draft head choose output rows after the final norm.
    fn rows_after_norm(&self) -> bool {
        self.cx.behaviour.next_token_hidden
            && matches!(
                super::gguf_family(&self.cx.arch.family),
                "qwen35" | "qwen35moe" | "qwen3next"
            )
    }

    fn embed(&mut self) -> TensorId {
        let (hidden, tokens) = (self.cx.arch.hidden, self.cx.batch.tokens);
        let ids = self.g.input(DType::I32, [tokens, 1, 1, 1]);
        let vocab = self.cx.arch.embedding.as_ref().map_or(1, |e| e.vocab);
        let table = self.g.weight(DType::F16, [hidden, vocab, 1, 1], HOST);
        let rows = self.g.op(DType::F32, [hidden, tokens, 1, 1], &[table, ids]);
        self.g.get_mut(rows).offloadable = false;
        if self.cx.behaviour.embedding_select {
            // The graph also holds the input for callers that pass embeddings instead of tokens.
            let given = self.g.input(DType::F32, [hidden, tokens, 1, 1]);
            self.g.expand(given);
        }
        let mut x = rows;
        let embedding = self.cx.arch.embedding.as_ref();
        if embedding.is_some_and(|e| e.token_types.is_some()) {
            let types = self.g.weight(DType::F32, [hidden, 2, 1, 1], HOST);
            // A window into a weight does not bind the operator to the weight's place.
            let types = self.g.view(types, [hidden, 1, 1, 1]);
            x = self.g.in_place(&[x, types]);
        }
        if matches!(embedding.map(|e| e.positions), Some(Positions::Learned { .. })) {
            let table = self.g.weight(DType::F32, [hidden, 1, 1, 1], HOST);
            let ids = self.positions();
            let places = self.g.op(DType::F32, [hidden, tokens, 1, 1], &[table, ids]);
            self.g.get_mut(places).offloadable = false;
            x = self.g.in_place(&[places, x]);
        }
        if let Some(norm) = embedding.and_then(|e| e.norm) {
            x = self.norm_at(norm, x, HOST);
        }
        if self.cx.behaviour.embedding_select {
            self.g.expand(x);
        }
        x
    }

    fn finish(&mut self, x: TensorId, rows: Option<TensorId>) {
        let generates = matches!(
            self.cx.arch.kind,
            ModelKind::CausalLm
                | ModelKind::VisionLanguage
                | ModelKind::EncoderDecoderLm
                | ModelKind::SpeechSeq2Seq
        );
        let outputs = if generates { self.cx.arch.head.outputs } else { 0 };
        let hidden = self.cx.arch.hidden;
        let last_place = self.cx.layout.output_norm();
        let norm = self.cx.arch.main_stack().and_then(|s| s.final_norm);
        let mut x = match norm {
            Some(n) => self.norm_at(n, x, last_place),
            None => x,
        };
        if let Some(rows) = rows {
            // The hidden state of the whole batch is a result of its own.
            self.g.get_mut(x).output = true;
            x = self.take_rows(x, rows);
        }
        if outputs == 0 {
            self.g.expand(x);
            return;
        }
        self.g.get_mut(x).output = self.cx.behaviour.hidden_is_output;
        let dtype = self.cx.layout.output_dtype();
        let w = self.g.weight(dtype, [hidden, outputs, 1, 1], self.cx.layout.output());
        let mut logits = self.g.matmul(w, x);
        if self.cx.arch.head.bias {
            let b = self.g.weight(DType::F32, [outputs, 1, 1, 1], self.cx.layout.output());
            logits = self.g.in_place(&[logits, b]);
        }
        self.g.get_mut(logits).output = true;
        self.g.expand(logits);
    }

    fn take_rows(&mut self, x: TensorId, rows: TensorId) -> TensorId {
        let mut shape = self.g.get(x).shape;
        shape[1] = self.g.get(rows).shape[0];
        self.g.op(DType::F32, shape, &[x, rows])
    }

    /// A weight of layer `il`: `name` as in GGUF files, without `blk.N.` and `.weight`.
    pub(super) fn weight(&mut self, il: usize, name: &str, shape: [u64; 4]) -> TensorId {
        let (place, dtype) = self.cx.layout.tensor(il, name);
        self.g.weight(dtype, shape, place)
    }

    pub(super) fn linear(&mut self, il: usize, name: &str, out: u64, x: TensorId) -> TensorId {
        let inner = self.g.get(x).shape[0];
        let w = self.weight(il, name, [inner, out, 1, 1]);
        self.g.matmul(w, x)
    }

    pub(super) fn bias(&mut self, il: usize, name: &str, x: TensorId) -> TensorId {
        let n = self.g.get(x).shape[0];
        let b = self.weight(il, name, [n, 1, 1, 1]);
        self.g.in_place(&[x, b])
    }

    fn norm_at(&mut self, norm: Norm, x: TensorId, place: Place) -> TensorId {
        let n = self.g.get(x).shape[0];
        let fused = self.cx.behaviour.fused_norm && norm.kind == NormKind::Rms && norm.weight;
        if fused {
            let w = self.g.weight(DType::F32, [n, 1, 1, 1], place);
            return self.g.like(&[x, w]);
        }
        let mut y = match norm.kind {
            NormKind::Rms => self.g.in_place(&[x]),
            _ => self.g.like(&[x]),
        };
        for present in [norm.weight, norm.bias] {
            if present {
                let w = self.g.weight(DType::F32, [n, 1, 1, 1], place);
                y = self.g.in_place(&[y, w]);
            }
        }
        y
    }

    /// A norm of layer `il`.
    pub(super) fn norm(&mut self, il: usize, name: &str, norm: Norm, x: TensorId) -> TensorId {
        let (place, _) = self.cx.layout.tensor(il, name);
        self.norm_at(norm, x, place)
    }

    pub(super) fn positions(&mut self) -> TensorId {
        let per_token =
            if self.cx.behaviour.sectioned_positions(&self.cx.arch.family) { 4 } else { 1 };
        let n = self.cx.batch.tokens.saturating_mul(per_token);
        *self.positions.get_or_insert_with(|| self.g.input(DType::I32, [n, 1, 1, 1]))
    }

    fn has_rotary(&self) -> bool {
        matches!(
            self.cx.arch.embedding.as_ref().map(|e| e.positions),
            Some(Positions::Rotary { .. })
        )
    }

    fn layer(&mut self, il: usize, layer: &Layer, x: TensorId, rows: Option<TensorId>) -> TensorId {
        if layer.parallel {
            return self.parallel_layer(il, layer, x, rows);
        }
        let before = matches!(layer.placement, NormPlacement::Pre | NormPlacement::Sandwich);
        let after =
            matches!(layer.placement, NormPlacement::BranchOutput | NormPlacement::Sandwich);
        let mut residual = x;
        let mut y = x;
        if !matches!(layer.mixer, Mixer::None) {
            let input = if before { self.norm(il, "attn_norm", layer.norm, x) } else { x };
            let graph_splits_here = matches!(
                layer.mixer,
                Mixer::GatedDelta(_) | Mixer::Attention(Attention { gated: true, .. })
            );
            if graph_splits_here {
                self.g.expand(input);
            }
            y = self.mixer(il, &layer.mixer, input);
            if let Some(rows) = rows {
                y = self.take_rows(y, rows);
                residual = self.take_rows(residual, rows);
            }
            if after {
                y = self.norm(il, "post_attention_norm", layer.norm, y);
            }
            y = self.g.in_place(&[y, residual]);
            if layer.placement == NormPlacement::Post {
                y = self.norm(il, "attn_output_norm", layer.norm, y);
            }
        } else if let Some(rows) = rows {
            y = self.take_rows(y, rows);
        }
        if matches!(layer.ffn, Ffn::None) {
            return y;
        }
        let residual = y;
        let input = if before { self.norm(il, "ffn_norm", layer.norm, residual) } else { residual };
        let mut out = self.ffn(il, &layer.ffn, input);
        if after {
            out = self.norm(il, "post_ffw_norm", layer.norm, out);
        }
        out = self.g.in_place(&[out, residual]);
        if layer.placement == NormPlacement::Post {
            out = self.norm(il, "layer_output_norm", layer.norm, out);
        }
        out
    }

    /// Attention and feed-forward side by side, summed.
    fn parallel_layer(
        &mut self,
        il: usize,
        layer: &Layer,
        x: TensorId,
        rows: Option<TensorId>,
    ) -> TensorId {
        let mut residual = x;
        let normed = self.norm(il, "attn_norm", layer.norm, x);
        let mut ffn_in = normed;
        let mut attention = self.mixer(il, &layer.mixer, normed);
        if let Some(rows) = rows {
            attention = self.take_rows(attention, rows);
            residual = self.take_rows(x, rows);
            if layer.norms < 2 {
                ffn_in = self.take_rows(normed, rows);
            }
        }
        if layer.norms >= 2 {
            ffn_in = self.norm(il, "ffn_norm", layer.norm, residual);
        }
        let out = self.ffn(il, &layer.ffn, ffn_in);
        let phi = matches!(super::gguf_family(&self.cx.arch.family), "phi2");
        let sum = if phi {
            self.g.in_place(&[attention, out])
        } else {
            self.g.in_place(&[out, attention])
        };
        self.g.in_place(&[sum, residual])
    }

    fn mixer(&mut self, il: usize, mixer: &Mixer, x: TensorId) -> TensorId {
        match mixer {
            Mixer::Attention(a) => self.attention(il, a, x),
            Mixer::Latent(a) => self.latent(il, a, x),
            Mixer::GatedDelta(d) => self.gated_delta(il, d, x),
            Mixer::Mamba1(m) => self.mamba1(il, m, x),
            Mixer::Mamba2(m) => self.mamba2(il, m, x),
            Mixer::ShortConv { kernel, .. } => self.short_conv(il, *kernel, x),
            Mixer::Parallel(a, m) => {
                let ssm = self.mamba2(il, m, x);
                let attention = self.attention(il, a, x);
                self.g.in_place(&[attention, ssm])
            }
            _ => x,
        }
    }
}
