//! Which tensor gets which type under a quantization mix, as llama.cpp's quantizer decides (src/llama-quant.cpp,
//! `llama_tensor_get_type`). The I-mixes are taken as made with an importance matrix, as published ones are, the
//! others as made without.

use std::str::FromStr;

use plimsoll_model::arch::{Ffn, Mixer};
use plimsoll_model::{Architecture, Part};
use plimsoll_units::DType;

use crate::error::EstimateError;

/// A mix of llama.cpp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are llama.cpp's own")]
#[non_exhaustive]
pub enum Mix {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q2K,
    Q2KS,
    Q3KS,
    Q3KM,
    Q3KL,
    Q4KS,
    Q4KM,
    Q5KS,
    Q5KM,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq2M,
    Iq3Xxs,
    Iq3Xs,
    Iq3S,
    Iq3M,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4Moe,
}

/// Names and default types.
const MIXES: [(&str, Mix, DType); 33] = [
    ("F32", Mix::F32, DType::F32),
    ("F16", Mix::F16, DType::F16),
    ("BF16", Mix::Bf16, DType::Bf16),
    ("Q8_0", Mix::Q8_0, DType::Q8_0),
    ("Q4_0", Mix::Q4_0, DType::Q4_0),
    ("Q4_1", Mix::Q4_1, DType::Q4_1),
    ("Q5_0", Mix::Q5_0, DType::Q5_0),
    ("Q5_1", Mix::Q5_1, DType::Q5_1),
    ("Q2_K", Mix::Q2K, DType::Q2K),
    ("Q2_K_S", Mix::Q2KS, DType::Q2K),
    ("Q3_K_S", Mix::Q3KS, DType::Q3K),
    ("Q3_K_M", Mix::Q3KM, DType::Q3K),
    ("Q3_K_L", Mix::Q3KL, DType::Q3K),
    ("Q4_K_S", Mix::Q4KS, DType::Q4K),
    ("Q4_K_M", Mix::Q4KM, DType::Q4K),
    ("Q5_K_S", Mix::Q5KS, DType::Q5K),
    ("Q5_K_M", Mix::Q5KM, DType::Q5K),
    ("Q6_K", Mix::Q6K, DType::Q6K),
    ("IQ1_S", Mix::Iq1S, DType::Iq1S),
    ("IQ1_M", Mix::Iq1M, DType::Iq1M),
    ("IQ2_XXS", Mix::Iq2Xxs, DType::Iq2Xxs),
    ("IQ2_XS", Mix::Iq2Xs, DType::Iq2Xs),
    ("IQ2_S", Mix::Iq2S, DType::Iq2Xs),
    ("IQ2_M", Mix::Iq2M, DType::Iq2S),
    ("IQ3_XXS", Mix::Iq3Xxs, DType::Iq3Xxs),
    ("IQ3_XS", Mix::Iq3Xs, DType::Iq3S),
    ("IQ3_S", Mix::Iq3S, DType::Iq3S),
    ("IQ3_M", Mix::Iq3M, DType::Iq3S),
    ("IQ4_NL", Mix::Iq4Nl, DType::Iq4Nl),
    ("IQ4_XS", Mix::Iq4Xs, DType::Iq4Xs),
    ("TQ1_0", Mix::Tq1_0, DType::Tq1_0),
    ("TQ2_0", Mix::Tq2_0, DType::Tq2_0),
    ("MXFP4_MOE", Mix::Mxfp4Moe, DType::Q8_0),
];

impl FromStr for Mix {
    type Err = EstimateError;

    /// Reads names such as `Q4_K_M` in any case.
    fn from_str(text: &str) -> Result<Self, EstimateError> {
        let wanted = text.trim().to_ascii_uppercase();
        // `Q3_K` and the like mean the medium mix.
        let wanted = match wanted.as_str() {
            "Q3_K" => "Q3_K_M",
            "Q4_K" => "Q4_K_M",
            "Q5_K" => "Q5_K_M",
            "MXFP4" => "MXFP4_MOE",
            other => other,
        };
        MIXES.iter().find(|(n, ..)| *n == wanted).map(|(_, m, _)| *m).ok_or_else(|| {
            let names: Vec<&str> = MIXES.iter().map(|(n, ..)| *n).collect();
            EstimateError::Invalid {
                field: "mix",
                value: text.to_owned(),
                accepted: format!(
                    "it must be a quantization mix of llama.cpp: {}",
                    names.join(", ")
                ),
                cure: "name one of them, or give the GGUF file, whose header lists every tensor"
                    .to_owned(),
            }
        })
    }
}

impl Mix {
    fn default_type(self) -> DType {
        MIXES.iter().find(|(_, m, _)| *m == self).map_or(DType::F16, |(_, _, d)| *d)
    }

    fn uses_codebook(self) -> bool {
        use Mix::*;
        matches!(self, Iq1S | Iq1M | Iq2Xxs | Iq2Xs | Iq2S | Iq2M | Iq3Xxs)
    }

