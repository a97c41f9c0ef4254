//! Laws of the model table, and lookups by the spellings that people use.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn config(model: &ModelEntry) -> Value {
    serde_json::from_str(model.config).unwrap_or_else(|error| panic!("{}: {error}", model.name))
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = models().map(|model| model.name).collect();
    assert_eq!(names.len(), models().len());
    assert!(models().len() >= 100);
}

#[test]
fn each_spelling_belongs_to_one_model() {
    let mut owner = BTreeMap::new();
    for (spelling, index) in &SPELLINGS {
        assert!(spelling.is_ascii(), "{spelling}");
        if let Some(other) = owner.insert(spelling, index) {
            panic!(
                "`{spelling}` means {} and {}",
                ENTRIES[usize::from(*other)].name,
                ENTRIES[usize::from(*index)].name
            );
        }
    }
}

#[test]
fn aliases_are_unique_and_add_something() {
    let mut seen = BTreeSet::new();
    for model in models() {
        for alias in model.aliases {
            let alias = alias.to_ascii_lowercase();
            assert_ne!(alias, model.name.to_ascii_lowercase(), "{}", model.name);
            assert!(seen.insert(alias.clone()), "{alias} is an alias twice");
        }
    }
}

#[test]
fn every_spelling_finds_its_model() {
    for model in models() {
        for name in [&model.name].into_iter().chain(model.aliases) {
            assert_eq!(find(name).unwrap(), model);
            assert_eq!(find(&name.to_ascii_uppercase()).unwrap(), model);
            assert_eq!(find(name.split_once('/').map_or(name, |(_, tail)| tail)).unwrap(), model);
        }
    }
}

#[test]
fn configurations_are_objects_that_name_their_type() {
    for model in models() {
        let config = config(model);
        assert!(config.is_object(), "{}", model.name);
        assert!(config["model_type"].is_string(), "{}", model.name);
        if let Some(classes) = config.get("architectures") {
            assert!(classes.as_array().is_some_and(|classes| classes.len() == 1), "{}", model.name);
        }
    }
}

#[test]
fn facts_have_a_source_a_month_and_a_count() {
    for model in models() {
        assert!(model.parameters > 1_000_000, "{}", model.name);
        assert!(model.source.contains("count: "), "{}", model.name);
        let (year, month) = model.date.split_once('-').expect(model.name);
        assert!((2018..2100).contains(&year.parse::<u32>().expect(model.name)), "{}", model.name);
        assert!((1..=12).contains(&month.parse::<u32>().expect(model.name)), "{}", model.name);
    }
}

/// Lists with one item for each layer must have as many items as there are layers.
#[test]
fn lists_by_layer_match_the_layers() {
    for model in models() {
        let config = config(model);
        for part in [&config, &config["text_config"]] {
            let Some(layers) = part["num_hidden_layers"].as_u64() else { continue };
            for key in ["layer_types", "mlp_layer_types", "layers_block_type", "moe_layer_freq"] {
                if let Some(list) = part[key].as_array() {
                    assert_eq!(list.len() as u64, layers, "{}: {key}", model.name);
                }
            }
            if let Some(pattern) = part["hybrid_override_pattern"].as_str() {
                assert_eq!(pattern.len() as u64, layers, "{}", model.name);
            }
        }
    }
}

#[test]
fn heads_divide() {
    for model in models() {
        let config = config(model);
        for part in [&config, &config["text_config"]] {
            let Some(heads) = part["num_attention_heads"].as_u64() else { continue };
            if let Some(groups) = part["num_key_value_heads"].as_u64() {
                assert_eq!(heads % groups, 0, "{}", model.name);
            }
        }
    }
}

#[test]
fn common_spellings() {
    let table = [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("NousResearch/Llama-2-70b-hf", "meta-llama/Llama-2-70b-hf"),
        ("TheBloke/Llama-2-70B-GPTQ", "TheBloke/Llama-2-70B-GPTQ"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("unsloth/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("bert-large-uncased", "google-bert/bert-large-uncased"),
        ("gpt2", "openai-community/gpt2"),
        ("gpt-3", "openai/gpt-3-175b"),
        ("whisper-turbo", "openai/whisper-large-v3-turbo"),
        (" deepseek-v3 ", "deepseek-ai/DeepSeek-V3"),
        ("llama3.1:70b", "meta-llama/Llama-3.1-70B"),
    ];
    for (query, name) in table {
        assert_eq!(find(query).map(|model| model.name), Ok(name), "{query}");
    }
}

/// Counts that the publishers print, so that a changed file cannot drift from them unnoticed.
#[test]
fn published_counts() {
    let table = [
        ("meta-llama/Llama-2-7b-hf", 6_738_415_616),
        ("meta-llama/Llama-3.1-405B", 405_853_388_800),
        ("mistralai/Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Qwen/Qwen3-235B-A22B", 235_093_634_560),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("deepseek-ai/DeepSeek-V3", 671_026_419_200),
        ("openai/gpt-oss-120b", 116_829_156_672),
        ("bigscience/bloom", 176_247_271_424),
        ("openai-community/gpt2", 124_439_808),
        ("state-spaces/mamba-2.8b-hf", 2_768_345_600),
        ("google-bert/bert-base-uncased", 109_514_298),
        ("google/flan-t5-xxl", 11_135_332_352),
        ("openai/clip-vit-large-patch14", 427_616_513),
        ("openai/whisper-large-v3", 1_543_490_560),
    ];
    for (name, parameters) in table {
        assert_eq!(find(name).unwrap().parameters, parameters, "{name}");
    }
}

#[test]
fn unknown_names_offer_the_nearest() {
    let error = find("meta-llama/Lama-3.1-8B").unwrap_err();
    assert_eq!(error.nearest[0], "meta-llama/Llama-3.1-8B");
    assert_eq!(error, find("meta-llama/Lama-3.1-8B").unwrap_err());
    let error = find("mistral-7b-v0.9").unwrap_err();
    assert_eq!(
        error.to_string(),
        "model `mistral-7b-v0.9` is not in the catalogue; the nearest names are mistralai/Mistral-7B-v0.1, \
         mistralai/Mistral-7B-Instruct-v0.2, mistralai/Mistral-7B-v0.3, TheBloke/Mistral-7B-v0.1-GPTQ, \
         mistralai/Mixtral-8x7B-v0.1"
    );
}

#[test]
fn names_like_nothing_offer_nothing() {
    for query in ["", "/", "\u{1b}[31m", "zzzzzzzzzzzzzzzzzzzzzzzz", &"x".repeat(1 << 20)] {
        let error = find(query).unwrap_err();
        assert_eq!(error.nearest, [""; 0], "{query:.40}");
    }
    assert_eq!(
        find("\u{1b}[31m").unwrap_err().to_string(),
        "model `\\u{1b}[31m` is not in the catalogue"
    );
}

proptest! {
    #[test]
    fn any_query_answers(query in "\\PC{0,40}") {
        match find(&query) {
            Ok(model) => prop_assert!(models().any(|known| known == model)),
            Err(error) => prop_assert!(error.nearest.len() <= 5),
        }
    }

    /// The bound must never exceed the distance, or a near name could be passed over.
    #[test]
    fn the_quick_bound_is_a_bound(one in "[a-d./-]{0,12}", other in "[a-d./-]{0,12}") {
        prop_assert!(least_distance(&one, &other) <= strsim::osa_distance(&one, &other));
    }
}
