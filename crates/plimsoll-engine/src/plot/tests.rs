//! Pictures are checked by structure: well-formed, finite, inside the frame, no text over text.

use plimsoll_timeline::{
    Category, PhaseKind, PyTorchConfig, ReplayOptions, Timeline, TimelineBuilder, replay_with,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

use super::svg::{Area, text_width};
use super::*;

fn training(layers: usize, micro_batches: u32) -> Timeline {
    let mut t = TimelineBuilder::new();
    let origin = t.origin("layers", "x");
    t.phase(PhaseKind::Load, 0);
    for _ in 0..layers {
        t.alloc(Bytes::mib(400), Category::Parameters, origin);
        t.alloc(Bytes::mib(800), Category::OptimizerStates, origin);
    }
    for _ in 0..micro_batches {
        t.phase(PhaseKind::Forward, 0);
        let saved: Vec<_> =
            (0..layers).map(|_| t.alloc(Bytes::mib(300), Category::Activations, origin)).collect();
        t.phase(PhaseKind::Loss, 0);
        let logits = t.alloc(Bytes::mib(2000), Category::LogitsAndLoss, origin);
        t.phase(PhaseKind::Backward, 0);
        t.free(logits);
        saved.into_iter().rev().for_each(|id| t.free(id));
    }
    t.finish()
}

fn picture(timeline: &Timeline, capacity: Option<Bytes>) -> PlotData {
    let options = ReplayOptions { points: 200, origins: 4 };
    let footprint = replay_with(timeline, &PyTorchConfig::default(), &options);
    PlotData {
        title: "llama-3.1-8b: full fine-tuning".to_owned(),
        subtitle: "batch 4, 4096 tokens".to_owned(),
        capacity,
        machine: "A100 80 GB".to_owned(),
        outside: Bytes::mib(620),
        ..PlotData::from_footprint(&footprint)
    }
}

/// The box of a text element, by the same estimate that lays it out.
fn text_box(node: roxmltree::Node<'_, '_>) -> Area {
    let class = node.attribute("class").unwrap_or_default();
    let number = |name| node.attribute(name).unwrap().parse::<f64>().unwrap();
    let size = match class {
        "title" => 18.0,
        "sub" => 13.0,
        c if c.contains("small") => 11.0,
        _ => 12.0,
    };
    let width = text_width(node.text().unwrap_or_default(), size);
    let x = match class {
        c if c.contains("end") => number("x") - width,
        c if c.contains("mid") => number("x") - width / 2.0,
        _ => number("x"),
    };
    Area { x, y: number("y") - size * 0.8, width, height: size }
}

/// Parses a picture and checks what holds for every one. Returns its texts.
fn check(svg: &str) -> Vec<String> {
    for word in ["NaN", "inf", "\"-\"", "<script"] {
        assert!(!svg.contains(word), "{word} in {svg}");
    }
    let document = roxmltree::Document::parse(svg).unwrap();
    let frame: Vec<f64> = (document.root_element().attribute("viewBox").unwrap())
        .split(' ')
        .map(|n| n.parse().unwrap())
        .collect();
    let frame = Area { x: frame[0], y: frame[1], width: frame[2], height: frame[3] };
    let mut boxes: Vec<(Area, &str)> = Vec::new();
    for node in document.descendants().filter(|n| n.is_element()) {
        for attribute in ["x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "width", "height"] {
            if let Some(value) = node.attribute(attribute) {
                let value: f64 = value.parse().unwrap();
                assert!((0.0..=frame.width.max(frame.height)).contains(&value), "{node:?}");
            }
        }
        if node.has_tag_name("text") {
            let text = node.text().unwrap_or_default();
            let place = text_box(node);
            assert!(frame.holds(&place), "{text:?} leaves the picture: {place:?}");
            for (other, words) in &boxes {
                assert!(!place.overlaps(other), "{text:?} covers {words:?}");
            }
            if !text.is_empty() {
                boxes.push((place, text));
            }
        }
    }
    boxes.into_iter().map(|(_, text)| text.to_owned()).collect()
}

#[test]
fn a_step_that_fits() {
    let data = picture(&training(24, 1), Some(Bytes::gib(60)));
    let svg = figure(&data);
    let texts = check(&svg);
    for expected in [
        "llama-3.1-8b: full fine-tuning",
        "load line: 60.00 GiB usable on A100 80 GB",
        "peak: 37.71 GiB in use",
        "in loss, at event 72",
        "backward",
        "optimizer states",
        "free",
    ] {
        assert!(texts.iter().any(|t| t == expected), "{expected:?} is not in {texts:?}");
    }
    assert!(svg.len() < 40_000, "{} bytes", svg.len());
    assert!(check(&peak_bar(&data)).iter().any(|t| t.contains("62.9 % of 60.00 GiB")));
    assert_eq!(svg, figure(&data), "the same data give the same picture");
}

#[test]
fn a_step_that_does_not_fit() {
    let data = picture(&training(24, 1), Some(Bytes::gib(24)));
    let texts = check(&figure(&data));
    assert!(texts.iter().any(|t| t.ends_with("more than the 24.00 GiB usable")), "{texts:?}");
}

#[test]
fn pictures_at_the_edges() {
    check(&figure(&PlotData::default()));
    check(&peak_bar(&PlotData::default()));
    for micro_batches in [1, 8, 100] {
        for capacity in [None, Some(Bytes::new(1)), Some(Bytes::mib(620)), Some(Bytes::gib(5000))] {
            let data = picture(&training(3, micro_batches), capacity);
            check(&figure(&data));
            check(&peak_bar(&data));
        }
    }
}

#[test]
fn hostile_words_and_sizes_stay_inside() {
    let mut data = picture(&training(3, 2), Some(Bytes::MAX));
    data.title = "</svg><script>alert(1)</script>".repeat(40);
    data.subtitle = "\u{0}\u{1f}&&&\n".repeat(90);
    data.machine = "\"".repeat(500);
    data.outside = Bytes::MAX;
    data.phases.iter_mut().for_each(|p| p.label = "<x>".repeat(50));
    check(&figure(&data));
    check(&peak_bar(&data));
}

#[cfg(feature = "png")]
#[test]
fn pixels_hold_text_without_any_installed_font() {
    let data = picture(&training(8, 1), Some(Bytes::gib(60)));
    let with = png(&figure(&data), 1.0).unwrap();
    assert!(with.starts_with(b"\x89PNG"));
    let without = png(&figure(&PlotData { title: String::new(), ..data.clone() }), 1.0).unwrap();
    assert_ne!(with, without, "the title leaves a trace");
    assert!(matches!(png(&figure(&data), 1e9), Err(RenderError::Size { .. })));
    assert!(matches!(png(&figure(&data), f32::NAN), Err(RenderError::Size { .. })));
    assert!(matches!(png("<svg", 1.0), Err(RenderError::Svg(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_curve_makes_a_picture(
        states in prop::collection::vec((0..3_000u32, 0..1u64 << 42, 0..12usize), 0..60),
        phases in prop::collection::vec((0..3_000u32, "[a-z<&]{0,20}"), 0..40),
        capacity in prop::option::of(0..1u64 << 43),
        events in 0..3_000u32,
        at in 0..3_000u32,
    ) {
        let mut states = states;
        states.sort();
        let mut by_category = [Bytes::ZERO; CATEGORIES];
        let points: Vec<_> = (states.iter())
            .map(|(event, bytes, category)| {
                by_category[*category] = Bytes::new(*bytes);
                PlotPoint { event: *event, by_category, reserved: by_category.iter().sum() }
            })
            .collect();
        let peak = points.last().map(|p| PlotPeak {
            event: at,
            phase: "backward".to_owned(),
            by_category: p.by_category,
            reserved: p.reserved,
            reserved_peak: p.reserved,
        });
        let phases = (phases.into_iter())
            .map(|(first_event, label)| PlotPhase { label, first_event })
            .collect();
        let capacity = capacity.map(Bytes::new);
        let data = PlotData { points, phases, capacity, events, peak, ..PlotData::default() };
        check(&figure(&data));
        check(&peak_bar(&data));
    }
}
