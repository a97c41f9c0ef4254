//! Tests of data inputs: sizes by hand, every refusal, and laws over generated ones.

use super::*;
use proptest::prelude::*;

fn check(text: &str, canonical: &str, bytes: u64) {
    let input = parse_input(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert_eq!(input.to_string(), canonical, "{text}");
    assert_eq!(input.sample_bytes.get(), bytes, "{text}");
}

#[test]
fn sizes_are_the_products() {
    check("image:3840x2160x3:f32", "image:3840x2160x3:f32", 99_532_800);
    check("Image: 3840 x 2160 x 3 u8", "image:3840x2160x3:u8", 24_883_200);
    check("image:1920x1080:rgba8", "image:1920x1080:rgba8", 8_294_400);
    check("points:1000000x128", "points:1000000x128:f32", 512_000_000);
    check("points:1_000_000x3:f16", "points:1000000x3:f16", 6_000_000);
    check("tokens:100000x1024:f16", "tokens:100000x1024:f16", 204_800_000);
    check("tokens:4096", "tokens:4096:i64", 32_768);
    check("tokens:4096:i32", "tokens:4096:i32", 16_384);
    check("grid:1024x1024x1024x5:f64", "grid:1024x1024x1024x5:f64", 42_949_672_960);
    check("grid:7", "grid:7:f32", 28);
    check("grid:2x2:complex64", "grid:2x2:c64", 32);
}

#[test]
fn frames_follow_their_format() {
    check("frame:7680x4320:rgba16f*3", "frame:7680x4320:rgba16f*3", 7680 * 4320 * 8 * 3);
    for text in [
        "frame:7680x4320 rgba16f x 3 buffers",
        "frame:7680x4320 rgba16f x3 buffers",
        "frame:7680x4320:rgba16f x 3",
        "frame:7680x4320 rgba16f * 3",
        "frame:7680 x 4320 rgba16f x 3 Buffers",
        "FRAME:7680X4320:RGBA16F*3",
    ] {
        check(text, "frame:7680x4320:rgba16f*3", 7680 * 4320 * 8 * 3);
    }
    check("frame:1920x1080:rgba8", "frame:1920x1080:rgba8", 8_294_400);
    check("frame:1920x1080 rgba8", "frame:1920x1080:rgba8", 8_294_400);
    // 1080 lines are 270 blocks; 1 x 1 is one block.
    check("frame:1920x1080:bc1", "frame:1920x1080:bc1", 480 * 270 * 8);
    check("frame:1x1:bc7", "frame:1x1:bc7", 16);
    check("frame:5x5:bc3", "frame:5x5:bc3", 64);
    check("frame:1920x1080:nv12", "frame:1920x1080:nv12", 3_110_400);
    // Odd sizes round the chroma up: 9 + 2 x 2 x 2.
    check("frame:3x3:nv12", "frame:3x3:nv12", 17);
    check("frame:3x3:p010", "frame:3x3:p010", 34);
    check("frame:10x10:depth24s8", "frame:10x10:depth24s8", 400);
    check("frame:10x10:rgb10a2", "frame:10x10:rgb10a2", 400);
    check("frame:10x10:r32f", "frame:10x10:r32f", 400);
    check("frame:10x10:rgba32f", "frame:10x10:rgba32f", 1600);
}

#[test]
fn refusals_name_the_part_and_the_cure() {
    for (text, expected) in [
        ("", "`` is not a kind of data; write image, points"),
        ("video:3x3", "`video` is not a kind of data"),
        ("image", "size `` of the image is missing"),
        ("image:", "size `` of the image is missing"),
        ("image:3840x2160", "2 sizes do not make an image; write WIDTHxHEIGHTxCHANNELS"),
        ("image:3840x2160x3:rgba8", "3 sizes do not make an image"),
        ("image:3840xabcx3", "size `abc` of the image is not a whole number"),
        ("image:3840x0x3", "size `0` of the image is zero"),
        ("image:-1x2x3", "size `-1` of the image is not a whole number"),
        ("image:1x2.5x3", "size `2.5` of the image is not a whole number"),
        ("image:99999999999999999999x1x1", "is too large"),
        ("points:100", "1 sizes do not make points; write POINTSxFEATURES"),
        ("tokens:1x2x3", "3 sizes do not make tokens"),
        ("grid:1x1x1x1x1x1x1x1x1x1", "9 sizes do not make a grid; write 1 to 8 sizes"),
        ("image:1x1x1:f33", "`f33` is not an element type (f64, f32"),
        ("grid:1x1:q4_k", "`q4_k` is not an element type"),
        ("grid:1x1:rgba8", "`rgba8` is not an element type"),
        ("frame:1x1:f32", "`f32` is not a pixel format (r8, r16f"),
        ("frame:1x1", "`` is not a pixel format"),
        ("frame:1x1:rgba8*0", "`0` is not a number of buffers"),
        ("frame:1x1:rgba8*many", "`many` is not a number of buffers"),
        ("frame:1x1 rgba8 buffers", "not a number of buffers"),
        ("image:1x1x1:f32*2", "use --batch"),
        ("grid:4294967296x4294967296", "one sample is larger than 16 EiB"),
        ("frame:4294967295x4294967295:rgba32f", "one sample is larger than 16 EiB"),
        ("frame:100000x100000:rgba8*18446744073709551615", "one sample is larger than 16 EiB"),
    ] {
        let error = parse_input(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn batches_multiply_and_explain_themselves() {
    let frame = parse_input("frame:1920x1080:bc7*2").unwrap();
    let terms = frame.terms(3).unwrap();
    assert_eq!(
        terms[0].formula,
        "ceil(width / 4) x ceil(height / 4) x bytes per bc7 block x buffers"
    );
    assert_eq!(
        terms[0].inputs,
        [("width", 1920), ("height", 1080), ("bytes per bc7 block", 16), ("buffers", 2)]
            .map(|(name, value)| (name.to_owned(), value))
    );
    assert_eq!(terms[1].bytes, terms[0].bytes * 3);
    let image = parse_input("image:4x4x3:f32").unwrap();
    assert_eq!(image.terms(1).unwrap()[0].formula, "width x height x channels x bytes per f32");
    assert_eq!(image.elements(), 48);
    assert_eq!(image.batch_bytes(0), Err(InputError::EmptyBatch));
    let error = image.batch_bytes(u64::MAX).unwrap_err().to_string();
    assert_eq!(error, "the batch is larger than 16 EiB; check the sizes of `image:4x4x3:f32`");
}

#[test]
fn every_format_has_one_name() {
    for (i, format) in PixelFormat::ALL.iter().enumerate() {
        assert_eq!(PixelFormat::find(format.name()), Some(*format));
        for alias in format.aliases() {
            assert_eq!(PixelFormat::find(alias), Some(*format), "{alias}");
        }
        assert!(PixelFormat::ALL[..i].iter().all(|other| other.name() != format.name()));
        assert!(format.name().parse::<DType>().is_err(), "{}", format.name());
    }
}

/// The fuzz body: any bytes, no panic, and what is accepted reads back from its short form.
pub(super) fn fuzz_input(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(input) = parse_input(&text) {
        assert_eq!(parse_input(&input.to_string()).as_ref(), Ok(&input), "{text}");
        assert!(!input.sample_bytes.is_zero());
        if let Ok(terms) = input.terms(3) {
            assert_eq!(terms.len(), 2);
        }
    }
}

#[test]
fn fuzz_seeds() {
    for seed in [
        &b"image:3840x2160x3:f32"[..],
        b"frame:7680x4320 rgba16f x 3 buffers",
        b"\xff:\xff",
        b":",
        b"x",
        b"frame:x:x*",
        b"frame:buffers",
        b"frame:1x1:rgba8*1x",
        b"frame: x x buffer",
        b"tokens:_",
        b"grid:1__0",
        b"frame:1x1:bc1 x 2",
    ] {
        fuzz_input(seed);
    }
    fuzz_input(&[b"grid:".as_slice(), &b"1x".repeat(4000)].concat());
    fuzz_input(&[b"grid:".as_slice(), &[b'9'; 4000]].concat());
}

proptest! {
    #[test]
    fn any_text_is_answered(text in "\\PC{0,60}") {
        fuzz_input(text.as_bytes());
    }

    #[test]
    fn pieces_of_the_grammar_are_answered(
        text in "(image|frame|grid|tokens|points|Frame)?:?([0-9]{1,9}|x| |:|\\*|f32|rgba8|bc7|nv12|i64|buffers|buffer|\u{d7}){0,9}"
    ) {
        fuzz_input(text.as_bytes());
    }

    #[test]
    fn numbers_multiply(shape in prop::collection::vec(1u64..2000, 1..=5), batch in 1u64..100) {
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        let input = parse_input(&format!("grid:{}:bf16", sizes.join("x"))).unwrap();
        let elements: u64 = shape.iter().product();
        prop_assert_eq!(input.sample_bytes.get(), elements * 2);
        prop_assert_eq!(input.batch_bytes(batch).unwrap().get(), elements * 2 * batch);
    }

    #[test]
    fn frames_never_shrink_when_they_grow(
        format in prop::sample::select(PixelFormat::ALL), width in 1u64..9000, height in 1u64..9000,
    ) {
        let bytes = format.frame_bytes(width, height).unwrap();
        prop_assert!(format.frame_bytes(width + 1, height).unwrap() >= bytes);
        prop_assert!(format.frame_bytes(width, height + 1).unwrap() >= bytes);
        // A compressed frame holds at least its pixels: half a byte each, and at most one padded block more a row.
        if let Layout::Block(n) = format.layout() {
            prop_assert!(bytes * 16 >= width * height * n);
        }
    }
}
