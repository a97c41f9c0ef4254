//! The peak of vLLM's profiling run: a forward pass with `max_num_batched_tokens` tokens followed by sampling for
//! `max_num_seqs` sequences. With the usual vocabularies and limits the sampler sets it. Formulas of
//! groundtruth records by release; terms add where the tensors are alive together.

use plimsoll_model::Architecture;
use plimsoll_model::arch::{Ffn, Mixer, StackRole};
use plimsoll_units::{Bytes, DType};

use super::facts::{facts, latest};
use super::settings::Settings;
use crate::{Device, Term};

/// The parts of the peak, ready for the tree of terms; the sum of the parts that meet is the peak.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The peak.
    pub peak: Bytes,
    /// Its parts.
    pub parts: Vec<Term>,
    /// The other phase, which does not meet the peak.
    pub below: Bytes,
    /// `sampling` or `forward`.
    pub phase: &'static str,
}

/// The peak on a rank that holds the head (`last`) or not.
pub fn profile(
    model: &Architecture,
    settings: &Settings,
    device: &Device,
    expert: bool,
    last: bool,
) -> Profile {
    let hidden_states = settings.dtype.bytes(settings.batched.saturating_mul(model.hidden));
    let moe = moe_workspace(model, settings, expert);
    let apart = settings.version >= facts().moe_workspace_apart_since.since.0;
    let shared = Term::sum(
        "shared",
        "kept through the run",
        shared_parts(model, settings, device, moe, apart),
    );
    let forward =
        forward_parts(model, settings, hidden_states, if apart { Bytes::ZERO } else { moe });
    let sampling =
        if last { sampling_parts(model, settings, device, hidden_states) } else { Vec::new() };
    let sum = |parts: &[Term]| parts.iter().map(|t| t.bytes).sum::<Bytes>();
    let (forward_sum, sampling_sum) = (sum(&forward), sum(&sampling));
    let (phase, mut parts, below) = if sampling_sum >= forward_sum {
        ("sampling", sampling, forward_sum)
    } else {
        ("forward", forward, sampling_sum)
    };
    parts.extend(shared.children);
    Profile { peak: sum(&parts), parts, below, phase }
}

/// What both phases hold: library workspace, MoE buffers, encoder output, buffers between stages.
fn shared_parts(
    model: &Architecture,
    settings: &Settings,
    device: &Device,
    moe: Bytes,
    moe_apart: bool,
) -> Vec<Term> {
    let hopper = device.compute_capability.is_none_or(|c| c >= (9, 0));
    let workspace = &facts().workspace_mib;
    let kib = if hopper { workspace.hopper_kib } else { workspace.before_hopper_kib };
    let mut parts = vec![
        Term::new("profile.workspace", "cuBLAS workspace", Bytes::kib(kib))
            .source(&*workspace.source),
    ];
    if moe_apart && !moe.is_zero() {
        parts.push(
            Term::new("profile.moe", "fused-MoE buffers", moe)
                .formula("tokens·top_k·(3·expert_width/tp + hidden)·b"),
        );
    }
    if settings.pipeline > 1 {
        let tensors = settings.dtype.bytes(settings.batched.saturating_mul(model.hidden)) * 2;
        parts.push(
            Term::new("profile.stage", "tensors between pipeline stages", tensors)
                .formula("2·tokens·hidden·b"),
        );
    }
    if let Some(encoder) = encoder(model, settings) {
        parts.push(encoder);
    }
    parts
}

/// Images of a whole step and what the encoder made of them, kept while the language model runs.
fn encoder(model: &Architecture, settings: &Settings) -> Option<Term> {
    let stack = model.stacks.iter().find(|s| s.role == StackRole::Vision)?;
    let known = facts().encoders.iter().find(|e| model.family.starts_with(&*e.family));
    let patch = stack.patch.as_ref();
    let side = known.map_or(patch.map_or(0, |p| p.input), |e| e.side);
    let tokens = known.map_or(patch.map_or(1, |p| p.tokens), |e| e.tokens).max(1);
    let budget = settings.batched.max(tokens);
    let items = (budget / tokens).max(1);
    let pixels = side.saturating_mul(side).saturating_mul(3).saturating_mul(items);
    let outputs = budget.saturating_mul(model.hidden);
    Some(
        Term::new(
            "profile.encoder",
            "images of a step and their embeddings",
            settings.dtype.bytes(pixels.saturating_add(outputs)),
        )
        .formula("(items·3·side² + tokens·hidden)·b")
        .input("items", items)
        .input("side", side),
    )
}

