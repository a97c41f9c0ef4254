#!/usr/bin/env python3
"""Writes names.json: small models of each class, built by transformers on the meta device, with the configuration as
transformers saves it and the names and shapes of its parameters. Run with torch and transformers installed:

    python generate_names.py > names.json

Layers that equal the first of their kind are folded: `"layers": {"prefix": [kind of each layer]}`.
"""

import json
import re
import sys

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSpeechSeq2Seq,
)

SMALL = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=120, head_dim=24, n_embd=64, n_layer=3, n_head=4, n_positions=32, max_position_embeddings=32,
    num_local_experts=4, num_experts=4, n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=40,
    shared_expert_intermediate_size=48, q_lora_rank=20, kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8,
    v_head_dim=10, sliding_window=16, layer_types=None, first_k_dense_replace=1,
)
CAUSAL = {
    "llama": {}, "mistral": {}, "mixtral": {}, "qwen2": {}, "qwen3": {}, "gemma": {}, "gemma2": {},
    "gemma3_text": dict(num_hidden_layers=7), "gpt2": {}, "gpt_neox": {}, "gpt_bigcode": {}, "gptj": dict(rotary_dim=8),
    "gpt_neo": dict(num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4),
    "falcon": dict(num_kv_heads=4, ffn_hidden_size=256), "qwen2_moe": dict(layer_types=["full_attention"] * 3, mlp_only_layers=[1]),
    "qwen3_moe": dict(decoder_sparse_step=2), "qwen3_next": dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=12),
    "phi": {}, "phi3": dict(pad_token_id=0), "phimoe": {}, "deepseek_v2": {}, "deepseek_v3": {}, "gpt_oss": {}, "glm": dict(pad_token_id=0),
    "glm4": dict(pad_token_id=0), "glm4_moe": dict(use_qk_norm=True),
    "llama4_text": dict(num_hidden_layers=4, intermediate_size_mlp=128, interleave_moe_layer_step=2, pad_token_id=0),
    "olmo": {}, "olmo2": {}, "olmo3": {}, "olmoe": {}, "granite": {}, "granitemoe": {}, "granitemoeshared": dict(shared_intermediate_size=32),
    "granitemoehybrid": dict(layer_types=["linear_attention", "full_attention", "linear_attention"], shared_intermediate_size=32,
        mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16),
    "cohere": dict(use_qk_norm=True), "cohere2": {}, "falcon_h1": dict(mamba_d_ssm=64, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=16),
    "falcon_mamba": dict(time_step_rank=4, intermediate_size=128), "mamba": dict(time_step_rank=4, intermediate_size=128),
    "mamba2": dict(num_heads=8, head_dim=16, n_groups=2, state_size=16), "jamba": dict(num_hidden_layers=4, attn_layer_period=3, attn_layer_offset=1),
    "bamba": dict(attn_layer_indices=[1], mamba_n_heads=4, mamba_d_head=32, mamba_d_state=16),
    "nemotron_h": dict(mamba_num_heads=4, mamba_head_dim=16, n_groups=2, ssm_state_size=16, moe_shared_expert_intermediate_size=56),
    "lfm2": dict(layer_types=["conv", "full_attention", "conv"], block_multiple_of=16), "opt": dict(ffn_dim=96, word_embed_proj_dim=32),
    "bloom": {}, "starcoder2": {}, "mpt": dict(d_model=64, n_layers=3, n_heads=4), "stablelm": {}, "smollm3": dict(pad_token_id=0), "exaone4": {},
    "seed_oss": dict(pad_token_id=0), "apertus": dict(pad_token_id=0), "arcee": {}, "ernie4_5": dict(pad_token_id=0), "ernie4_5_moe": dict(moe_num_experts=4, moe_k=2),
    "minimax_m2": dict(rotary_dim=8), "persimmon": dict(pad_token_id=0), "gemma3n_text": dict(num_hidden_layers=10, num_kv_shared_layers=5,
        hidden_size_per_layer_input=8, vocab_size_per_layer_input=120, intermediate_size=[96] * 10, activation_sparsity_pattern=None, laurel_rank=4),
    "gemma4_text": dict(num_hidden_layers=7, num_kv_shared_layers=1, hidden_size_per_layer_input=8, vocab_size_per_layer_input=120, use_double_wide_mlp=True),
    "qwen3_5_text": dict(num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12),
    "deepseek_v32": dict(index_n_heads=2, index_head_dim=16), "glm4_moe_lite": {},
    "kimi_linear": dict(num_experts_per_token=2, num_hidden_layers=4, pad_token_id=0, eos_token_id=1, linear_num_heads=2, linear_head_dim=12),
    "zamba2": dict(num_hidden_layers=5, hybrid_layer_ids=[1, 3, 4], layers_block_type=["mamba", "hybrid", "mamba", "hybrid", "hybrid"], num_mem_blocks=2,
        adapter_rank=4, n_mamba_heads=4, mamba_headdim=32, mamba_d_state=16),
}
MASKED = {
    "bert": {}, "roberta": {}, "mpnet": {}, "electra": dict(embedding_size=32), "albert": dict(embedding_size=32),
    "distilbert": dict(dim=64, hidden_dim=96, n_layers=2, n_heads=4), "modernbert": dict(pad_token_id=0),
    "deberta": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, share_att_key=True,
        norm_rel_ebd="layer_norm", position_biased_input=False, conv_kernel_size=3),
}
SEQ2SEQ = {
    "t5": dict(d_model=64, d_ff=96, d_kv=24, num_layers=2, num_decoder_layers=3, num_heads=4), "mt5": dict(d_model=64, d_ff=96, d_kv=24, num_layers=2, num_heads=4),
    "umt5": dict(d_model=64, d_ff=96, d_kv=24, num_layers=2, num_heads=4),
}
SIDES = dict(d_model=64, encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96)
SEQ2SEQ |= {name: SIDES | dict(bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2) for name in ("bart", "mbart", "pegasus", "m2m_100")}
VISION = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=28, patch_size=14)
TEXT = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=120)
QWEN = dict(depth=2, num_heads=4, hidden_size=48, patch_size=14)
VLM = {
    "llava": dict(vision_config=VISION | dict(model_type="clip_vision_model"), text_config=TEXT | dict(model_type="llama")),
    "mistral3": dict(vision_config=VISION | dict(model_type="pixtral"), text_config=TEXT | dict(model_type="mistral")),
    "gemma3": dict(vision_config=VISION | dict(model_type="siglip_vision_model"), text_config=TEXT | dict(model_type="gemma3_text")),
    "paligemma": dict(projection_dim=64, vision_config=VISION | dict(model_type="siglip_vision_model"), text_config=TEXT | dict(model_type="gemma")),
    "qwen2_vl": dict(vision_config=QWEN | dict(embed_dim=48, hidden_size=64), text_config=TEXT),
    "qwen2_5_vl": dict(vision_config=QWEN | dict(intermediate_size=40, out_hidden_size=64), text_config=TEXT),
    "qwen3_vl": dict(vision_config=QWEN | dict(intermediate_size=40, out_hidden_size=64, num_position_embeddings=36, deepstack_visual_indexes=[0, 1]),
        text_config=TEXT | dict(pad_token_id=0)),
}
OTHER = [
    ("whisper", SIDES | dict(num_mel_bins=8, max_source_positions=20, max_target_positions=16, vocab_size=120, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=3, begin_suppress_tokens=None), AutoModelForSpeechSeq2Seq),
    ("vit", VISION, AutoModelForImageClassification),
    ("clip", dict(projection_dim=32, vision_config=VISION, text_config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=120)), AutoModel),
    ("siglip", dict(vision_config=VISION, text_config=dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=120)), AutoModel),
    ("wavlm", dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4), AutoModel),
]


