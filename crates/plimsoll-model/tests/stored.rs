//! Tensor tables of files: packed weights become their matrices, experts one row, GGUF names their parts.

use plimsoll_formats::TensorInfo;
use plimsoll_model::inventory::{StoredInventory, inventory_from_tensors};
use plimsoll_model::{Part, hf};
use plimsoll_units::{Bytes, DType};

fn tensor(name: &str, dtype: DType, shape: &[u64]) -> TensorInfo {
    let elements = shape.iter().product();
    TensorInfo {
        name: name.to_owned(),
        shape: shape.to_vec(),
        dtype: Some(dtype),
        type_name: dtype.name().into(),
        offset: 0,
        bytes: dtype.bytes(elements),
    }
}

/// `name shape part bytes`, one line per row.
fn lines(stored: &StoredInventory) -> Vec<String> {
    let line = |row: &plimsoll_model::inventory::StoredRow| {
        let p = &row.parameter;
        let dtype = row.dtype.map_or("?", DType::name);
        format!("{} {:?} x{} {:?} {dtype} {}", p.name, p.shape, p.count, p.part, row.bytes.get())
    };
    stored.rows.iter().map(line).collect()
}

#[test]
fn packed_weights_are_their_matrices() {
    let tensors = [
        // GPTQ, 4 bits in groups of 128, 256 inputs, 64 outputs.
        tensor("model.layers.0.self_attn.q_proj.qweight", DType::I32, &[32, 64]),
        tensor("model.layers.0.self_attn.q_proj.qzeros", DType::I32, &[2, 8]),
        tensor("model.layers.0.self_attn.q_proj.scales", DType::F16, &[2, 64]),
        tensor("model.layers.0.self_attn.q_proj.g_idx", DType::I32, &[256]),
        // AWQ packs the outputs.
        tensor("model.layers.0.self_attn.k_proj.qweight", DType::I32, &[256, 8]),
        tensor("model.layers.0.self_attn.k_proj.qzeros", DType::I32, &[2, 8]),
        tensor("model.layers.0.self_attn.k_proj.scales", DType::F16, &[2, 64]),
        tensor("model.layers.0.self_attn.v_proj.weight_packed", DType::I32, &[64, 32]),
        tensor("model.layers.0.self_attn.v_proj.weight_scale", DType::Bf16, &[64, 2]),
        tensor("model.layers.0.self_attn.v_proj.weight_shape", DType::I64, &[2]),
        tensor("model.layers.0.mlp.down_proj.weight", DType::F8E4M3, &[64, 256]),
        tensor("model.layers.0.mlp.down_proj.weight_scale_inv", DType::F32, &[1, 2]),
        tensor("model.layers.0.mlp.experts.gate_up_proj_blocks", DType::U8, &[4, 128, 2, 16]),
        tensor("model.layers.0.mlp.experts.gate_up_proj_scales", DType::U8, &[4, 128, 2]),
        tensor("model.layers.0.self_attn.rotary_emb.inv_freq", DType::F32, &[32]),
    ];
    let stored = inventory_from_tensors(&tensors, None);
    assert_eq!(
        lines(&stored),
        [
            "model.layers.0.self_attn.q_proj.weight [64, 256] x1 Query int4_g128 9536",
            "model.layers.0.self_attn.k_proj.weight [64, 256] x1 Key int4_g128 8512",
            "model.layers.0.self_attn.v_proj.weight [64, 256] x1 Value int4_g128 8464",
            "model.layers.0.mlp.down_proj.weight [64, 256] x1 Down f8_e4m3 16392",
            "model.layers.0.mlp.experts.gate_up_proj [4, 128, 64] x1 ExpertGateUp mxfp4 17408",
        ]
    );
    assert_eq!(stored.stale, Bytes::new(128));
}

#[test]
fn experts_of_a_layer_share_a_row() {
    let name = |layer, expert, part| {
        format!("model.layers.{layer}.block_sparse_moe.experts.{expert}.{part}.weight")
    };
    let mut tensors = Vec::new();
    for layer in 0..2 {
        for expert in 0..3 {
            for (part, shape) in [("w1", [96, 64]), ("w3", [96, 64]), ("w2", [64, 96])] {
                tensors.push(tensor(&name(layer, expert, part), DType::Bf16, &shape));
            }
        }
    }
    let stored = inventory_from_tensors(&tensors, None);
    assert_eq!(stored.rows.len(), 6);
    let first = &stored.rows[0].parameter;
    assert_eq!(first.name, "model.layers.0.block_sparse_moe.experts.*.w1.weight");
    assert_eq!((first.count, first.part, first.layer), (3, Part::ExpertGate, Some(0)));
    assert_eq!(stored.elements(), 2 * 3 * 3 * 96 * 64);
}

#[test]
fn gguf_names_and_draft_layers_are_told_apart() {
    let config = br#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
        "vocab_size": 100, "intermediate_size": 96}"#;
    let architecture = hf::from_config(config).unwrap().architecture;
    let tensors = [
        tensor("token_embd.weight", DType::Q4K, &[256, 64]),
        tensor("blk.0.attn_q.weight", DType::Q4K, &[64, 256]),
        tensor("blk.0.attn_k_b.weight", DType::F16, &[4, 8, 8]),
        tensor("blk.0.ffn_gate_exps.weight", DType::Q4K, &[4, 96, 256]),
        tensor("blk.0.ffn_gate_inp.weight", DType::F32, &[4, 64]),
        tensor("blk.0.ssm_a", DType::F32, &[16]),
        tensor("blk.1.attn_q.weight", DType::Q4K, &[64, 256]),
        tensor("output.weight", DType::Q6K, &[256, 64]),
        tensor("output_norm.weight", DType::F32, &[64]),
    ];
    let stored = inventory_from_tensors(&tensors, Some(&architecture));
    let parts: Vec<Part> = stored.rows.iter().map(|r| r.parameter.part).collect();
    use Part::*;
    assert_eq!(
        parts,
        [TokenEmbedding, Query, KvUp, ExpertGate, Router, SsmA, Query, Head, FinalNorm]
    );
    let drafts: Vec<bool> = stored.rows.iter().map(|r| r.draft).collect();
    assert_eq!(drafts, [false, false, false, false, false, false, true, false, false]);
}
