//! Laws of a footprint on random timelines, and the cases in which it differs from a plain sum.

use plimsoll_timeline::{
    Category, Exact, Footprint, PhaseKind, PyTorchConfig, ReplayOptions, TensorId, Timeline,
    TimelineBuilder, replay, replay_on, replay_with,
};
use plimsoll_units::Bytes;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Alloc(u64, usize, u8),
    Free(usize),
    Phase(bool),
    EmptyCache,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => (0..30 * MIB, 0..4usize, 0..6u8).prop_map(|(b, c, o)| Step::Alloc(b, c, o)),
        25 => any::<usize>().prop_map(Step::Free),
        2 => any::<bool>().prop_map(Step::Phase),
        1 => Just(Step::EmptyCache),
    ]
}

fn build(steps: &[Step]) -> Timeline {
    let mut t = TimelineBuilder::new();
    let mut live: Vec<TensorId> = Vec::new();
    for step in steps {
        match *step {
            Step::Alloc(bytes, category, origin) => {
                // A new id for every allocation: names are merged, ids are not.
                let origin = t.origin(&format!("layers.{}", origin / 2), &format!("op{origin}"));
                live.push(t.alloc(Bytes::new(bytes), Category::ALL[category], origin));
            }
            Step::Free(_) if live.is_empty() => {}
            Step::Free(n) => t.free(live.swap_remove(n % live.len())),
            Step::Phase(true) => t.phase(PhaseKind::Forward, 0),
            Step::Phase(false) => t.phase(PhaseKind::Backward, 0),
            Step::EmptyCache => t.empty_cache(),
        }
    }
    t.finish()
}

fn check(footprint: &Footprint, options: &ReplayOptions) {
    let peak = footprint.allocated_peak;
    assert!(footprint.requested_peak <= peak && peak <= footprint.reserved_peak);
    assert_eq!(footprint.at_peak.allocated, peak);
    let live = &footprint.live;
    let sum = |parts: &mut dyn Iterator<Item = Bytes>| parts.sum::<Bytes>();
    assert_eq!(sum(&mut live.by_category.iter().map(|c| c.1)), peak);
    assert_eq!(sum(&mut live.by_phase.iter().map(|c| c.1)), peak);
    assert_eq!(sum(&mut live.by_module.iter().map(|c| c.1)), peak);
    assert_eq!(sum(&mut live.by_origin.iter().map(|c| c.bytes)) + live.other_origins, peak);
    assert!(live.by_origin.len() <= options.origins);
    assert!(live.by_origin.is_sorted_by(|a, b| a.bytes >= b.bytes));
    assert!(live.by_module.is_sorted_by(|a, b| a.1 >= b.1));
    if live.other_origins.is_zero() {
        assert_eq!(live.by_origin.iter().map(|o| o.tensors).sum::<u32>(), live.tensors);
    }

    assert_eq!(sum(&mut footprint.end_by_category.iter().map(|c| c.1)), footprint.end.allocated);
    assert!(footprint.end.allocated <= peak);

    let series = &footprint.series;
    if options.points == 0 {
        assert!(series.is_empty());
        return;
    }
    assert!(series.len() <= options.points.max(2));
    assert!(series.is_sorted_by(|a, b| a.event < b.event));
    let highest = series.iter().map(|p| p.allocated).max().unwrap_or_default();
    assert_eq!(highest, peak, "the curve shows the peak exactly");
    let reserved = series.iter().map(|p| p.reserved).max().unwrap_or_default();
    assert_eq!(reserved, footprint.reserved_peak);
    for point in series {
        assert_eq!(point.allocated, point.by_category.iter().sum());
    }
}

