//! One body per parser for fuzzers: any bytes may come in, no panic and no large allocation may come of it. The
//! `fuzz/` folder of the repository calls these from cargo-fuzz; the tests below run them for a second over
//! mutated valid files.

use std::hint::black_box;
use std::io::Cursor;

use crate::snapshot::Snapshot;
use crate::{
    compressed, gguf, hf_config, index, memory_stats, pickle, profiler, safetensors, snapshot,
    sniff, torch_checkpoint,
};

/// Reads the bytes as a safetensors file, as a prefix of one, and as a bare header.
pub fn fuzz_safetensors(data: &[u8]) {
    if let Ok(header) = safetensors::read(Cursor::new(data)) {
        // A whole file that reads must read the same from its prefix.
        let prefix = usize::try_from(header.data_offset).ok().and_then(|n| data.get(..n));
        let again = safetensors::parse_prefix(prefix.unwrap_or(data), Some(data.len() as u64));
        assert_eq!(again.as_ref(), Ok(&header));
        assert_eq!(header.data_offset + header.tensor_bytes().get(), data.len() as u64);
        black_box(header.elements());
    }
    let _ = black_box(safetensors::parse_prefix(data, None));
    let _ = black_box(safetensors::parse_header(data, None));
}

/// Reads the bytes as a GGUF file and as a prefix of one.
pub fn fuzz_gguf(data: &[u8]) {
    if let Ok(file) = gguf::read(Cursor::new(data)) {
        for tensor in &file.tensors {
            let end = tensor.offset.checked_add(tensor.bytes.get());
            assert!(end.is_some_and(|end| end <= data.len() as u64 || tensor.bytes.is_zero()));
        }
        black_box((
            file.arch(),
            file.u64("block_count"),
            file.per_layer("attention.head_count", 8),
        ));
        black_box((file.elements(), gguf::join(vec![file]).is_ok()));
    }
    let _ = black_box(gguf::read_prefix(data, None));
    let _ = black_box(gguf::read_prefix(data, Some(u64::MAX)));
}

/// Reads the bytes as a checkpoint.
pub fn fuzz_torch_checkpoint(data: &[u8]) {
    if let Ok(checkpoint) = torch_checkpoint::read(Cursor::new(data)) {
        black_box(checkpoint.storage_bytes());
        for tensor in &checkpoint.tensors {
            assert!(tensor.storage.is_none_or(|id| checkpoint.storage(id).is_some()));
        }
    }
}

/// Reads the bytes as a pickle and searches it for tensors.
pub fn fuzz_pickle(data: &[u8]) {
    if let Ok(graph) = pickle::load(&mut pickle::Input::new(data, 0)) {
        assert!(graph.len() <= data.len());
        let _ = black_box(torch_checkpoint::fuzz_find(&graph));
    }
}

/// Reads the bytes as JSON: a configuration and an index.
pub fn fuzz_json(data: &[u8]) {
    if let Ok(map) = hf_config::read_json_object("config.json", data) {
        black_box(map.len());
    }
    if let Ok(index) = index::parse(data) {
        assert!(index.files().iter().all(|f| !f.starts_with('/') && !f.contains("..")));
    }
}

/// Reads the bytes as a memory snapshot; every id of one that reads lies in its table.
pub fn fuzz_snapshot(data: &[u8]) {
    if let Ok(s) = snapshot::read(data) {
        check_ids(&s);
        // A whole file that reads also reads as far as any prefix goes.
        if s.cut_at.is_none()
            && let Ok(part) = snapshot::read(&data[..data.len() / 2])
        {
            check_ids(&part);
        }
    }
}

fn check_ids(s: &Snapshot) {
    let stack = |id: snapshot::StackId| {
        assert!((id.0 as usize) < s.stacks.len());
        assert!(s.stacks.get(id).iter().all(|f| (f.0 as usize) < s.frames.len()));
    };
    let name = |id: snapshot::NameId| assert!((id.0 as usize) < s.names.len());
    s.frames.iter().for_each(|f| {
        name(f.file);
        name(f.function);
    });
    for segment in s.segments.iter().chain(&s.host_segments) {
        assert!(segment.blocks.start <= segment.blocks.end);
        assert!(segment.blocks.end as usize <= s.blocks.len());
        assert!((segment.stream.0 as usize) < s.streams.len());
        assert!((segment.pool.0 as usize) < s.pools.len());
        stack(segment.stack);
    }
    s.blocks.iter().for_each(|b| stack(b.stack));
    for event in s.traces.iter().chain(&s.host_traces).flat_map(|t| &t.events) {
        assert!((event.stream.0 as usize) < s.streams.len());
        assert!((event.pool.0 as usize) < s.pools.len());
        let extra = &s.extras[event.extra.0 as usize];
        extra.forward_frames.iter().copied().for_each(name);
        extra.action.into_iter().for_each(name);
        stack(event.stack);
    }
    s.annotations.iter().for_each(|a| name(a.name));
}