fn sampling_parts(
    model: &Architecture,
    settings: &Settings,
    device: &Device,
    hidden_states: Bytes,
) -> Vec<Term> {
    let vocab =
        model.embedding.as_ref().map_or(model.head.outputs, |e| e.vocab).max(model.head.outputs);
    let sequences = settings.sequences.min(settings.batched);
    let Some(sampler) = latest(&facts().sampler, settings.version, |s| s.since) else {
        return Vec::new();
    };
    let logits = sequences.saturating_mul(vocab);
    let per_logit = sampler.bytes_per_logit.saturating_add(settings.dtype.bytes(1).get());
    let rows = sampler.buffer_rows_per_sm.saturating_mul(multiprocessors(device));
    let buffer = rows.saturating_mul(vocab).saturating_mul(4);
    let mut parts = vec![
        Term::new(
            "profile.sampler",
            "logits and sampler",
            Bytes::new(logits.saturating_mul(per_logit)),
        )
        .formula("max_num_seqs·vocab·(sampler + b)")
        .input("max_num_seqs", sequences)
        .input("vocab", vocab)
        .input("sampler + b", per_logit)
        .source(&*sampler.source)
        .spread(20, 30),
        Term::new("profile.hidden", "hidden states of the step", hidden_states)
            .formula("tokens·hidden·b")
            .input("tokens", settings.batched)
            .input("hidden", model.hidden),
        Term::new(
            "profile.last_hidden",
            "hidden states of the last positions",
            settings.dtype.bytes(sequences.saturating_mul(model.hidden)),
        )
        .formula("max_num_seqs·hidden·b"),
    ];
    if buffer > 0 {
        parts.push(
            Term::new(
                "profile.sampler_buffer",
                "sampler rows per multiprocessor",
                Bytes::new(buffer),
            )
            .formula("multiprocessors·vocab·4"),
        );
    }
    parts
}

fn multiprocessors(device: &Device) -> u64 {
    let capability = device.compute_capability.unwrap_or((9, 0));
    let table = &facts().multiprocessors;
    table.iter().rev().find(|m| m.capability <= capability).map_or(132, |m| m.count)
}

/// The widest layer: its inner tensors beside the residual stream.
fn forward_parts(
    model: &Architecture,
    settings: &Settings,
    hidden_states: Bytes,
    moe: Bytes,
) -> Vec<Term> {
    let width = model
        .stacks
        .iter()
        .filter(|s| s.role == StackRole::Decoder)
        .flat_map(|s| &s.layers)
        .map(|layer| {
            let ffn = match &layer.ffn {
                Ffn::Dense(mlp) => inner(mlp.width, mlp.gated),
                Ffn::Moe(moe) => moe.shared.map_or(0, |mlp| inner(mlp.width, mlp.gated)),
                _ => 0,
            };
            let mixer = match &layer.mixer {
                Mixer::Attention(a) => {
                    a.heads.saturating_mul(a.head_dim.saturating_add(a.value_dim)).saturating_add(
                        a.kv_heads.saturating_mul(a.head_dim.saturating_add(a.value_dim)),
                    )
                }
                Mixer::Latent(l) => {
                    let head = l.nope_dim.saturating_add(l.rope_dim).saturating_mul(2);
                    l.heads.saturating_mul(head.saturating_add(l.value_dim.saturating_mul(2)))
                }
                Mixer::GatedDelta(d) => d
                    .key_heads
                    .saturating_mul(d.key_dim)
                    .saturating_mul(4)
                    .saturating_add(d.value_heads.saturating_mul(d.value_dim).saturating_mul(4)),
                Mixer::Mamba2(m) => m.inner.saturating_mul(4),
                Mixer::Mamba1(m) => m.inner.saturating_mul(4),
                _ => 0,
            };
            ffn.max(mixer)
        })
        .max()
        .unwrap_or(0)
        .div_ceil(settings.tensor.max(1));
    let inner = settings.dtype.bytes(settings.batched.saturating_mul(width));
    let mut parts = vec![
        Term::new("profile.inner", "inner tensors of the widest layer", inner)
            .formula("tokens·(3·ffn or q+k+v+out)/tp·b")
            .input("tokens", settings.batched)
            .input("width per rank", width)
            .spread(150, 250),
        Term::new("profile.stream", "residual stream and copies", hidden_states * 4)
            .formula("4·tokens·hidden·b"),
    ];
    if !moe.is_zero() {
        parts.push(Term::new("profile.moe", "fused-MoE buffers", moe));
    }
    parts
}

/// Gate, up and product; or up and its activation.
fn inner(width: u64, gated: bool) -> u64 {
    width.saturating_mul(if gated { 3 } else { 2 })
}

/// Buffers of the fused-MoE kernels: gate and up, product and output of every visited expert.
fn moe_workspace(model: &Architecture, settings: &Settings, expert: bool) -> Bytes {
    // Packed 4-bit experts run in kernels of their own that allocate as they go.
    if model.quantization.as_ref().is_some_and(|q| q.dtype == DType::Mxfp4) {
        return Bytes::ZERO;
    }
    let stacks = model.stacks.iter().filter(|s| s.role == StackRole::Decoder);
    let most = stacks.flat_map(|s| s.layers.iter().map(move |l| (s.hidden, l))).filter_map(
        |(hidden, layer)| {
            let Ffn::Moe(moe) = &layer.ffn else { return None };
            let ranks = if expert { 1 } else { settings.tensor.max(1) };
            let width = moe.expert.width.saturating_mul(3).div_ceil(ranks).saturating_add(hidden);
            Some(settings.batched.saturating_mul(moe.top_k).saturating_mul(width))
        },
    );
    settings.dtype.bytes(most.max().unwrap_or(0))
}
