use proptest::prelude::*;

use super::*;

fn read(text: &str) -> PyTorchSettings {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// What torch 2.15.0 has after reading each text, asked of its own parser (libc10, 2026-11-30): largest split,
/// non-split rounding, large segment in MiB, divisions by class.
#[test]
fn texts_mean_what_torch_reads() {
    const MANY: [u32; 16] = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8];
    let off = [0u32; 16];
    let head = |n: usize, v: u32| {
        let mut classes = [0; 16];
        classes[..n].fill(v);
        classes
    };
    let mut open = [4; 16];
    open[0] = 0;
    let mut last_wins = head(10, 2);
    last_wins[8] = 4;
    let mut gap = head(7, 8);
    gap[10] = 4;
    for (text, split, rounding, large, divisions) in [
        ("", None, 20, 20, off),
        ("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", None, 20, 20, MANY),
        ("roundup_power2_divisions:[>:4]", None, 20, 20, open),
        ("roundup_power2_divisions:4", None, 20, 20, [4; 16]),
        ("roundup_power2_divisions:[256:2,512:2,256:4]", None, 20, 20, last_wins),
        ("roundup_power2_divisions:[64:8,1024:4]", None, 20, 20, gap),
        ("roundup_power2_divisions:[1:2]", None, 20, 20, head(1, 2)),
        ("roundup_power2_divisions:[65536:2]", None, 20, 20, [2; 16]),
        ("roundup_power2_divisions:[4096:2,>:0]", None, 20, 20, head(13, 2)),
        ("roundup_power2_divisions:[256:1,]", None, 20, 20, head(9, 1)),
        ("roundup_power2_divisions:[]", None, 20, 20, off),
        ("max_split_size_mb:-1", None, 20, 20, off),
        ("max_split_size_mb:128MB", Some(128), 20, 20, off),
        ("max_split_size_mb:+64", Some(64), 20, 20, off),
        ("max_split_size_mb: 128 , expandable_segments:True", Some(128), 20, 20, off),
        ("max_split_size_mb:128,", Some(128), 20, 20, off),
        ("max_split_size_mb:30,max_split_size_mb:40", Some(40), 20, 20, off),
        ("large_segment_size_mb:12,max_split_size_mb:12", Some(12), 12, 12, off),
        ("max_split_size_mb:12,large_segment_size_mb:12", Some(12), 12, 12, off),
        ("large_segment_size_mb:11", None, 11, 11, off),
        ("large_segment_size_mb:12,large_segment_size_mb:40", None, 40, 40, off),
        ("max_non_split_rounding_mb:30", None, 30, 20, off),
    ] {
        let config = read(text).config;
        assert_eq!(config.max_split_size, split.map(Bytes::mib), "{text}");
        assert_eq!(config.max_non_split_rounding, Bytes::mib(rounding), "{text}");
        assert_eq!(config.large_segment, Bytes::mib(large), "{text}");
        assert_eq!(config.roundup_power2_divisions.0, divisions, "{text}");
    }
    for (text, threshold) in [("0.8", 0.8), ("8e-1", 0.8), ("0.8x", 0.8), (".5", 0.5)] {
        let settings = read(&format!("garbage_collection_threshold:{text}"));
        assert_eq!(settings.config.garbage_collection_threshold, Some(threshold));
    }
}

/// Older releases let `>` overrule the key before it.
#[test]
fn the_open_class_depends_on_the_release() {
    let text = "roundup_power2_divisions:[512:2,1024:4,>:8]";
    let classes =
        |release| PyTorchSettings::read(text, release).unwrap().config.roundup_power2_divisions.0;
    assert_eq!(classes(Some((2, 8)))[9..12], [2, 8, 8]);
    assert_eq!(classes(Some((2, 9)))[9..12], [2, 4, 8]);
    assert_eq!(classes(None), classes(Some((2, 15))));
}