def sizes(model_type, own):
    """The small sizes that the class has, and the case's own."""
    known = AutoConfig.for_model(model_type).to_dict()
    return {k: v for k, v in SMALL.items() if k in known} | own


def fold(names):
    """Parameters outside layers, and layers by kind."""
    rest, layers = {}, {}
    for name, shape in names.items():
        found = re.match(r"(.*?)\.(\d+)\.(.*)$", name)
        if found:
            layers.setdefault(found[1], {}).setdefault(int(found[2]), {})[found[3]] = shape
        else:
            rest[name] = shape
    folded = {}
    for prefix, by_index in layers.items():
        kinds = []
        order = []
        for index in sorted(by_index):
            if by_index[index] not in kinds:
                kinds.append(by_index[index])
            order.append([index, kinds.index(by_index[index])])
        folded[prefix] = {"kinds": kinds, "order": order}
    return rest, folded


def case(model_type, overrides, auto):
    config = AutoConfig.for_model(model_type, **overrides)
    with torch.device("meta"):
        model = auto.from_config(config)
    names = {n: list(p.shape) for n, p in model.named_parameters()}
    # Correction biases are buffers that checkpoints hold.
    names |= {n: list(b.shape) for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
    saved = model.config.to_diff_dict()
    saved["architectures"] = [type(model).__name__]
    saved["model_type"] = model_type
    for key in ("transformers_version", "dtype", "rope_parameters", "id2label", "label2id"):
        saved.pop(key, None)
    saved.pop("time_step_limit", None)  # holds an infinity, which JSON lacks
    rest, layers = fold(names)
    return {"model_type": model_type, "config": saved, "parameters": rest, "layers": layers}


def main():
    transformers.logging.set_verbosity_error()
    cases = [(t, sizes(t, own), AutoModelForCausalLM) for t, own in CAUSAL.items()]
    cases += [(t, sizes(t, own), AutoModelForMaskedLM) for t, own in MASKED.items()]
    cases += [(t, dict(vocab_size=120, max_position_embeddings=32) | own, AutoModelForSeq2SeqLM) for t, own in SEQ2SEQ.items()]
    cases += [(t, own, AutoModelForImageTextToText) for t, own in VLM.items()]
    cases += OTHER
    print("[")
    written = 0
    for model_type, overrides, auto in cases:
        try:
            row = case(model_type, overrides, auto)
        except Exception as error:  # say which class this version cannot build, and go on
            print(f"{model_type}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(("," if written else "") + json.dumps(row, separators=(",", ":"), default=str))
        written += 1
    print("]")
    print(f"{written} classes, transformers {transformers.__version__}", file=sys.stderr)


main()
