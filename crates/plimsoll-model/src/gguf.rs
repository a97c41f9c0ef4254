//! From GGUF metadata to an [`Architecture`]. Hyperparameters come from the `{arch}.*` keys, per layer where the file
//! has lists; what the keys do not say (biases, norms on queries, a tied head) is seen from the tensor table where it
//! is given, else from the rules of the architecture.
//!
//! Key names: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md> and the constants of llama.cpp's `gguf-py`;
//! which layers slide when a file does not say: llama.cpp's `load_hparams`, read 2026-11.

mod keys;
mod rules;

use std::collections::HashMap;

use plimsoll_formats::TensorInfo;
use plimsoll_formats::gguf::{GgufFile, Metadata};
use plimsoll_units::DType;

use crate::arch::{
    Architecture, Attention, Embedding, Ffn, GatedDelta, Head, LatentAttention, Layer, Mamba1,
    Mamba2, Mixer, Mlp, ModelKind, Moe, Norm, NormKind, NormPlacement, Positions, QkNorm, Span,
    Stack, StackRole,
};
use crate::hf::{ImportError, Imported};
use crate::inventory::Naming;
use keys::Keys;
use rules::Rules;

/// Reads the architecture of a GGUF file.
///
/// # Errors
///
/// As [`from_metadata`].
pub fn from_file(file: &GgufFile) -> Result<Imported, ImportError> {
    from_metadata(&file.metadata, &file.tensors)
}

/// Reads the architecture from metadata and, where known, the tensor table (empty where not).
///
/// # Errors
///
/// [`ImportError`] names missing keys, values out of range and contradictions.
pub fn from_metadata(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Imported, ImportError> {
    let arch = metadata.text("general.architecture").unwrap_or("").to_owned();
    let keys = Keys::new(metadata, &arch);
    if arch.is_empty() {
        return Err(ImportError::Missing {
            family: arch,
            keys: vec!["general.architecture".to_owned()],
        });
    }
    let reader = Reader {
        named: tensors.iter().map(|t| (t.name.as_str(), t)).collect(),
        tensors,
        rules: Rules::of(&arch),
        keys,
    };
    if !reader.rules.known {
        reader.keys.assume(
            "general.architecture",
            format!("{arch:?} is not known; read by the rules of llama"),
        );
    }
    let built = reader.architecture(&arch);
    let (missing, diagnostics) = reader.keys.finish();
    if !missing.is_empty() {
        return Err(ImportError::Missing { family: arch, keys: missing });
    }
    // Draft layers of a GGUF file are in its table, so in the architecture.
    Ok(Imported { architecture: built?, diagnostics, draft_layers: 0 })
}

struct Reader<'a> {
    keys: Keys<'a>,
    named: HashMap<&'a str, &'a TensorInfo>,
    tensors: &'a [TensorInfo],
    rules: Rules,
}

/// Counts per layer.
struct PerLayer {
    heads: Vec<u64>,
    kv_heads: Vec<u64>,
    widths: Vec<u64>,
}