/// Unpacks the bytes, a few megabytes at most.
pub fn fuzz_compressed(data: &[u8]) {
    use std::io::Read;
    if let Ok(reader) = compressed::open(data) {
        let plain = reader.compressed_bytes().is_none();
        let mut out = Vec::new();
        if reader.take(4 << 20).read_to_end(&mut out).is_ok() && plain {
            assert_eq!(out, data);
        }
    }
}

/// Reads the bytes as a file of the profiler.
pub fn fuzz_profiler(data: &[u8]) {
    match profiler::read(data) {
        Ok(profiler::Profile::Trace(trace)) => {
            assert!(trace.events.is_sorted_by_key(|e| e.time_ns));
            assert!(trace.events.iter().filter_map(|e| e.op).all(|op| op.0 < u32::MAX));
        }
        Ok(profiler::Profile::Curve(curve)) => assert_eq!(curve.times_us.len(), curve.bytes.len()),
        other => drop(black_box(other)),
    }
}

/// Reads the bytes as allocator statistics.
pub fn fuzz_memory_stats(data: &[u8]) {
    if let Ok(stats) = memory_stats::parse(data) {
        black_box(stats.other.len());
    }
    black_box(memory_stats::is_memory_stats(data));
}

/// Takes the bytes as names of files, one a line.
pub fn fuzz_names(data: &[u8]) {
    black_box(sniff::file_kind(data));
    let text = String::from_utf8_lossy(data);
    let names: Vec<&str> = text.lines().collect();
    black_box(hf_config::choose_files(&names));
    for name in names {
        if let Some(split) = gguf::SplitName::parse(name) {
            assert_eq!(split.sibling(split.part), name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    /// Counts what this thread holds, and the most it held.
    struct Counting;

    thread_local! {
        static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
    }

    fn count(bytes: isize) {
        // During a thread's end its counter is gone; nothing is measured then.
        let _ = HELD.try_with(|held| {
            let (now, most) = held.get();
            held.set((now + bytes, most.max(now + bytes)));
        });
    }

    #[expect(unsafe_code, reason = "an allocator that counts can only be written so")]
    // SAFETY: every call goes to the system allocator unchanged.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size() as isize);
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            count(-(layout.size() as isize));
            unsafe { System.dealloc(pointer, layout) }
        }
    }

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    /// xorshift64*: the same mutations on every run.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
        }

        fn below(&mut self, n: usize) -> usize {
            if n == 0 { 0 } else { (self.next() % n as u64) as usize }
        }
    }

    fn mutate(data: &mut Vec<u8>, random: &mut Random) {
        const EXTREMES: [u64; 8] =
            [0, 1, 0x7f, 0xff, u32::MAX as u64, i64::MAX as u64, u64::MAX, 1 << 40];
        for _ in 0..=random.below(4) {
            let at = random.below(data.len());
            let length = random.below(9).min(data.len() - at);
            match random.below(8) {
                0 | 1 if !data.is_empty() => data[at] ^= 1 << random.below(8),
                2 if !data.is_empty() => data[at] = random.next() as u8,
                3 => {
                    let bytes = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
                    data[at..at + length.min(8)].copy_from_slice(&bytes[..length.min(8)]);
                }
                4 => drop(data.drain(at..at + length)),
                5 => {
                    let piece = data[at..at + length].to_vec();
                    let to = random.below(data.len() + 1);
                    data.splice(to..to, piece);
                }
                6 if random.below(8) == 0 => data.truncate(at),
                _ => {
                    let digits = [b'9', b'0', b'-', b'"', b'{', b'[', b']', b'}', b','];
                    if !data.is_empty() {
                        data[at] = digits[random.below(digits.len())];
                    }
                }
            }
        }
    }

    /// Runs `body` over mutations of `seeds`. A reader may hold a fixed amount and a multiple of its input.
    fn check(body: fn(&[u8]), seeds: &[Vec<u8>], rounds: usize) {
        check_within(body, seeds, rounds, 512 << 10);
    }

    fn check_within(body: fn(&[u8]), seeds: &[Vec<u8>], rounds: usize, fixed: usize) {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for seed in seeds {
            body(seed);
            for _ in 0..rounds / seeds.len() {
                let mut data = seed.clone();
                mutate(&mut data, &mut random);
                HELD.with(|held| held.set((0, 0)));
                body(&data);
                let most = HELD.with(Cell::get).1 as usize;
                let bound = fixed + 200 * data.len();
                assert!(most <= bound, "{most} bytes held for {} bytes of input", data.len());
            }
        }
    }

    fn file(name: &str) -> Vec<u8> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
        std::fs::read(path).unwrap()
    }

    #[test]
    fn safetensors_stands() {
        check(fuzz_safetensors, &[file("small.safetensors")], 3000);
    }

    #[test]
    fn gguf_stands() {
        check(fuzz_gguf, &[file("split-00001-of-00002.gguf"), file("small.gguf")], 1000);
    }

    #[test]
    fn torch_checkpoint_stands() {
        let seeds = ["state_dict.pt", "module.pt", "legacy.pt", "checkpoint_p5.pt"].map(file);
        check(fuzz_torch_checkpoint, &seeds, 2000);
    }

    #[test]
    fn pickle_stands() {
        // The pickles lie uncompressed in their archives: from the protocol opcode to the stop.
        let seeds =
            ["state_dict.pt", "module.pt", "checkpoint.pt", "checkpoint_p5.pt"].map(|name| {
                let file = file(name);
                let begin =
                    file.windows(2).position(|w| w == b"\x80\x02" || w == b"\x80\x05").unwrap();
                let end = file.windows(4).skip(begin).position(|w| w == b"PK\x07\x08").unwrap();
                file[begin..begin + end].to_vec()
            });
        check(fuzz_pickle, &seeds, 3000);
    }

    #[test]
    fn json_stands() {
        let config =
            br#"{"a": [1, -2.5e3, NaN, null, true, "\u00e9\"", {"b": Infinity}], "c": {}}"#;
        let deep = "[".repeat(300).into_bytes();
        check(fuzz_json, &[config.to_vec(), deep, file("model.safetensors.index.json")], 3000);
    }

    fn snapshots() -> Vec<Vec<u8>> {
        use crate::snapshot::{Dialect, WriteOptions, Writer, round_trip, write};
        let mut seeds = Vec::new();
        for writer in [Writer::V2_0, Writer::V2_8, Writer::V2_14] {
            for (dialect, share_frames) in
                [(Dialect::Python, true), (Dialect::TorchScript, true), (Dialect::Python, false)]
            {
                let mut bytes = Vec::new();
                let options = WriteOptions { dialect, share_frames };
                write(&round_trip::sample(writer), options, &mut bytes).unwrap();
                seeds.push(bytes);
            }
        }
        seeds
    }

    #[test]
    fn snapshot_stands() {
        check(fuzz_snapshot, &snapshots(), 3000);
    }

    #[test]
    fn compressed_stands() {
        use std::io::Write;
        let text = snapshots().concat();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let zstd = ruzstd::encoding::compress_to_vec(
            &text[..],
            ruzstd::encoding::CompressionLevel::Fastest,
        );
        let seeds = [gzip.finish().unwrap(), zstd, text[..2000].to_vec()];
        // A window of zstd may take 128 MiB, whatever the length of the file.
        check_within(fuzz_compressed, &seeds, 900, 300 << 20);
        check_within(fuzz_snapshot, &seeds, 300, 300 << 20);
    }

    #[test]
    fn profiler_stands() {
        let event = |name: &str, ts: u32| {
            format!(
                r#"{{"ph": "i", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 2, "ts": {ts}.5, "dur": 9,
                "args": {{"Bytes": -512, "Addr": 140000, "Total Allocated": 9, "Device Id": 0, "x": [1]}}}}"#
            )
        };
        let events = [event("aten::mm", 3), event("[memory]", 5), event("[OutOfMemory]", 8)];
        let trace =
            format!(r#"{{"baseTimeNanoseconds": 7, "traceEvents": [{}]}}"#, events.join(","));
        let raw = b"[[-1, 1, 32768, 0], [1796058132855235884, 2, 8192, 2]]";
        let curve = b"[[10, 20], [[0, 5, 0, 0, 0, 0, 0, 0, 0], [0, 5, 0, 7, 0, 0, 0, 0, 1]]]";
        check(fuzz_profiler, &[trace.into_bytes(), raw.to_vec(), curve.to_vec()], 3000);
    }

    #[test]
    fn memory_stats_stand() {
        let flat = br#"{"allocated_bytes.all.current": 5, "num_ooms": 0, "max_split_size": -1, "x.y.z": 2}"#;
        let nested =
            br#"{"allocated_bytes": {"all": {"current": 5}}, "oversize_segments": {"peak": 1}}"#;
        check(fuzz_memory_stats, &[flat.to_vec(), nested.to_vec()], 3000);
    }

    #[test]
    fn names_stand() {
        let names = b"config.json\nm-00001-of-00003.gguf\nm-00002-of-00003.gguf\nmodel.safetensors\nx.bin\n";
        check(fuzz_names, &[names.to_vec()], 3000);
    }

    /// References that repeat must not multiply: a list of lists of lists, each ten times the one before.
    #[test]
    fn repeated_references_do_not_multiply() {
        let mut bomb = b"\x80\x02]q\x00".to_vec();
        for n in 0..100u8 {
            bomb.extend_from_slice(&[b']', b'q', n + 1, b'(']);
            bomb.extend([b'h', n].repeat(10));
            bomb.push(b'e');
        }
        bomb.push(b'.');
        fuzz_pickle(&bomb);
    }
}
