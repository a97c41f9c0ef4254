//! Snapshots written by hand, opcode by opcode.

use super::*;

fn int(n: i64) -> Vec<u8> {
    match n {
        0..=255 => vec![b'K', n as u8],
        _ => [&[0x8a, 8][..], &n.to_le_bytes()].concat(),
    }
}

fn text(text: &str) -> Vec<u8> {
    [&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [b"](".to_vec(), items.concat(), b"e".to_vec()].concat()
}

fn dict(items: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let items = items.iter().map(|(key, v)| [text(key), v.clone()].concat());
    [b"}(".to_vec(), items.collect::<Vec<_>>().concat(), b"u".to_vec()].concat()
}

fn pickle(value: Vec<u8>) -> Vec<u8> {
    [b"\x80\x04".to_vec(), value, b".".to_vec()].concat()
}

fn frame(line: i64) -> Vec<u8> {
    dict(&[("name", text("forward")), ("filename", text("model.py")), ("line", int(line))])
}

fn event(action: &str, address: i64, size: i64) -> Vec<u8> {
    dict(&[
        ("action", text(action)),
        ("addr", int(address)),
        ("size", int(size)),
        ("stream", int(0)),
        ("time_us", int(1_700_000_000_000_000)),
        ("frames", list(&[frame(3), frame(7)])),
    ])
}

fn segment(address: i64) -> Vec<u8> {
    let block = |address, size, state| {
        let requested = int(size - 12);
        dict(&[
            ("state", text(state)),
            ("address", int(address)),
            ("size", int(size)),
            ("requested_size", requested),
        ])
    };
    dict(&[
        ("device", int(0)),
        ("address", int(address)),
        ("total_size", int(2 << 20)),
        ("allocated_size", int(512)),
        ("active_size", int(512)),
        ("stream", int(0)),
        ("segment_type", text("small")),
        (
            "blocks",
            list(&[
                block(address, 512, "active_allocated"),
                block(address + 512, (2 << 20) - 512, "inactive"),
            ]),
        ),
    ])
}

fn whole(segments: &[Vec<u8>], traces: &[Vec<u8>]) -> Vec<u8> {
    let traces: Vec<Vec<u8>> =
        traces.iter().map(|events| list(std::slice::from_ref(events))).collect();
    pickle(dict(&[("segments", list(segments)), ("device_traces", list(&traces))]))
}

fn check(bytes: &[u8]) -> Snapshot {
    read(bytes).unwrap()
}

const BASE: i64 = 0x7f00_0000_0000;

#[test]
fn reads_segments_blocks_and_events() {
    let events = [event("alloc", BASE, 500), event("oom", 4096, 1 << 40)].concat();
    let s = check(&whole(&[segment(BASE + (2 << 20)), segment(BASE)], &[events]));
    assert_eq!((s.segments.len(), s.blocks.len(), s.traces.len()), (2, 4, 1));
    // By address, whatever the file's order.
    assert_eq!(s.segments[0].address, BASE as u64);
    assert_eq!(s.segments[0].blocks, 2..4);
    assert_eq!(
        (s.segments[0].kind, s.blocks[2].state),
        (SegmentKind::Small, BlockState::Allocated)
    );
    let [alloc, oom] = s.traces[0].events[..] else { panic!() };
    assert_eq!((alloc.action, alloc.address, alloc.size), (Action::Alloc, BASE as u64, 500));
    assert_eq!((oom.action, oom.address, oom.size), (Action::OutOfMemory, 4096, 1 << 40));
    assert_eq!((alloc.stack, s.stacks.len(), s.frames.len()), (oom.stack, 2, 2));
    let lines: Vec<u32> =
        s.stacks.get(alloc.stack).iter().map(|f| s.frames[f.0 as usize].line).collect();
    assert_eq!(lines, [3, 7]);
    assert_eq!(s.writer, Writer::V2_2);
    assert_eq!(s.remarks, Vec::<String>::new());
}

/// Torch 2.0: no addresses on blocks, the owner in a history.
#[test]
fn sums_up_addresses_and_reads_the_owner_from_a_history() {
    let history = |line| {
        list(&[
            dict(&[("addr", int(BASE)), ("real_size", int(300)), ("frames", list(&[frame(line)]))]),
            dict(&[("addr", int(BASE)), ("real_size", int(200)), ("frames", list(&[frame(99)]))]),
        ])
    };
    let block = |size, line| {
        dict(&[
            ("size", int(size)),
            ("state", text("active_allocated")),
            ("history", history(line)),
        ])
    };
    let segment = dict(&[
        ("address", int(BASE)),
        ("total_size", int(1024)),
        ("blocks", list(&[block(512, 1), block(512, 2)])),
    ]);
    let s = check(&pickle(list(&[segment])));
    let addresses: Vec<u64> = s.blocks.iter().map(|b| b.address).collect();
    assert_eq!(addresses, [BASE as u64, BASE as u64 + 512]);
    assert_eq!(s.blocks[0].requested.get(), 300);
    assert_eq!(s.frames[s.stacks.get(s.blocks[1].stack)[0].0 as usize].line, 2);
    assert_eq!(s.writer, Writer::V2_0);
    assert!(s.remarks[0].starts_with("a bare list of segments"), "{:?}", s.remarks);
}

/// As CPython writes: memoized before it is filled, referenced afterwards, 1000 items a batch.
#[test]
fn follows_references_to_containers_that_were_filled_after_they_were_memoized() {
    // Memo 0: the root, 1: the traces, 2: the events, 3: an event, 4: its frames, 5: the frame.
    let first = [
        b"}\x94(".to_vec(),
        [text("action"), text("alloc"), text("addr"), int(BASE), text("size"), int(500)].concat(),
        [text("frames"), b"]\x94(}\x94(".to_vec()].concat(),
        [text("filename"), text("a.py"), text("name"), text("f"), text("line"), int(1)].concat(),
        // The frame, still on the stack, calls itself.
        b"uh\x05eu".to_vec(),
    ]
    .concat();
    let later = |n: i64| {
        let frames: &[u8] = if n % 2 == 0 { b"h\x04" } else { b"](h\x05h\x05e" };
        let frames = [text("frames"), frames.to_vec()].concat();
        let rest =
            [text("action"), text("free_requested"), text("addr"), int(n), text("size"), int(n)];
        [b"}(".to_vec(), frames, rest.concat(), b"u".to_vec()].concat()
    };
    let batch = |n: std::ops::Range<i64>| n.map(later).collect::<Vec<_>>().concat();
    let bytes = [
        b"\x80\x04}\x94".to_vec(),
        text("device_traces"),
        b"]\x94]\x94(".to_vec(),
        first,
        batch(1..1000),
        b"e(".to_vec(),
        batch(1000..2000),
        b"e".to_vec(),
        later(2000),
        b"aas.".to_vec(),
    ]
    .concat();
    let s = check(&bytes);
    assert_eq!(s.traces[0].events.len(), 2001);
    assert!(s.traces[0].events.iter().all(|e| e.stack == StackId(1)));
    assert!(s.traces[0].events[1..].iter().enumerate().all(|(n, e)| e.size == n as u64 + 1));
    assert_eq!((s.stacks.get(StackId(1)), s.frames.len()), (&[FrameId(0), FrameId(0)][..], 1));
}

/// As the pickler of C++ writes: memoized after it is filled, everything in one batch, pools as tuples.
#[test]
fn reads_what_the_pickler_of_torchscript_writes() {
    let event = |n: i64, memo: &[u8]| {
        let pool = [int(0), int(n), b"\x86".to_vec()].concat();
        let fields =
            [text("action"), text("alloc"), text("addr"), int(n), text("size"), int(n)].concat();
        [b"}(".to_vec(), fields, text("pool_id"), pool, b"u".to_vec(), memo.to_vec()].concat()
    };
    let events: Vec<Vec<u8>> = (0..3000i64).map(|n| event(n % 3, b"q\x00")).collect();
    let list = [b"](".to_vec(), events.concat(), b"eq\x01".to_vec()].concat();
    let bytes =
        [b"\x80\x02}(".to_vec(), text("device_traces"), b"](".to_vec(), list, b"eu.".to_vec()];
    let s = check(&bytes.concat());
    assert_eq!(s.traces[0].events.len(), 3000);
    assert_eq!(s.pools, [(0, 0), (0, 1), (0, 2)]);
    assert!(s.traces[0].has_pools);
    assert_eq!(s.writer, Writer::V2_12);
}

#[test]
fn reads_wide_integers_lists_as_pairs_and_no_limits() {
    let wide = [&[0x8a, 9][..], &u64::MAX.to_le_bytes(), &[0]].concat();
    let event = dict(&[
        ("pool_id", list(&[int(4), int(9)])),
        ("action", text("segment_alloc")),
        ("addr", wide.clone()),
        ("size", int(-5)),
        ("stream", int(-1)),
        ("novelty", int(1)),
    ]);
    let settings = dict(&[
        ("PYTORCH_CUDA_ALLOC_CONF", text("a:b")),
        ("max_split_size", wide),
        ("roundup_power2_divisions", dict(&[("1", int(4)), ("32768", int(8))])),
    ]);
    let s = check(&pickle(dict(&[
        ("allocator_settings", settings),
        ("device_traces", list(&[b"]".to_vec(), list(&[event])])),
    ])));
    assert_eq!(s.traces.len(), 2);
    let event = s.traces[1].events[0];
    assert_eq!((event.address, event.size, event.pool), (u64::MAX, 0, PoolId(1)));
    assert_eq!((s.pools[1], s.streams[1]), ((4, 9), u64::MAX));
    let settings = s.settings.unwrap();
    assert_eq!((settings.conf.as_str(), settings.max_split_size), ("a:b", None));
    assert_eq!(settings.roundup_power2_divisions.map(|d| (d[0], d[1], d[15])), Some((4, 0, 8)));
    assert_eq!(s.unknown, [UnknownKey { place: "event", key: "novelty".to_owned(), count: 1 }]);
    assert_eq!(s.remarks.len(), 2, "{:?}", s.remarks);
}

#[test]
fn keeps_actions_and_metadata_that_few_events_have() {
    let event = |action: &str, metadata: &str, context: &str| {
        dict(&[
            ("action", text(action)),
            ("addr", int(0)),
            ("size", int(0)),
            ("user_metadata", text(metadata)),
            ("compile_context", text(context)),
            ("forward_frames", list(&[text("a.py:1"), text("b.py:2")])),
        ])
    };
    let events =
        [event("annotate", "{}", "N/A"), event("workspace_snapshot", "", "region")].concat();
    let s = check(&whole(&[], &[events]));
    let extra = |n: usize| &s.extras[s.traces[0].events[n].extra.0 as usize];
    let name = |id: Option<NameId>| id.map(|id| s.names.get(id));
    assert_eq!(name(extra(0).action), Some("annotate"));
    assert_eq!((name(extra(0).user_metadata), extra(0).compile_context), (Some("{}"), None));
    assert_eq!((name(extra(1).action), extra(1).user_metadata), (Some("workspace_snapshot"), None));
    assert_eq!(name(extra(1).compile_context), Some("region"));
    assert_eq!(extra(1).forward_frames.len(), 2);
}

#[test]
fn says_why_a_dump_is_empty() {
    for (bytes, begin) in [
        (whole(&[], &[]), "the snapshot is empty"),
        (whole(&[segment(BASE)], &[]), "no events and no stacks"),
        (whole(&[segment(BASE)], &[event("alloc", BASE, 1)]), "one event only"),
    ] {
        let s = check(&bytes);
        assert!(s.remarks.iter().any(|r| r.starts_with(begin)), "{begin}: {:?}", s.remarks);
    }
}

#[test]
fn refuses_what_could_run_code_by_name() {
    for (program, message) in [
        (
            &b"cos\nsystem\n(X\x02\0\0\0lstR."[..],
            "GLOBAL at byte 2 asks for `os.system`, which could run code",
        ),
        (
            b"\x8c\x02os\x8c\x06system\x93.",
            "STACK_GLOBAL at byte 14 asks for `os.system`, which could run code",
        ),
        (b"}(K\x01K\x02R", "REDUCE at byte 8 could run code"),
        (b"\x82\x01", "EXT1 at byte 2 could run code"),
        (b"\x97", "NEXT_BUFFER at byte 2 is one that no snapshot needs"),
        (b"L1\n", "LONG at byte 2 belongs to pickle protocol 0 or 1"),
        (b"\xff", "byte at byte 2 (0xff) does not exist"),
    ] {
        let bytes = [b"\x80\x04", program].concat();
        let error = read(&bytes[..]).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn says_what_a_file_is_that_is_no_snapshot() {
    for (bytes, message) in [
        (&b""[..], "an empty file"),
        (b"(dp0\nS'segments'\n", "protocol 0 or 1"),
        (b"}q\x00X", "protocol 0 or 1"),
        (b"\x80\x07.", "protocol 7"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.", "a torch checkpoint"),
        (b"PK\x03\x04", "torch.save"),
        (b"{\"segments\": []}", "JSON"),
        (b"GGUF\x03\0\0\0", "model weights"),
        (b"hello", "but a file that begins with `hello`"),
        (b"\x80\x04K\x01.", "a pickle of a number"),
        (b"\x80\x04}X\x01\0\0\0aK\x01s.", "a pickle of data without `segments`"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(
            error.starts_with("this is not a memory snapshot but ") && error.contains(message),
            "{error}"
        );
    }
}

/// Every prefix of a file gives what is whole in it, or says that it is cut short.
#[test]
fn reads_a_cut_file_as_far_as_it_goes() {
    let events =
        [event("alloc", BASE, 500), event("free_requested", BASE, 500), event("alloc", BASE, 1)]
            .concat();
    let bytes = whole(&[segment(BASE), segment(BASE + (2 << 20))], &[events]);
    let mut counts = Vec::new();
    for end in 2..bytes.len() {
        match read(&bytes[..end]) {
            Ok(s) => {
                assert_eq!(s.cut_at, Some(end as u64));
                assert!(s.remarks[0].starts_with("the file is cut short"));
                assert_eq!(s.blocks.len(), 2 * s.segments.len());
                let events = s.traces.first().map_or(0, |t| t.events.len());
                assert!(s.traces.iter().flat_map(|t| &t.events).all(|e| e.stack == StackId(1)));
                counts.push((s.segments.len(), events));
            }
            Err(e) => assert!(matches!(e, FormatError::Truncated { .. }), "{e}"),
        }
    }
    counts.dedup();
    assert_eq!(counts, [(1, 0), (2, 0), (2, 1), (2, 2), (2, 3)]);
}

#[test]
fn refuses_cycles_and_changes_of_finished_containers() {
    for program in [
        &b"}\x94X\x01\0\0\0ah\0s."[..],
        b"]\x94(h\0e.",
        b"}\x94(h\0u.",
        b"K\x01K\x02a.",
        b"h\x05.",
        b"e.",
        b".",
    ] {
        let error = read(&[b"\x80\x04", program].concat()[..]).unwrap_err();
        assert!(matches!(error, FormatError::Pickle { .. }), "{error}");
    }
}

#[test]
fn leaves_padding_and_remarks_on_data_behind_the_end() {
    let bytes = whole(&[segment(BASE)], &[event("alloc", BASE, 500)]);
    let padded = [&bytes[..], &[0, 0]].concat();
    assert_eq!(check(&padded).remarks, check(&bytes).remarks);
    let two = [&bytes[..], &bytes[..]].concat();
    assert_eq!(
        check(&two).remarks.last().map(String::as_str),
        Some("data behind the end of the snapshot was not read")
    );
}

#[test]
fn reads_compressed_files_and_pages() {
    use std::io::Write;
    let bytes =
        whole(&[segment(BASE)], &[[event("alloc", BASE, 500), event("alloc", BASE, 1)].concat()]);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&bytes).unwrap();
    let gzip = gzip.finish().unwrap();
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let zstd = ruzstd::encoding::compress_to_vec(&bytes[..], level);
    let page =
        format!("<!DOCTYPE html>\n<script>[{{\"base64\": \"{}\"}}]", base64(&bytes)).into_bytes();
    for packed in [&gzip, &zstd, &page] {
        let s = check(packed);
        assert_eq!((s.segments.len(), s.traces[0].events.len(), s.cut_at), (1, 2, None));
    }
    // Half of a compressed file gives what is in that half.
    let half = check(&page[..page.len() - 300]);
    assert_eq!((half.segments.len(), half.cut_at.is_some()), (1, true));
    for (bytes, message) in [
        (&b"<html></html>"[..], "a web page without a snapshot in it"),
        (b"\xfd7zXZ\0", "an xz file"),
        (b"<p>\"base64\": \"UEsDBA==\"", "torch.save"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains(message), "{error}");
    }
}

fn base64(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0u32, |w, b| w << 8 | u32::from(*b)) << (8 * (3 - chunk.len()));
        for n in 0..=chunk.len() {
            text.push(char::from(digits[(word >> (18 - 6 * n) & 63) as usize]));
        }
    }
    text
}

/// A compressed file of a few kilobytes that asks for gigabytes.
#[test]
fn refuses_a_bomb() {
    let level = ruzstd::encoding::CompressionLevel::Fastest;
    let bomb = [&b"\x80\x04]("[..], &b"K\x01\x94".repeat(3 << 19)].concat();
    let packed = ruzstd::encoding::compress_to_vec(&bomb[..], level);
    assert!(packed.len() < 1 << 20);
    let error = read(&packed[..]).unwrap_err();
    assert!(matches!(error, FormatError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("compressed size"), "{error}");
}
