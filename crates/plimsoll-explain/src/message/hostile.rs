//! Logs of any content: no panic, bounded memory, the same answer however the bytes are cut into pieces.

use super::fuzz::fuzz_log;
use super::{Reader, messages};
use proptest::prelude::*;

/// Literals and fragments that lead into every reader.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let triggers: Vec<&'static str> = messages().map(|p| p.trigger).collect();
    let befores: Vec<&'static str> =
        messages().flat_map(|p| p.fields.iter().flat_map(|f| [f.before, f.after])).collect();
    let numbers = [
        "0",
        "1.5 GiB",
        "20.00 MiB",
        "99999999999999999999 TiB",
        "-3",
        "0.9",
        "1,024",
        "MiB",
        "/",
        "%",
        "[",
        "]",
        "\"",
        "=",
        "\n",
        "\r",
        "\u{1b}[0m",
        "[rank1]: ",
        "GPU 0",
        "Process 7 has 3 GiB memory in use. ",
        "File \"a.py\", line 3, in f\n",
        "é",
    ];
    prop_oneof![
        3 => prop::sample::select(triggers).prop_map(|s| s.as_bytes().to_vec()),
        3 => prop::sample::select(befores).prop_map(|s| s.as_bytes().to_vec()),
        4 => prop::sample::select(numbers.to_vec()).prop_map(|s| s.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nothing_panics(fragments in prop::collection::vec(fragment(), 0..40)) {
        fuzz_log(&fragments.concat());
    }

    #[test]
    fn pieces_do_not_matter(
        fragments in prop::collection::vec(fragment(), 0..30),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let bytes = fragments.concat();
        let whole = {
            let mut reader = Reader::new();
            reader.feed(&bytes);
            format!("{:?}", reader.finish())
        };
        let mut places: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
        places.sort_unstable();
        let mut reader = Reader::new();
        let mut from = 0;
        for place in places {
            reader.feed(&bytes[from..place]);
            from = place;
        }
        reader.feed(&bytes[from..]);
        prop_assert_eq!(format!("{:?}", reader.finish()), whole);
    }
}

#[test]
fn memory_is_bounded_by_caps_and_not_by_the_log() {
    let mut reader = Reader::new();
    for n in 0..20_000u32 {
        let line = format!(
            "[rank{}]: CUDA out of memory. Tried to allocate {n}.00 MiB (GPU {}; 8.00 GiB total capacity; 1.00 GiB already allocated; 1.00 GiB free; 2.00 GiB reserved in total by PyTorch)\n(W{n} pid={n}) MA {n} GB Max_MA 1 GB CA 1 GB Max_CA 1 GB\n",
            n % 9000,
            n % 300
        );
        reader.feed(line.as_bytes());
    }
    let log = reader.finish();
    assert_eq!(log.failure_prints, 20_000);
    assert!(log.failures.len() <= 256 && log.groups.len() <= 256);
    assert!(log.usage.len() <= 1024 && log.series.len() <= 1024);
}
