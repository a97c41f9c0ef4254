//! ONNX Runtime's own arena, event by event. Each file of `data/ort_arena` holds a random sequence of allocations,
//! frees, reservations and shrinks, and what the CPU arena of onnxruntime 1.32.0 answered: address, bytes in use,
//! bytes held, peak, regions, regions given back. Recorded 2026-11-30 through the C API (`CreateArenaCfgV2`,
//! `OrtAllocator::Alloc`, `Free`, `Reserve`, `GetStats`; shrinks by a run with
//! `memory.enable_memory_arena_shrinkage`); the program is `record.cpp` beside the files.

use plimsoll_timeline::{Allocator, Bfc, BfcBlock, BfcConfig, Growth};
use plimsoll_units::Bytes;

/// Settings of the first line as the arena understands them.
fn config(line: &str) -> BfcConfig {
    let mut config = BfcConfig::onnxruntime(line.contains("arena_extend_strategy=1"));
    for (key, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
        let size = Bytes::new(value.parse().unwrap());
        match key {
            "max_mem" => config.limit = Some(size).filter(|s| !s.is_zero()),
            "initial_chunk_size_bytes" => config.first_region = size,
            "initial_growth_chunk_size_bytes" => config.regrowth = Some(size),
            "max_dead_bytes_per_chunk" => config.max_dead_bytes = size,
            "max_power_of_two_extend_bytes" => config.growth = Growth::Doubling { cap: Some(size) },
            "arena_extend_strategy" => {}
            other => panic!("{other}"),
        }
    }
    config
}

/// One event and the answer.
struct Row<'a> {
    op: &'a str,
    n: u64,
    address: Option<u64>,
    answer: [u64; 5],
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let rows = text.lines().skip(1).map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |i: usize| words[i].parse().unwrap();
        Row {
            op: words[0],
            n: number(1),
            address: words[2].parse().ok(),
            answer: std::array::from_fn(|i| number(3 + i)),
        }
    });
    rows.collect()
}

fn check(name: &str, text: &str) {
    let rows = rows(text);
    // The driver's addresses: those of the allocations that made a region.
    let mut regions = 0;
    let mut addresses = Vec::new();
    for row in &rows {
        if row.answer[3] > regions {
            addresses.extend(row.address);
        }
        regions = row.answer[3];
    }
    let mut arena = Bfc::new(config(text.lines().next().unwrap())).with_region_addresses(addresses);
    let mut blocks: Vec<Option<BfcBlock>> = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let what = format!("{name}, event {i}: {} {}", row.op, row.n);
        match row.op {
            "a" => {
                let block = arena.allocate(Bytes::new(row.n), 0).ok();
                let address = block.as_ref().map(|b| arena.address(b));
                assert_eq!(address, row.address, "{what}");
                blocks.push(block);
            }
            "r" => blocks.push(arena.reserve(Bytes::new(row.n)).ok()),
            // The recording also frees what was refused.
            "f" => blocks[row.n as usize].take().into_iter().for_each(|b| arena.release(b)),
            "s" => arena.empty_cache(),
            other => panic!("{other}"),
        }
        let (usage, s) = (arena.usage(), arena.statistics());
        let held = arena.regions().len() as u64;
        let answer = [
            usage.allocated.get(),
            usage.reserved.get(),
            s.in_use_peak.get(),
            held,
            s.regions_released,
        ];
        assert_eq!(answer, row.answer, "{what}");
    }
}

macro_rules! recorded {
    ($($test:ident: $file:literal,)*) => {$(
        #[test]
        fn $test() {
            check($file, include_str!(concat!("data/ort_arena/", $file, ".txt")));
        }
    )*};
}

recorded! {
    with_its_defaults: "default",
    extending_as_requested: "same-as-requested",
    from_a_small_first_region: "small-start",
    from_a_large_first_region: "large-start",
    with_few_dead_bytes: "dead-bytes",
    with_few_dead_bytes_as_requested: "dead-bytes-same",
    with_capped_doubling: "capped-doubling",
    within_a_limit: "limit",
    within_a_limit_as_requested: "limit-same",
    from_a_size_that_is_no_multiple: "odd-start",
    shrinking: "shrink",
    shrinking_as_requested: "shrink-same",
}