proptest! {
    #[test]
    fn parts_add_up_and_the_curve_shows_the_peak(
        steps in prop::collection::vec(step(), 0..400),
        points in 0..300usize,
        origins in 0..8usize,
    ) {
        let timeline = build(&steps);
        let options = ReplayOptions { points, origins };
        let footprint = replay_with(&timeline, &PyTorchConfig::default(), &options);
        check(&footprint, &options);
        prop_assert_eq!(footprint.failure.as_ref(), None);
        prop_assert_eq!(&footprint, &replay_with(&timeline, &PyTorchConfig::default(), &options));
        let exact = replay_on(&timeline, &mut Exact::default(), &options).unwrap();
        check(&exact, &options);
        prop_assert_eq!(exact.requested_peak, footprint.requested_peak);
        prop_assert!(exact.allocated_peak <= footprint.allocated_peak);
        prop_assert_eq!(exact.end.requested, footprint.end.requested);
    }

    #[test]
    fn a_failure_leaves_the_unlimited_footprint(
        steps in prop::collection::vec(step(), 1..200),
        capacity in 0..400 * MIB,
    ) {
        let timeline = build(&steps);
        let free = replay(&timeline, &PyTorchConfig::default());
        let mut config = PyTorchConfig::default();
        config.capacity = Some(Bytes::new(capacity));
        let limited = replay(&timeline, &config);
        match &limited.failure {
            Some(failure) => {
                prop_assert_eq!(limited.allocated_peak, free.allocated_peak);
                prop_assert_eq!(&limited.series, &free.series);
                prop_assert!(failure.event < free.events);
                prop_assert!(failure.error.reserved <= Bytes::new(capacity));
                prop_assert!(free.reserved_peak > Bytes::new(capacity));
            }
            None => prop_assert!(limited.reserved_peak <= Bytes::new(capacity)),
        }
    }
}

#[test]
fn the_live_set_is_that_of_the_peak() {
    let mut t = TimelineBuilder::new();
    let weight = t.origin("head", "weight");
    let out = t.origin("head", "linear");
    t.alloc(Bytes::mib(11), Category::Parameters, weight);
    t.phase(PhaseKind::Forward, 0);
    let freed_before = t.alloc(Bytes::mib(20), Category::Workspace, out);
    t.free(freed_before);
    let first = t.alloc(Bytes::mib(30), Category::Activations, out);
    let second = t.alloc(Bytes::mib(12), Category::Activations, out);
    t.phase(PhaseKind::Backward, 3);
    t.free(second);
    t.free(first);
    t.alloc(Bytes::mib(12), Category::Gradients, weight);
    let footprint = replay(&t.finish(), &PyTorchConfig::default());
    assert_eq!(footprint.allocated_peak, Bytes::new(11 * MIB + 42 * MIB + MIB));
    assert_eq!(footprint.peak_event, Some(4));
    assert_eq!(footprint.peak_phase.map(|p| (p.kind, p.step)), Some((PhaseKind::Forward, 0)));
    assert_eq!(
        footprint.live.by_category,
        [(Category::Parameters, Bytes::mib(12)), (Category::Activations, Bytes::mib(42))]
    );
    assert_eq!(
        footprint.live.by_phase,
        [(None, Bytes::mib(12)), (Some(PhaseKind::Forward), Bytes::mib(42))]
    );
    assert_eq!(footprint.live.by_origin[0].tensors, 2);
    assert_eq!(footprint.live.by_module.len(), 1);
    // The 12 MiB gradient takes the cached 12 MiB segment.
    assert_eq!(footprint.end.allocated, Bytes::mib(24));
}

#[test]
fn a_failure_names_event_tensor_and_phase() {
    let mut t = TimelineBuilder::new();
    let origin = t.origin("", "x");
    t.phase(PhaseKind::Load, 0);
    t.alloc(Bytes::mib(60), Category::Parameters, origin);
    t.phase(PhaseKind::Forward, 0);
    let big = t.alloc(Bytes::mib(50), Category::Activations, origin);
    let mut config = PyTorchConfig::default();
    config.capacity = Some(Bytes::mib(100));
    let footprint = replay(&t.finish(), &config);
    let failure = footprint.failure.unwrap();
    assert_eq!((failure.event, failure.tensor), (1, big));
    assert_eq!(failure.phase.map(|p| p.kind), Some(PhaseKind::Forward));
    assert_eq!(failure.error.free, Some(Bytes::mib(40)));
    assert_eq!(footprint.allocated_peak, Bytes::mib(110));
}

#[test]
fn empty_and_absurd_timelines_have_a_footprint() {
    let footprint = replay(&Timeline::default(), &PyTorchConfig::default());
    assert_eq!(footprint, Footprint::default());

    let mut t = TimelineBuilder::new();
    let origin = t.origin("", "x");
    for _ in 0..3 {
        t.alloc(Bytes::MAX, Category::Activations, origin);
    }
    let footprint = replay(&t.finish(), &PyTorchConfig::default());
    assert!(footprint.allocated_peak.is_saturated());
    assert_eq!(footprint.failure.map(|f| f.event), Some(0));
}