impl Reader<'_> {
    /// Whether the tensor exists; `fallback` where no table is given.
    fn has(&self, name: &str, fallback: bool) -> bool {
        if self.tensors.is_empty() { fallback } else { self.named.contains_key(name) }
    }

    fn has_in(&self, layer: usize, part: &str, fallback: bool) -> bool {
        self.has(&format!("blk.{layer}.{part}"), fallback)
    }

    fn architecture(&self, arch: &str) -> Result<Architecture, ImportError> {
        let hidden = self.keys.size("embedding_length")?;
        let blocks = self.keys.layers("block_count")?;
        let vocab = self.vocab()?;
        let per_layer = self.per_layer(blocks)?;
        let spans = self.spans(blocks)?;
        let mut layers = (0..blocks)
            .map(|index| self.layer(index, hidden, blocks, &per_layer, &spans))
            .collect::<Result<Vec<_>, _>>()?;
        let drafts = self.keys.count_or("nextn_predict_layers", 0)?.min(blocks as u64) as usize;
        let draft_layers = layers.split_off(blocks - drafts);
        let norm = self.rules.norm;
        let role = if self.rules.encoder { StackRole::Encoder } else { StackRole::Decoder };
        let final_norm = self.has("output_norm.weight", !self.rules.encoder).then_some(norm);
        let stack = |role, layers, final_norm| Stack {
            role,
            prefix: "blk".to_owned(),
            root: String::new(),
            naming: Naming::Gguf,
            hidden,
            layers,
            final_norm,
            patch: None,
            shared: false,
        };
        let mut stacks = vec![stack(role, layers, final_norm)];
        if !draft_layers.is_empty() {
            stacks.push(stack(StackRole::Draft, draft_layers, None));
        }
        let tied = !self.has("output.weight", !self.rules.tied);
        let outputs = if self.rules.encoder { 0 } else { vocab };
        Ok(Architecture {
            family: arch.to_owned(),
            class: String::new(),
            kind: if self.rules.encoder { ModelKind::Encoder } else { ModelKind::CausalLm },
            hidden,
            embedding: Some(self.embedding(hidden, vocab)?),
            stacks,
            head: Head { outputs, tied, bias: self.has("output.bias", false), transform: None },
            dtype: self.dtype(),
            quantization: None,
            max_positions: self.keys.size_if("context_length")?,
            naming: Naming::Gguf,
            root: String::new(),
            head_root: String::new(),
            extra: Vec::new(),
        })
    }

    fn vocab(&self) -> Result<u64, ImportError> {
        let table = self.named.get("token_embd.weight");
        if let Some([rows, _]) = table.map(|t| t.shape.as_slice()) {
            return Ok(*rows);
        }
        if let Some(stated) = self.keys.size_if("vocab_size")? {
            return Ok(stated);
        }
        match self.keys.tokens() {
            Some(count) => Ok(count),
            None => self.keys.size("vocab_size"),
        }
    }

    /// The type that holds most elements of the table.
    fn dtype(&self) -> DType {
        let mut totals: Vec<(DType, u64)> = Vec::new();
        for tensor in self.tensors {
            let Some(dtype) = tensor.dtype else { continue };
            match totals.iter_mut().find(|(known, _)| *known == dtype) {
                Some((_, n)) => *n = n.saturating_add(tensor.elements()),
                None => totals.push((dtype, tensor.elements())),
            }
        }
        totals.into_iter().max_by_key(|(_, n)| *n).map_or(DType::F16, |(dtype, _)| dtype)
    }

    fn embedding(&self, hidden: u64, vocab: u64) -> Result<Embedding, ImportError> {
        let rows = self.named.get("position_embd.weight").and_then(|t| t.shape.first());
        let rotary = self.keys.size_if("rope.dimension_count")?;
        let positions = match (rows, self.rules.learned, rotary) {
            (Some(rows), _, _) => Positions::Learned { rows: *rows },
            (None, true, _) => Positions::Learned { rows: self.keys.size("context_length")? },
            (None, false, Some(dim)) => Positions::Rotary { dim },
            (None, false, None) if self.rules.unrotated => Positions::None,
            (None, false, None) => {
                let heads = self.keys.first("attention.head_count")?.unwrap_or(1).max(1);
                Positions::Rotary {
                    dim: self.keys.size_or("attention.key_length", hidden / heads)?,
                }
            }
        };
        Ok(Embedding {
            vocab,
            width: hidden,
            projection: None,
            positions,
            token_types: self.keys.token_types(),
            norm: self.has("token_embd_norm.weight", false).then_some(self.rules.norm),
            tables: 1,
            per_stack: false,
        })
    }

    fn per_layer(&self, blocks: usize) -> Result<PerLayer, ImportError> {
        let recurrent_only =
            matches!(self.rules.mixer, rules::MixerRule::Mamba1 | rules::MixerRule::Mamba2);
        let heads = match self.keys.per_layer("attention.head_count", blocks)? {
            Some(list) => list,
            None if recurrent_only => vec![0; blocks],
            None => vec![self.keys.size("attention.head_count")?; blocks],
        };
        let kv_heads = self
            .keys
            .per_layer("attention.head_count_kv", blocks)?
            .unwrap_or_else(|| heads.clone());
        for (query, key) in heads.iter().zip(&kv_heads) {
            if *key > *query || (*key > 0 && !query.is_multiple_of(*key)) {
                return Err(ImportError::Contradiction {
                    key: self.keys.name("attention.head_count_kv"),
                    value: key.to_string(),
                    against: format!("it must divide `attention.head_count`, which is {query}"),
                    cure: "convert the model again with current tools",
                });
            }
        }
        let widths = match self.keys.per_layer("feed_forward_length", blocks)? {
            Some(list) => list,
            None if recurrent_only => vec![0; blocks],
            None => {
                // Mixtures may state the experts' width alone.
                let width = self.keys.size_if("expert_feed_forward_length")?;
                vec![width.map_or_else(|| self.keys.size("feed_forward_length"), Ok)?; blocks]
            }
        };
        Ok(PerLayer { heads, kv_heads, widths })
    }

    /// Which layers slide: the file's own pattern, else the period that llama.cpp sets for the architecture.
    fn spans(&self, blocks: usize) -> Result<Vec<Span>, ImportError> {
        let window = self.keys.size_if("attention.sliding_window")?;
        let chunk = self.keys.size_if("attention.chunk_size")?;
        let span = match (self.rules.chunked, window) {
            (true, _) => Some(Span::Chunked { chunk: chunk.or(window).unwrap_or(8192) }),
            (false, Some(window)) => Some(Span::Sliding { window }),
            (false, None) => None,
        };
        let Some(span) = span else { return Ok(vec![Span::Full; blocks]) };
        if let Some(flags) =
            self.keys.flags("attention.sliding_window_pattern").filter(|f| f.len() == blocks)
        {
            return Ok(flags
                .iter()
                .map(|slides| if *slides { span } else { Span::Full })
                .collect());
        }
        let period =
            self.keys.size_if("attention.sliding_window_pattern")?.unwrap_or(self.rules.period);
        Ok((1..=blocks as u64)
            .map(|i| if period == 0 || i.is_multiple_of(period) { Span::Full } else { span })
            .collect())
    }

    fn layer(
        &self,
        index: usize,
        hidden: u64,
        blocks: usize,
        per_layer: &PerLayer,
        spans: &[Span],
    ) -> Result<Layer, ImportError> {
        let at = |list: &[u64]| list.get(index).copied().unwrap_or(0);
        let (heads, kv_heads, width) =
            (at(&per_layer.heads), at(&per_layer.kv_heads), at(&per_layer.widths));
        let span = spans.get(index).copied().unwrap_or(Span::Full);
        let mixer = self.mixer(index, hidden, blocks, heads, kv_heads, width, span)?;
        let ffn = self.ffn(index, width)?;
        let named = [
            "attn_norm",
            "ffn_norm",
            "attn_post_norm",
            "post_attention_norm",
            "post_ffw_norm",
            "attn_norm_2",
            "attn_output_norm",
            "layer_output_norm",
        ];
        let counted =
            named.iter().filter(|n| self.has_in(index, &format!("{n}.weight"), false)).count()
                as u64;
        Ok(Layer {
            mixer,
            cross: None,
            ffn,
            norm: self.rules.norm,
            norms: if self.tensors.is_empty() { self.rules.norms } else { counted },
            placement: self.rules.placement,
            parallel: self.rules.parallel,
            dropout: false,
            naming: None,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "one layer's counts, read once")]
    fn mixer(
        &self,
        index: usize,
        hidden: u64,
        blocks: usize,
        heads: u64,
        kv_heads: u64,
        width: u64,
        span: Span,
    ) -> Result<Mixer, ImportError> {
        use rules::MixerRule;
        let interval = self.keys.size_or("full_attention_interval", 4)?;
        let attention =
            |reader: &Self| reader.attention(index, hidden, blocks, heads, kv_heads, span);
        Ok(match self.rules.mixer {
            MixerRule::Mamba1 => Mixer::Mamba1(self.mamba1(hidden)?),
            MixerRule::Mamba2 => Mixer::Mamba2(self.mamba2()?),
            MixerRule::Jamba if kv_heads == 0 => Mixer::Mamba1(self.mamba1(hidden)?),
            MixerRule::Nemotron if kv_heads == 0 && width > 0 => Mixer::None,
            MixerRule::Granite | MixerRule::Nemotron if kv_heads == 0 => {
                Mixer::Mamba2(self.mamba2()?)
            }
            MixerRule::Both => {
                Mixer::Parallel(Box::new(attention(self)?), Box::new(self.mamba2()?))
            }
            MixerRule::ShortConv if kv_heads == 0 => Mixer::ShortConv {
                channels: hidden,
                kernel: self.keys.size_or("shortconv.l_cache", 3)?,
                bias: false,
            },
            MixerRule::GatedDelta if !(index as u64 + 1).is_multiple_of(interval) => {
                Mixer::GatedDelta(self.gated_delta()?)
            }
            _ if self.keys.has("attention.kv_lora_rank") => Mixer::Latent(self.latent(heads)?),
            _ if heads == 0 || kv_heads == 0 => Mixer::None,
            _ => Mixer::Attention(attention(self)?),
        })
    }

    fn attention(
        &self,
        index: usize,
        hidden: u64,
        blocks: usize,
        heads: u64,
        kv_heads: u64,
        span: Span,
    ) -> Result<Attention, ImportError> {
        let sliding = span != Span::Full;
        let divided = (hidden / heads.max(1)).max(1);
        let own = |name, swa_name| -> Result<u64, ImportError> {
            let plain = self.keys.size_or(name, divided)?;
            if sliding { self.keys.size_or(swa_name, plain) } else { Ok(plain) }
        };
        let head_dim = own("attention.key_length", "attention.key_length_swa")?;
        let value_dim = own("attention.value_length", "attention.value_length_swa")?;
        let shared = self.keys.count_or("attention.shared_kv_layers", 0)?;
        let first_shared = (blocks as u64).saturating_sub(shared);
        let norm_rows = self.shape(index, "attn_q_norm.weight");
        let qk_norm = match (norm_rows, self.rules.qk_norm) {
            (Some(&[_, _]), _) => QkNorm::PerHeadWeights,
            (Some(&[n]), _) if n == head_dim => QkNorm::PerHead,
            (Some(_), _) => QkNorm::Full,
            (None, rule) if self.tensors.is_empty() => rule,
            (None, _) => QkNorm::None,
        };
        let fused = self.has_in(index, "attn_qkv.weight", self.rules.fused_qkv);
        let bias_name = if fused { "attn_qkv.bias" } else { "attn_q.bias" };
        Ok(Attention {
            heads,
            kv_heads,
            head_dim,
            value_dim,
            span,
            qkv_bias: self.has_in(index, bias_name, self.rules.qkv_bias),
            key_bias: None,
            out_bias: self.has_in(index, "attn_output.bias", self.rules.out_bias),
            fused_qkv: fused,
            qk_norm,
            sinks: self.has_in(index, "attn_sinks.weight", self.rules.sinks),
            gated: self.rules.mixer == rules::MixerRule::GatedDelta,
            dropout: false,
            shares_kv: shared > 0 && index as u64 >= first_shared,
            value_is_key: !fused && !self.has_in(index, "attn_v.weight", true),
        })
    }

    fn shape(&self, index: usize, part: &str) -> Option<&[u64]> {
        self.named.get(format!("blk.{index}.{part}").as_str()).map(|t| t.shape.as_slice())
    }

    /// DeepSeek's latent attention. Newer files give the lengths of the compressed form in `key_length` and those of
    /// the heads in `key_length_mla`; older ones the heads' alone.
    fn latent(&self, heads: u64) -> Result<LatentAttention, ImportError> {
        let kv_lora_rank = self.keys.size("attention.kv_lora_rank")?;
        let rope_dim = self.keys.size_or("rope.dimension_count", 64)?;
        let key = match self.keys.size_if("attention.key_length_mla")? {
            Some(key) => key,
            None => self.keys.size_or("attention.key_length", 192)?,
        };
        let value_dim = match self.keys.size_if("attention.value_length_mla")? {
            Some(value) => value,
            None => self.keys.size_or("attention.value_length", 128)?,
        };
        if key <= rope_dim {
            return Err(ImportError::Contradiction {
                key: self.keys.name("attention.key_length"),
                value: key.to_string(),
                against: format!("`rope.dimension_count` takes {rope_dim} of it"),
                cure: "convert the model again with current tools",
            });
        }
        let indexer = self.keys.size_if("attention.indexer.head_count")?;
        let channels = self.keys.size_or("attention.indexer.key_length", 128)?;
        Ok(LatentAttention {
            heads,
            q_lora_rank: self.keys.size_if("attention.q_lora_rank")?,
            kv_lora_rank,
            nope_dim: key - rope_dim,
            rope_dim,
            value_dim,
            bias: false,
            indexer: indexer.map(|heads| (heads, channels)),
        })
    }

    fn mamba1(&self, hidden: u64) -> Result<Mamba1, ImportError> {
        Ok(Mamba1 {
            inner: self.keys.size_or("ssm.inner_size", hidden.saturating_mul(2))?,
            state: self.keys.size("ssm.state_size")?,
            conv: self.keys.size("ssm.conv_kernel")?,
            dt_rank: self.keys.size_or("ssm.time_step_rank", hidden.div_ceil(16))?,
            conv_bias: true,
            bias: false,
            inner_norms: self.rules.mixer == rules::MixerRule::Jamba,
        })
    }

    /// llama.cpp keeps the number of heads in `ssm.time_step_rank`.
    fn mamba2(&self) -> Result<Mamba2, ImportError> {
        let inner = self.keys.size("ssm.inner_size")?;
        let heads = self.keys.size("ssm.time_step_rank")?;
        Ok(Mamba2 {
            inner,
            state: self.keys.size("ssm.state_size")?,
            conv: self.keys.size("ssm.conv_kernel")?,
            heads,
            head_dim: (inner / heads).max(1),
            groups: self.keys.size_or("ssm.group_count", 1)?,
            conv_bias: true,
            bias: false,
            norm: true,
        })
    }

    /// Keys of the gated delta rule share Mamba's names: groups are key heads, the time-step rank is the value heads.
    fn gated_delta(&self) -> Result<GatedDelta, ImportError> {
        let inner = self.keys.size("ssm.inner_size")?;
        let value_heads = self.keys.size("ssm.time_step_rank")?;
        Ok(GatedDelta {
            key_heads: self.keys.size("ssm.group_count")?,
            value_heads,
            key_dim: self.keys.size("ssm.state_size")?,
            value_dim: (inner / value_heads).max(1),
            conv: self.keys.size("ssm.conv_kernel")?,
        })
    }

    fn ffn(&self, index: usize, width: u64) -> Result<Ffn, ImportError> {
        let gated = self.has_in(index, "ffn_gate.weight", self.rules.gated)
            || self.has_in(index, "ffn_gate_exps.weight", self.rules.gated)
            || self.rules.fused_gate;
        let mlp = Mlp {
            width,
            gated,
            bias: self.has_in(index, "ffn_up.bias", self.rules.mlp_bias),
            activation: self.rules.activation,
            fused_gate: self.rules.fused_gate && !self.has_in(index, "ffn_gate.weight", false),
        };
        let experts = self.keys.count_or("expert_count", 0)?;
        let leading = self.keys.count_or("leading_dense_block_count", 0)?;
        let step = self.keys.size_or("interleave_moe_layer_step", 1)?;
        let by_rule = experts > 0
            && index as u64 >= leading
            && (index as u64 + 1).is_multiple_of(step)
            && width_allows(&self.rules, width);
        let fused_exps = self.has_in(index, "ffn_gate_up_exps.weight", false);
        if !self.has_in(index, "ffn_down_exps.weight", by_rule) && !fused_exps || experts == 0 {
            let dense = self.has_in(index, "ffn_up.weight", width > 0 && self.rules.dense_ffn);
            return Ok(if dense && width > 0 { Ffn::Dense(mlp) } else { Ffn::None });
        }
        let top_k = self.keys.size("expert_used_count")?;
        if top_k > experts {
            return Err(ImportError::Contradiction {
                key: self.keys.name("expert_used_count"),
                value: top_k.to_string(),
                against: format!("there are only {experts} experts"),
                cure: "convert the model again with current tools",
            });
        }
        let own = self.keys.size_or("expert_feed_forward_length", width.max(1))?;
        let shared_count = self.keys.count_or("expert_shared_count", 0)?;
        let shared_width = match self.keys.size_if("expert_shared_feed_forward_length")? {
            Some(stated) => stated,
            None if shared_count > 0 => own.saturating_mul(shared_count),
            // Gemma 4 keeps a dense network beside the experts under the plain names.
            None if self.has_in(index, "ffn_up.weight", false) => width,
            None if self.has_in(index, "ffn_up_shexp.weight", self.rules.shared) => own,
            None => 0,
        };
        Ok(Ffn::Moe(Moe {
            experts,
            top_k,
            expert: Mlp { width: own, ..mlp },
            shared: (shared_width > 0).then_some(Mlp { width: shared_width, ..mlp }),
            shared_gate: self.has_in(index, "ffn_gate_inp_shexp.weight", false),
            router_bias: self.has_in(index, "ffn_gate_inp.bias", false),
            correction_bias: self.has_in(index, "exp_probs_b.bias", false),
        }))
    }
}

/// Hybrids of single-part layers have experts only where the feed-forward has a width.
fn width_allows(rules: &Rules, width: u64) -> bool {
    rules.mixer != rules::MixerRule::Nemotron || width > 0
}

/// Norms by kind, for the rules.
const fn norm(kind: NormKind, bias: bool) -> Norm {
    Norm { kind, weight: true, bias }
}

/// Placement by the number of norms, for the rules.
const fn placement(norms: u64) -> NormPlacement {
    if norms > 2 { NormPlacement::Sandwich } else { NormPlacement::Pre }
}