/// Each was also refused by torch 2.15.0, except the wrong separators, which it overlooks.
#[test]
fn what_torch_refuses_is_explained() {
    for (text, message) in [
        (
            "expandable_segments:true",
            "expandable_segments is `true`, but it must be True or False, so written; write expandable_segments:True, or leave it out",
        ),
        (
            "expandable_segments:",
            "expandable_segments has no value; write expandable_segments:VALUE, where it must be True or False, so written",
        ),
        (
            "expandable_segments",
            "expandable_segments has no value; write expandable_segments:VALUE, where it must be True or False, so written",
        ),
        (
            "expandable_segments=True",
            "`expandable_segments=True` is no setting of torch's allocator; did you mean expandable_segments?",
        ),
        (
            "EXPANDABLE_SEGMENTS:True",
            "`EXPANDABLE_SEGMENTS` is no setting of torch's allocator; did you mean expandable_segments?",
        ),
        (
            "max_split_size:128",
            "`max_split_size` is no setting of torch's allocator; did you mean max_split_size_mb?",
        ),
        ("foo:1", "`foo` is no setting of torch's allocator"),
        (",", "`,` is no setting of torch's allocator"),
        (
            "max_split_size_mb:19",
            "max_split_size_mb is `19`, but it must be a whole number of at least 20 (MiB, the large segment); write max_split_size_mb:128, or leave it out",
        ),
        (
            "max_split_size_mb:25,large_segment_size_mb:40",
            "max_split_size_mb is `25`, but it must be a whole number of at least 40 (MiB, the large segment); write max_split_size_mb:128, or leave it out",
        ),
        (
            "max_split_size_mb:abc",
            "max_split_size_mb is `abc`, but it must be a whole number of at least 20 (MiB, the large segment); write max_split_size_mb:128, or leave it out",
        ),
        (
            "max_split_size_mb:1e3",
            "max_split_size_mb is `1e3`, but it must be a whole number of at least 20 (MiB, the large segment); write max_split_size_mb:128, or leave it out",
        ),
        (
            "max_split_size_mb:99999999999999999999",
            "max_split_size_mb is `99999999999999999999`, but it must be a whole number of at least 20 (MiB, the large segment); write max_split_size_mb:128, or leave it out",
        ),
        (
            "max_split_size_mb::128",
            "`:` stands where `,` should; settings are written key:value,key:value",
        ),
        (
            "max_split_size_mb,128",
            "`,` stands where `:` should; settings are written key:value,key:value",
        ),
        (
            "max_split_size_mb:128;expandable_segments:True",
            "`:` stands where `,` should; settings are written key:value,key:value",
        ),
        (
            "garbage_collection_threshold:0",
            "garbage_collection_threshold is `0`, but it must be between 0 and 1, both excluded; write garbage_collection_threshold:0.8, or leave it out",
        ),
        (
            "garbage_collection_threshold:1",
            "garbage_collection_threshold is `1`, but it must be between 0 and 1, both excluded; write garbage_collection_threshold:0.8, or leave it out",
        ),
        (
            "garbage_collection_threshold:nan",
            "garbage_collection_threshold is `nan`, but it must be between 0 and 1, both excluded; write garbage_collection_threshold:0.8, or leave it out",
        ),
        (
            "roundup_power2_divisions:3",
            "roundup_power2_divisions is `3`, but it must be a power of two, or a list [MB:STEPS,...,>:STEPS] of powers of two, where 0 STEPS are off; write roundup_power2_divisions:[256:1,512:2,1024:4,>:8], or leave it out",
        ),
        (
            "roundup_power2_divisions:0",
            "roundup_power2_divisions is `0`, but it must be a power of two, or a list [MB:STEPS,...,>:STEPS] of powers of two, where 0 STEPS are off; write roundup_power2_divisions:[256:1,512:2,1024:4,>:8], or leave it out",
        ),
        (
            "roundup_power2_divisions:[300:2]",
            "roundup_power2_divisions is `300:2`, but it must be a power of two, or a list [MB:STEPS,...,>:STEPS] of powers of two, where 0 STEPS are off; write roundup_power2_divisions:[256:1,512:2,1024:4,>:8], or leave it out",
        ),
        (
            "roundup_power2_divisions:[256:1,512:2",
            "`[256:1,512:2` stands where `]` should; settings are written key:value,key:value",
        ),
        (
            "large_segment_size_mb:10",
            "large_segment_size_mb is `10`, but it must be a whole number above 10 (MiB); write large_segment_size_mb:12, or leave it out",
        ),
        (
            "per_process_memory_fraction:1.5",
            "per_process_memory_fraction is `1.5`, but it must be from 0 to 1; write per_process_memory_fraction:0.8, or leave it out",
        ),
        (
            "backend:foo",
            "backend is `foo`, but it must be native or cudaMallocAsync; write backend:native, or leave it out",
        ),
        (
            "pinned_num_register_threads:7",
            "pinned_num_register_threads is `7`, but it must be a power of two, 128 at most; write pinned_num_register_threads:8, or leave it out",
        ),
        (
            "pinned_num_register_threads:512",
            "pinned_num_register_threads is `512`, but it must be a power of two, 128 at most; write pinned_num_register_threads:8, or leave it out",
        ),
        (
            "pinned_reserve_segment_size_mb:0",
            "pinned_reserve_segment_size_mb is `0`, but it must be a whole number above 0; write pinned_reserve_segment_size_mb:8, or leave it out",
        ),
    ] {
        let error = text.parse::<PyTorchSettings>().unwrap_err();
        assert_eq!(error.to_string(), message, "{text}");
    }
}

