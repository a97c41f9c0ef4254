//! Small configurations, one per rule, and the errors that bad ones give.

use plimsoll_model::hf::{self, ImportError};
use plimsoll_model::inventory::inventory;
use plimsoll_model::{Architecture, arch};

fn import(config: &str) -> Architecture {
    match hf::from_config(config.as_bytes()) {
        Ok(imported) => imported.architecture,
        Err(error) => panic!("{error}: {config}"),
    }
}

fn error(config: &str) -> String {
    hf::from_config(config.as_bytes()).map(|i| i.architecture.family).unwrap_err().to_string()
}

const TINY: &str = r#""hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100, "intermediate_size": 128"#;

#[test]
fn llama_counts_add_up() {
    let a = import(&format!(r#"{{"model_type": "llama", {TINY}, "num_key_value_heads": 2}}"#));
    let layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64;
    assert_eq!(inventory(&a).elements(), 2 * 100 * 64 + 2 * layer + 64);
    assert_eq!(a.kv_elements_per_token(), 2 * 2 * 32);
}

#[test]
fn absent_heads_and_ties_follow_the_family() {
    let a = import(&format!(r#"{{"model_type": "llama", {TINY}}}"#));
    assert!(!a.head.tied);
    let arch::Mixer::Attention(attention) = &a.stacks[0].layers[0].mixer else { panic!() };
    assert_eq!((attention.heads, attention.kv_heads, attention.head_dim), (4, 4, 16));
    let a = import(&format!(r#"{{"model_type": "gemma", {TINY}, "num_key_value_heads": 1}}"#));
    assert!(a.head.tied);
    let arch::Mixer::Attention(attention) = &a.stacks[0].layers[0].mixer else { panic!() };
    assert_eq!(attention.head_dim, 256, "Gemma's own default, not hidden over heads");
}

#[test]
fn windows_and_mixtures_are_read_per_layer() {
    let a = import(&format!(
        r#"{{"model_type": "qwen2", {TINY}, "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1}}"#
    ));
    let counts = a.layer_counts();
    assert_eq!((counts.full, counts.sliding), (1, 1));
    let a = import(&format!(
        r#"{{"model_type": "deepseek_v3", {TINY}, "n_routed_experts": 4, "num_experts_per_tok": 2,
             "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1}}"#
    ));
    assert_eq!(a.layer_counts().mixture, 1);
    assert!(a.active_parameters() < inventory(&a).elements());
}

#[test]
fn unknown_kinds_of_layers_are_noted() {
    let noted = |config: String| {
        let imported = hf::from_config(config.as_bytes()).unwrap();
        let notes = imported.diagnostics.iter().map(|d| format!("{}: {}", d.key, d.message));
        notes.filter(|note| note.starts_with("layer_types")).collect::<Vec<_>>()
    };
    let types = |family: &str, words: &str| {
        format!(
            r#"{{"model_type": "{family}", {TINY}, "sliding_window": 8, "layer_types": [{words}]}}"#
        )
    };
    let known = r#""full_attention", "sliding_attention""#;
    assert!(noted(types("mistral", known)).is_empty());
    let notes = noted(types("mistral", r#""full_attention", "fourier_mixing""#));
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("`fourier_mixing` (layer 1)"), "{notes:?}");
    assert!(notes[0].contains("`sliding_attention`"), "{notes:?}");
}

#[test]
fn errors_name_the_key_and_the_cure() {
    for (config, wanted) in [
        ("{", "config.json, line 1"),
        ("[]", "a JSON object in braces is accepted"),
        (
            r#"{"model_type": "llama"}"#,
            "needs `hidden_size`, `num_attention_heads`, `num_hidden_layers`",
        ),
        (r#"{"model_type": "no-such"}"#, "`hidden_size`"),
        (
            &format!(r#"{{"model_type": "llama", {TINY}, "num_key_value_heads": 3}}"#),
            "`num_key_value_heads` is 3, but it must divide `num_attention_heads`, which is 4",
        ),
        (
            &format!(
                r#"{{"model_type": "mixtral", {TINY}, "num_local_experts": 2, "num_experts_per_tok": 3}}"#
            ),
            "`num_experts_per_tok` is 3, but there are only 2 experts",
        ),
        (
            &format!(
                r#"{{"model_type": "gemma3_text", {TINY}, "layer_types": ["full_attention"]}}"#
            ),
            "`layer_types` is a list of 1, but the model has 2 layers",
        ),
        (
            r#"{"model_type": "llama", "hidden_size": 0, "num_hidden_layers": 1}"#,
            "`hidden_size` is 0; accepted: a whole number from 1",
        ),
        (
            r#"{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 9999999999, "num_attention_heads": 1}"#,
            "`num_hidden_layers` is 9999999999; accepted: a whole number from 1 to 10000",
        ),
        (
            r#"{"model_type": "llama", "hidden_size": 33554432, "num_hidden_layers": 1, "num_attention_heads": 64,
                "intermediate_size": 128, "vocab_size": 1000000000}"#,
            "matrices of at most",
        ),
    ] {
        let message = error(config);
        assert!(message.contains(wanted), "{message:?} does not say {wanted:?}");
    }
}

#[test]
fn an_unknown_family_with_the_keys_of_llama_is_read_and_said() {
    let imported =
        hf::from_config(format!(r#"{{"model_type": "newcomer", {TINY}}}"#).as_bytes()).unwrap();
    assert!(imported.diagnostics.iter().any(|d| d.message.contains("\"newcomer\" is not known")));
    let missing = hf::from_config(br#"{"model_type": "newcomer", "vocab_size": 5}"#);
    assert!(matches!(missing, Err(ImportError::Missing { keys, .. }) if keys.len() == 4));
}

#[test]
fn quantization_is_read_with_what_it_spares() {
    let a = import(&format!(
        r#"{{"model_type": "llama", {TINY}, "torch_dtype": "bfloat16", "quantization_config":
            {{"quant_method": "gptq", "bits": 4, "group_size": 128, "modules_to_not_convert": ["k_proj"]}}}}"#
    ));
    let quantization = a.quantization.unwrap();
    assert_eq!((quantization.method.as_str(), quantization.dtype.name()), ("gptq", "int4_g128"));
    assert_eq!(quantization.skip, ["k_proj"]);
    assert_eq!(a.dtype.name(), "bf16");
}

#[test]
fn infinities_that_python_writes_do_no_harm() {
    let config = format!(
        r#"{{"model_type": "llama", {TINY}, "time_step_limit": [0.0, Infinity], "x": NaN}}"#
    );
    assert!(hf::from_config(config.as_bytes()).is_ok());
}

#[test]
fn published_figures_of_active_parameters_and_caches() {
    // Name, active parameters as published (in tenths of billions, within one; counts with both tables), cache
    // elements per token as engines keep them.
    for (name, tenths, kv) in [
        ("mistralai/Mixtral-8x7B-v0.1", 129, 32 * 2 * 1024),
        ("Qwen/Qwen3-30B-A3B", 33, 48 * 2 * 512),
        ("deepseek-ai/DeepSeek-V3", 376, 61 * 576),
        ("meta-llama/Llama-3.1-405B", 4058, 126 * 2 * 1024),
        ("openai/gpt-oss-120b", 57, 36 * 2 * 512),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 38, 12 * 2 * 512),
    ] {
        let entry = plimsoll_catalog::models::find(name).unwrap();
        let a = import(entry.config);
        let found = a.active_parameters() / 100_000_000;
        assert!(found.abs_diff(tenths) <= 1, "{name}: {found}");
        assert_eq!(a.kv_elements_per_token(), kv, "{name}");
    }
}

#[test]
fn recurrent_states_have_their_published_sizes() {
    let entry = plimsoll_catalog::models::find("state-spaces/mamba-130m-hf").unwrap();
    let a = import(entry.config);
    let state = a.stacks[0].layers[0].recurrent_state().unwrap();
    assert_eq!(
        (state.conv(), state.conv_with_newest(), state.ssm),
        (3 * 1536, 4 * 1536, 1536 * 16)
    );
    let entry = plimsoll_catalog::models::find("Qwen/Qwen3-Next-80B-A3B-Instruct").unwrap();
    let a = import(entry.config);
    let state = a.stacks[0].layers[0].recurrent_state().unwrap();
    assert_eq!((state.conv_channels, state.ssm), (8192, 32 * 128 * 128));
    let counts = a.layer_counts();
    assert_eq!((counts.full, counts.recurrent, counts.mixture), (12, 36, 48));
}

#[test]
fn draft_layers_are_named_but_not_counted() {
    let entry = plimsoll_catalog::models::find("deepseek-ai/DeepSeek-V3").unwrap();
    let imported = hf::from_config(entry.config.as_bytes()).unwrap();
    assert_eq!(imported.draft_layers, 1);
    let stack = imported.architecture.draft_stack(1).unwrap();
    assert_eq!((stack.role, stack.layers.len()), (arch::StackRole::Draft, 1));
}

#[test]
fn the_language_model_of_an_unknown_multimodal_family_is_read() {
    let config = format!(
        r#"{{"model_type": "newcomer_vl", "llm_config": {{"model_type": "llama", {TINY}}}}}"#
    );
    let imported = hf::from_config(config.as_bytes()).unwrap();
    assert_eq!(imported.architecture.hidden, 64);
    assert!(imported.diagnostics[0].message.contains("towers and projectors are not counted"));
}
