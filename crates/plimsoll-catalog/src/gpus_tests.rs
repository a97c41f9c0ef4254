//! Tests of the GPU table: names, capacities, precisions.

use super::*;
use proptest::prelude::*;

#[test]
fn every_spelling_names_one_gpu() {
    let mut seen: HashMap<String, &str> = HashMap::new();
    for gpu in gpus() {
        let mut own: Vec<String> =
            gpu.aliases.iter().chain([&gpu.id, &gpu.name]).map(|name| normalize(name)).collect();
        own.sort();
        own.dedup();
        for key in own {
            assert!(!key.is_empty(), "{}", gpu.id);
            if let Some(other) = seen.insert(key.clone(), &gpu.id) {
                panic!("`{key}` names {other} and {}", gpu.id);
            }
        }
    }
    for key in spellings().families.keys() {
        assert!(!seen.contains_key(key), "{key}");
    }
    assert!(gpus().len() >= 120);
}

#[test]
fn every_mark_rule_and_table_exists() {
    let file: GpuFile = crate::embedded::parse(include_str!("../data/gpus.json"), "gpus.json");
    for entry in &file.gpus {
        for mark in &entry.sources {
            assert!(source_of(mark).is_some(), "{}: {mark}", entry.id);
        }
        let usable = &entry.usable;
        match &usable.rule {
            Some(rule) => {
                assert!(file.usable_rules.iter().any(|r| r.id == *rule), "{}: {rule}", entry.id);
                assert!(usable.sources.is_empty() && usable.typical_mib == 0, "{}", entry.id);
            }
            None => assert!(
                !usable.sources.is_empty()
                    && usable.sources.iter().all(|mark| source_of(mark).is_some()),
                "{}",
                entry.id
            ),
        }
        if let Some(table) = &entry.mig {
            assert!(mig_memory_slices(table).is_some(), "{}: {table}", entry.id);
        }
    }
    for family in &file.ambiguous {
        for id in family.others.iter().chain([&family.assume]) {
            assert!(file.gpus.iter().any(|gpu| gpu.id == *id), "{id}");
        }
    }
    assert_eq!(gpus_date().len(), 10);
}

#[test]
fn capacities_are_ordered_and_below_what_is_printed() {
    for gpu in gpus() {
        let usable = gpu.usable;
        assert!(usable.low <= usable.typical && usable.typical <= usable.high, "{}", gpu.id);
        assert!(usable.high <= gpu.printed, "{}", gpu.id);
        // No driver keeps more than 11 % for itself, apart from systems that share their memory.
        assert!(gpu.unified || usable.low.scale(100, 89) > gpu.printed, "{}", gpu.id);
        assert!(gpu.printed_old_driver.is_none_or(|old| old <= gpu.printed), "{}", gpu.id);
        assert!(gpu.bandwidth_gbps > 0, "{}", gpu.id);
    }
    // More memory in the name is more memory to use.
    for (small, large) in [
        ("a100-40g", "a100-80g"),
        ("h100-80g", "h100-nvl-94g"),
        ("h100-nvl-94g", "h200"),
        ("h200", "b200"),
        ("b200", "gb200"),
        ("gb200", "b300"),
        ("b300", "gb300"),
        ("v100-16g", "v100-32g"),
        ("rtx-4080", "rtx-4090"),
        ("rtx-4090", "rtx-5090"),
        ("rtx-5090", "rtx-a6000"),
        ("apple-m3-max-64g", "apple-m3-max-128g"),
        ("jetson-orin-32g", "jetson-orin-64g"),
    ] {
        let [small, large] = [small, large].map(|id| find_gpu(id).unwrap());
        assert!(small.usable.high < large.usable.low, "{} {}", small.id, large.id);
    }
}

/// The rules for cards without a reading must reproduce the cards with one, where the driver is current.
#[test]
fn rules_reproduce_the_readings() {
    let file: GpuFile = crate::embedded::parse(include_str!("../data/gpus.json"), "gpus.json");
    let rule = |id: &str| file.usable_rules.iter().find(|rule| rule.id == id).unwrap();
    let (mut tried, mut held) = (0, 0);
    for gpu in gpus().filter(|gpu| gpu.usable.basis == Basis::Measured && gpu.vendor == "nvidia") {
        let id = match () {
            () if gpu.unified => "unified-linux",
            () if gpu.memory.starts_with("gddr") => "gddr",
            () => "hbm",
        };
        let derived = rule(id).usable(gpu.printed.get() >> 20);
        tried += 1;
        held += u32::from(derived.low <= gpu.usable.high && gpu.usable.low <= derived.high);
    }
    // Pascal and early Turing readings come from older drivers, which kept less.
    assert!(tried >= 50 && held * 100 >= tried * 88, "{held} of {tried}");
}

#[test]
fn measured_cards_hold_the_readings() {
    // Hundredths of GiB printed by torch or an engine on that card.
    let mut wrong = Vec::new();
    for (id, low, high) in [
        ("h100-80g", 7918, 7925),
        ("a100-80g", 7914, 7925),
        ("a100-40g", 3938, 3956),
        ("a10g", 2206, 2220),
        ("l40s", 4434, 4452),
        ("rtx-3090", 2355, 2370),
        ("rtx-4090", 2350, 2365),
        ("v100-16g", 1575, 1578),
        ("v100-32g", 3173, 3175),
        ("t4", 1456, 1475),
        ("h200", 13972, 13981),
        ("h100-96g", 9400, 9504),
        ("b200", 17835, 17840),
        ("gb300", 27650, 27662),
        ("rtx-2080-ti", 1057, 1076),
        ("rtx-pro-6000", 9496, 9498),
    ] {
        let usable = find_gpu(id).unwrap().usable;
        assert_eq!(usable.basis, Basis::Measured, "{id}");
        let hundredths = |bytes: Bytes| (bytes.get() * 100 + (1 << 29)) >> 30;
        wrong.extend(
            ((hundredths(usable.low), hundredths(usable.high)) != (low, high))
                .then(|| (id, hundredths(usable.low), hundredths(usable.high))),
        );
    }
    assert_eq!(wrong, []);
}