#[test]
fn keys_have_a_release() {
    let error = PyTorchSettings::read("large_segment_size_mb:12", Some((2, 4))).unwrap_err();
    let text =
        "large_segment_size_mb needs torch 2.11, this is 2.4; leave it out or use a newer torch";
    assert_eq!(error.to_string(), text);
    assert!(PyTorchSettings::read("expandable_segments:True", Some((2, 1))).is_ok());
    assert!(PyTorchSettings::read("expandable_segments:True", Some((2, 0))).is_err());
}

#[test]
fn timing_and_host_settings_are_listed() {
    let text = "release_lock_on_hipmalloc:True,pinned_num_register_threads:8,expandable_segments_reserve:40G,\
                expandable_segments_reserve_by_class:[a:0.5,b:40G],expandable_segments:True";
    let settings = read(text);
    assert!(settings.config.expandable_segments);
    assert_eq!(
        settings.without_effect,
        [
            "release_lock_on_cudamalloc:True",
            "pinned_num_register_threads:8",
            "expandable_segments_reserve:40G",
            "expandable_segments_reserve_by_class:[a:0.5,b:40G]",
        ]
    );
    assert_eq!(settings.line().unwrap(), "expandable_segments:True");
}

#[test]
fn what_may_surprise_is_remarked() {
    for (text, remark) in [
        ("max_split_size_mb:128MB", "torch reads 128 of max_split_size_mb:128MB and drops `MB`"),
        ("max_split_size_mb:-1", "torch reads max_split_size_mb:-1 as no limit at all"),
        (
            "backend:cudaMallocAsync,max_split_size_mb:64",
            "backend:cudaMallocAsync ignores the settings of the caching allocator",
        ),
    ] {
        assert_eq!(read(text).remarks, [remark]);
    }
    assert!(read("backend:cudaMallocAsync").remarks.is_empty());
}

#[test]
fn two_variables_that_differ_are_flagged() {
    let read = |a, b| PyTorchSettings::from_environment(a, b, None).unwrap();
    let (one, two) = (Some("max_split_size_mb:64"), Some("max_split_size_mb:32"));
    let both = read(one, two);
    assert_eq!(both.config.max_split_size, Some(Bytes::mib(64)));
    assert!(both.remarks[0].contains("both set"), "{:?}", both.remarks);
    assert!(read(one, Some("max_split_size_mb: 64")).remarks.is_empty());
    assert_eq!(read(None, two).config.max_split_size, Some(Bytes::mib(32)));
    assert_eq!(read(None, None), PyTorchSettings::default());
}

#[test]
fn the_fraction_becomes_a_limit() {
    let limit = |text| read(text).config_for(Bytes::gib(80)).memory_limit;
    assert_eq!(limit("per_process_memory_fraction:0.5"), Some(Bytes::gib(40)));
    assert_eq!(limit("per_process_memory_fraction:1.0"), None);
    assert_eq!(limit(""), None);
}

#[test]
fn one_setting_at_a_time() {
    let mut settings = PyTorchSettings::default();
    for change in [
        "expandable_segments=true",
        "max_split_size_mb=128",
        "max_split_size_mb = 256",
        "garbage_collection_threshold=0.6",
        "roundup_power2_divisions=[256:1,>:4]",
        "release_lock_on_cudamalloc=true",
        "release_lock_on_cudamalloc=false",
    ] {
        settings.set(change).unwrap();
    }
    assert_eq!(
        settings.line().unwrap(),
        "expandable_segments:True,garbage_collection_threshold:0.6,max_split_size_mb:256,\
         roundup_power2_divisions:[256:1,512:4,>:4]"
    );
    assert_eq!(settings.without_effect, ["release_lock_on_cudamalloc:False"]);
    let before = settings.clone();
    for (wrong, message) in [
        (
            "max_split_size_mb=8",
            "max_split_size_mb is `8`, but it must be a whole number of at least 20",
        ),
        (
            "large_segment_size_mb=1000",
            "max_split_size_mb is `256`, but it must be a whole number of at least 1000",
        ),
        ("max_split_size_mb", "max_split_size_mb has no value"),
        ("max_split_size_mb=1,2", "`,` stands where"),
        ("max_split=1", "did you mean max_split_size_mb?"),
    ] {
        let error = settings.set(wrong).unwrap_err().to_string();
        assert!(error.contains(message), "{wrong}: {error}");
        assert_eq!(settings, before, "a refused change changes nothing");
    }
}