    /// Chooses types for the tensors of one model, in the order of its layers.
    pub(super) fn chooser(self, model: &Architecture) -> Chooser {
        let layers = model.main_stack().map_or(&[][..], |s| &s.layers);
        let attention = |m: &Mixer| match m {
            Mixer::Attention(a) => Some((a.heads, a.kv_heads)),
            _ => None,
        };
        let group =
            layers.iter().find_map(|l| attention(&l.mixer)).map_or(1, |(h, kv)| h / kv.max(1));
        let experts = layers.iter().find_map(|l| match &l.ffn {
            Ffn::Moe(m) => Some(m.experts),
            _ => None,
        });
        Chooser {
            mix: self,
            layers: layers.len() as u64,
            values: layers.iter().filter(|l| !matches!(l.mixer, Mixer::None)).count() as u64,
            values_seen: 0,
            group,
            experts: experts.unwrap_or(0),
            tied: model.head.tied,
            falcon: model.family.starts_with("falcon"),
            large: layers.len() == 80,
            published_mxfp4: model.quantization.as_ref().is_some_and(|q| q.method == "mxfp4"),
        }
    }
}

/// State of one run over a model's tensors.
pub(super) struct Chooser {
    mix: Mix,
    layers: u64,
    values: u64,
    values_seen: u64,
    /// Query heads per KV head.
    group: u64,
    experts: u64,
    tied: bool,
    falcon: bool,
    /// The 70B class of Llama, whose shared V is worth more bits.
    large: bool,
    published_mxfp4: bool,
}

/// The first and last eighth of the layers and every third in between.
fn more_bits(i: u64, n: u64) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

impl Chooser {
    /// The type of a matrix with rows of `row` elements.
    pub(super) fn choose(&mut self, part: Part, layer: u64, row: u64) -> DType {
        let expert = matches!(
            part,
            Part::ExpertGate | Part::ExpertUp | Part::ExpertGateUp | Part::ExpertDown
        );
        if self.published_mxfp4 && expert {
            // Experts published in MXFP4 (gpt-oss) are copied as they are.
            return DType::Mxfp4;
        }
        if matches!(self.mix, Mix::F32 | Mix::F16 | Mix::Bf16) {
            return self.mix.default_type();
        }
        let wanted = self.wanted(part, layer, row);
        fallback(wanted, row)
    }

    fn wanted(&mut self, part: Part, layer: u64, row: u64) -> DType {
        let default = self.mix.default_type();
        match part {
            Part::Head => self.output(row),
            Part::TokenEmbedding if self.tied => self.output(row),
            Part::TokenEmbedding => match self.mix {
                Mix::Iq2Xxs | Mix::Iq2Xs | Mix::Iq1S | Mix::Iq1M => DType::Q2K,
                Mix::Iq2S | Mix::Iq2M | Mix::Iq3Xxs => DType::Iq3S,
                Mix::Tq1_0 | Mix::Tq2_0 => DType::Q4K,
                _ => default,
            },
            _ if self.mix == Mix::Mxfp4Moe => match part {
                Part::ExpertGate | Part::ExpertUp | Part::ExpertGateUp | Part::ExpertDown => {
                    DType::Mxfp4
                }
                _ => DType::Q8_0,
            },
            _ if self.mix.uses_codebook() && self.mix != Mix::Iq3Xxs => self.low_bit(part, layer),
            Part::Value | Part::KvUp => self.value(),
            Part::Qkv => self.fused(),
            Part::Key | Part::Query => self.query_or_key(part),
            Part::Output => self.attention_output(),
            Part::Down | Part::ExpertDown | Part::SharedDown => self.down(layer),
            Part::Gate | Part::Up | Part::ExpertGate | Part::ExpertUp if self.mix == Mix::Iq3Xs => {
                let middle = layer >= self.layers / 8 && layer < 7 * self.layers / 8;
                if middle { DType::Iq3Xxs } else { default }
            }
            _ => default,
        }
    }

    fn output(&self, row: u64) -> DType {
        let default = self.mix.default_type();
        if self.falcon || !row.is_multiple_of(256) {
            DType::Q8_0
        } else if self.mix.uses_codebook() {
            DType::Q5K
        } else if default == DType::Q8_0 {
            default
        } else {
            DType::Q6K
        }
    }