#[test]
fn finds_what_people_write() {
    for (query, id) in [
        ("NVIDIA H100 80GB HBM3", "h100-80g"),
        ("A100-SXM4-80GB", "a100-80g"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("A100-80GB", "a100-80g"),
        ("a100_80gb", "a100-80g"),
        ("RTX A6000", "rtx-a6000"),
        ("L40S 48GB", "l40s"),
        ("RTX PRO 6000 Blackwell 96GB", "rtx-pro-6000"),
        ("H800", "h800-80g"),
        ("2080 Ti", "rtx-2080-ti"),
        ("Tesla T4", "t4"),
        ("apple m3 max 128GB", "apple-m3-max-128g"),
        ("M3-Max-128G", "apple-m3-max-128g"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GB10 (DGX Spark, unified memory)", "dgx-spark"),
        ("NVIDIA GeForce RTX 4070 (8 GB laptop)", "rtx-4070-laptop"),
    ] {
        assert_eq!(find_gpu(query).map(|gpu| gpu.id.as_str()), Ok(id), "{query}");
    }
    let found = resolve_gpu("A100").unwrap();
    assert_eq!(found.gpu.id, "a100-40g");
    assert!(found.assumption.unwrap().contains("a100-80g"));
}

#[test]
fn unknown_names_get_the_nearest_and_the_cure() {
    for (query, expected) in [
        ("rtx-4900", "rtx-4090"),
        ("h100-90g", "h100-80g"),
        ("gefroce rtx 3090", "rtx-3090"),
        ("h10", "h100-80g"),
    ] {
        let error = find_gpu(query).unwrap_err();
        assert!(error.nearest.iter().any(|id| id == expected), "{query}: {:?}", error.nearest);
        assert!(error.to_string().contains("plimsoll gpus"));
    }
    let error = find_gpu("Voodoo 2").unwrap_err();
    assert_eq!(
        error.to_string(),
        "`Voodoo 2` is not a known GPU; `plimsoll gpus` lists them all, and a capacity such as 24GiB works for any other"
    );
}

#[test]
fn precisions_follow_the_hardware() {
    for (id, bf16, fp8, fp4) in [
        ("v100-16g", false, false, false),
        ("t4", false, false, false),
        ("a100-80g", true, false, false),
        ("rtx-3090", true, false, false),
        ("rtx-4090", true, true, false),
        ("h100-80g", true, true, false),
        ("b200", true, true, true),
        ("rtx-5090", true, true, true),
        ("dgx-spark", true, true, true),
        ("mi250x", true, false, false),
        ("mi300x", true, true, false),
        ("mi355x", true, true, true),
        ("rx-7900-xtx", true, false, false),
        ("gaudi", true, false, false),
        ("gaudi2", true, true, false),
        ("apple-m3-max-64g", true, false, false),
        ("ascend-910-32g", false, false, false),
    ] {
        let gpu = find_gpu(id).unwrap();
        let has = [DType::Bf16, DType::F8E4M3, DType::Nvfp4].map(|dtype| gpu.computes_in(dtype));
        assert_eq!(has, [bf16, fp8, fp4], "{id}");
        assert!(gpu.computes_in(DType::Q4K) && gpu.computes_in(DType::F16), "{id}");
    }
    for gpu in gpus() {
        let peaks = &gpu.peak_gflops;
        assert!(gpu.target.has_bf16() || peaks.bf16.is_none(), "{}", gpu.id);
        assert!(gpu.target.has_fp8() || peaks.fp8.is_none(), "{}", gpu.id);
        assert!(gpu.target.has_fp4() || peaks.fp4.is_none(), "{}", gpu.id);
    }
    assert_eq!(
        find_gpu("3090").unwrap().check_dtype(DType::F8E4M3).unwrap_err().to_string(),
        "rtx-3090 (compute capability 8.6) cannot compute in f8_e4m3: it needs NVIDIA compute capability 8.9 or AMD gfx942; use bf16 or another GPU"
    );
}

#[test]
fn mig_slices_fit_their_gpu() {
    for gpu in gpus() {
        for profile in gpu.mig_profiles() {
            let context = format!("{} {}", gpu.id, profile.name);
            assert!(profile.low_mib <= profile.typical_mib, "{context}");
            assert!(Bytes::mib(profile.typical_mib) * profile.count <= gpu.printed, "{context}");
            assert!(gpu.sms.is_some_and(|sms| profile.sms <= sms), "{context}");
        }
    }
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,80}") {
        let _ = resolve_gpu(&text);
    }

    #[test]
    fn dressing_does_not_matter(index in 0usize..150, upper: bool, spaces: bool) {
        let gpu = gpus().nth(index).unwrap();
        let mut text = gpu.id.clone();
        if upper { text = text.to_uppercase(); }
        if spaces { text = format!("  NVIDIA {}", text.replace('-', " ")); }
        prop_assert_eq!(&find_gpu(&text).unwrap().id, &gpu.id);
    }
}