#[test]
fn what_no_text_can_say_is_named() {
    let mut settings = PyTorchSettings::default();
    settings.config.max_split_size = Some(Bytes::new((30 << 20) + 512));
    let error = settings.line().unwrap_err().to_string();
    assert!(error.starts_with("max_split_size_mb is 30.00 MiB, which no text"), "{error}");
    settings.config.max_split_size = Some(Bytes::mib(8));
    assert!(settings.line().is_err());
    settings.config.max_split_size = None;
    settings.config.roundup_power2_divisions = RoundupDivisions::uniform(3);
    assert!(settings.line().is_err());
}

fn any_settings() -> impl Strategy<Value = PyTorchSettings> {
    let steps = prop::sample::select(vec![0u32, 0, 1, 2, 4, 8]);
    let divisions = prop_oneof![
        Just([0u32; 16]),
        steps.clone().prop_map(|n| [n; 16]),
        prop::array::uniform16(steps.clone()),
        // Few runs, as people write them.
        (steps.clone(), steps.clone(), steps, 0..16usize, 0..16usize).prop_map(
            |(a, b, c, i, j)| {
                std::array::from_fn(|k| {
                    if k < i.min(j) {
                        a
                    } else if k < i.max(j) {
                        b
                    } else {
                        c
                    }
                })
            }
        ),
    ];
    let large = prop_oneof![3 => Just(20u64), 1 => 11..100u64];
    (
        large,
        prop::option::of(0..300u64),
        prop::option::of(0..100u64),
        prop::option::of(0.001..0.999f64),
        prop::option::of(0.0..1.0f64),
        divisions,
        any::<[bool; 3]>(),
    )
        .prop_map(|(large, split, rounding, threshold, fraction, divisions, flags)| {
            let mut s = PyTorchSettings::default();
            s.config.large_segment = Bytes::mib(large);
            s.config.max_split_size = split.map(|n| Bytes::mib(large + n));
            s.non_split =
                rounding.filter(|n| *n > 0 && split.is_some()).map(|n| Bytes::mib(large + n));
            s.config.garbage_collection_threshold = threshold;
            s.memory_fraction = fraction;
            s.config.roundup_power2_divisions = RoundupDivisions(divisions);
            [s.config.expandable_segments, s.throw_on_oom, _] = flags;
            s.finish();
            s
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_written_line_reads_back(settings in any_settings()) {
        let line = settings.line().unwrap();
        for release in [None, Some((2, 8))] {
            // Old releases lack keys, not the way divisions are written.
            match PyTorchSettings::read(&line, release) {
                Ok(again) => {
                    prop_assert_eq!(&again.config, &settings.config, "{}", line);
                    prop_assert_eq!(again.memory_fraction, settings.memory_fraction);
                    prop_assert_eq!(again.throw_on_oom, settings.throw_on_oom);
                    prop_assert_eq!(again.line().unwrap(), line.clone());
                }
                Err(SettingError::TooNew { .. }) => prop_assert!(release.is_some()),
                Err(error) => return Err(TestCaseError::fail(format!("{line}: {error}"))),
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[a-z_]{0,3}[:,\\[\\]> 0-9a-zA-Z_.=-]{0,40}") {
        fuzz_settings(text.as_bytes());
    }
}

/// About a second of mutated lines.
#[test]
fn fuzz_for_a_moment() {
    let seeds = [
        "max_split_size_mb:128,expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "backend:cudaMallocAsync,garbage_collection_threshold:0.8,large_segment_size_mb:12",
        "per_process_memory_fraction:0.5,expandable_segments_reserve_by_class:[a:0.5,b:40G],max_non_split_rounding_mb:30",
    ];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |n: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    for _ in 0..1_500 {
        let mut text = seeds[next(seeds.len())].as_bytes().to_vec();
        for _ in 0..=next(4) {
            let at = next(text.len());
            match next(3) {
                0 => drop(text.remove(at)),
                1 => text.insert(at, b",:[]>= 0123456789TFtrue_\xff"[next(25)]),
                _ => {
                    let end = at + next(text.len() - at);
                    let piece = text[at..end].to_vec();
                    text.extend(piece);
                }
            }
        }
        fuzz_settings(&text);
    }
}