    /// One- and two-bit mixes spend more on V, the output of attention and the first down projections.
    fn low_bit(&mut self, part: Part, layer: u64) -> DType {
        let default = self.mix.default_type();
        let wide = matches!(self.mix, Mix::Iq2S | Mix::Iq2M);
        match part {
            Part::Value | Part::KvUp if self.group >= 4 || self.experts >= 4 => DType::Q4K,
            Part::Value | Part::KvUp if wide => DType::Iq3S,
            Part::Value | Part::KvUp => DType::Q2K,
            Part::Key if self.experts == 8 => DType::Q4K,
            Part::Down | Part::ExpertDown if layer < self.layers / 8 => {
                if wide {
                    DType::Iq3S
                } else {
                    DType::Q2K
                }
            }
            Part::Output if self.experts == 8 => DType::Q5K,
            Part::Output if matches!(self.mix, Mix::Iq1S | Mix::Iq1M) => DType::Iq2Xxs,
            Part::Output if wide => DType::Iq3S,
            _ => default,
        }
    }

    fn value(&mut self) -> DType {
        let (i, n) = (self.values_seen, self.values);
        self.values_seen += 1;
        let default = self.mix.default_type();
        let grouped = self.group >= 4;
        let mut chosen = match self.mix {
            Mix::Q2K if grouped => DType::Q4K,
            Mix::Q2K => DType::Q3K,
            Mix::Q2KS if grouped => DType::Q4K,
            Mix::Iq3Xxs if grouped => DType::Q4K,
            Mix::Iq3Xs | Mix::Iq3S if grouped => DType::Q4K,
            Mix::Iq3M => DType::Q4K,
            Mix::Q3KM if i < 2 => DType::Q5K,
            Mix::Q3KM => DType::Q4K,
            Mix::Q3KL => DType::Q5K,
            Mix::Iq4Nl | Mix::Iq4Xs if grouped => DType::Q5K,
            Mix::Q4KM | Mix::Q5KM if more_bits(i, n) => DType::Q6K,
            Mix::Q4KS if i < 4 => DType::Q5K,
            _ => default,
        };
        if self.large && matches!(chosen, DType::Q3K | DType::Q4K) {
            chosen = DType::Q5K;
        }
        if self.experts == 8 { DType::Q8_0 } else { chosen }
    }

    fn fused(&self) -> DType {
        match self.mix {
            Mix::Q3KM | Mix::Q3KL | Mix::Iq3M => DType::Q4K,
            Mix::Q4KM => DType::Q5K,
            Mix::Q5KM => DType::Q6K,
            other => other.default_type(),
        }
    }

    fn query_or_key(&self, part: Part) -> DType {
        match self.mix {
            _ if part == Part::Key && self.experts == 8 => DType::Q8_0,
            Mix::Iq3Xs => DType::Iq3Xxs,
            Mix::Iq3Xxs => DType::Iq2S,
            other => other.default_type(),
        }
    }

    fn attention_output(&self) -> DType {
        use Mix::*;
        if self.falcon {
            return if self.mix == Q3KL { DType::Q4K } else { self.mix.default_type() };
        }
        if self.experts == 8 {
            let raised = matches!(
                self.mix,
                Q2K | Iq3Xs | Iq3Xxs | Q3KS | Q3KM | Iq4Nl | Q4KS | Q4KM | Iq3S | Iq3M | Iq4Xs
            );
            return if raised { DType::Q5K } else { self.mix.default_type() };
        }
        match self.mix {
            Q2K => DType::Q3K,
            Iq3Xxs => DType::Iq3S,
            Q3KM | Iq3M => DType::Q4K,
            Q3KL => DType::Q5K,
            other => other.default_type(),
        }
    }

    fn down(&self, i: u64) -> DType {
        let n = self.layers;
        let default = self.mix.default_type();
        match self.mix {
            Mix::Q2K => DType::Q3K,
            Mix::Q2KS if i < n / 8 => DType::Q4K,
            Mix::Q3KM if i < n / 16 => DType::Q5K,
            Mix::Q3KM if !self.falcon || more_bits(i, n) => DType::Q4K,
            Mix::Iq3M if i < n / 8 || (self.experts == 8 && more_bits(i, n)) => DType::Q4K,
            Mix::Q3KL => {
                if self.falcon {
                    DType::Q4K
                } else {
                    DType::Q5K
                }
            }
            Mix::Q4KM if self.falcon => match i {
                i if i < n / 16 => DType::Q6K,
                i if more_bits(i, n) => DType::Q5K,
                _ => DType::Q4K,
            },
            Mix::Q4KM | Mix::Q5KM if more_bits(i, n) => DType::Q6K,
            Mix::Q4KS if !self.falcon && i < n / 8 => DType::Q5K,
            _ => default,
        }
    }
}

/// Rows that are no multiple of the block take a type with shorter blocks.
fn fallback(dtype: DType, row: u64) -> DType {
    if row.is_multiple_of(dtype.block_elements()) {
        return dtype;
    }
    let shorter = match dtype {
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        DType::Tq1_0 | DType::Tq2_0 => DType::Q4_0,
        DType::Q2K | DType::Q3K => DType::Iq4Nl,
        d if d.block_elements() == 256 => DType::Iq4Nl,
        _ => DType::F16,
    };
    if row.is_multiple_of(shorter.block_elements()) { shorter } else { DType::F16 }
}
