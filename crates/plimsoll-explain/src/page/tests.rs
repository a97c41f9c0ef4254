//! What the page unpacks is what happened: the live set that its code puts together from keys and pieces, checked
//! against the lives themselves.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;
use plimsoll_timeline::Category;
use proptest::prelude::*;

use super::scene::{Group, Life, Scene};
use super::{curves, detail};

/// The page's own reader, in Rust.
struct Reader(std::vec::IntoIter<u8>);

impl Reader {
    fn new(text: &str) -> Self {
        let digit = |c: u8| match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let digits: Vec<u8> = text.bytes().filter(|c| *c != b'=').map(digit).collect();
        let mut raw = Vec::new();
        for part in digits.chunks(4) {
            let word = part.iter().fold(0u32, |word, d| word << 6 | u32::from(*d))
                << (6 * (4 - part.len()));
            raw.extend_from_slice(&word.to_be_bytes()[1..part.len()]);
        }
        let mut bytes = Vec::new();
        DeflateDecoder::new(&raw[..]).read_to_end(&mut bytes).unwrap();
        Reader(bytes.into_iter())
    }

    fn number(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.0.next().unwrap();
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
            shift += 7;
        }
    }

    fn difference(&mut self) -> i64 {
        let value = self.number() as i64;
        (value >> 1) ^ -(value & 1)
    }
}

/// Random lives: each event begins one or ends the n-th live one. Every life has a place of its own.
fn scene(steps: &[Option<usize>], from_start: u32) -> Scene {
    let events = steps.len() as u32;
    let mut scene = Scene {
        events,
        groups: (0..5)
            .map(|n| Group {
                category: if n % 2 == 0 { Category::Activations } else { Category::Parameters },
                module: String::new(),
                what: format!("line {n}"),
                frames: Vec::new(),
            })
            .collect(),
        reserved: vec![(0, 0)],
        ..Scene::default()
    };
    let mut live = Vec::new();
    let mut place = 0;
    let mut begin = |scene: &mut Scene, birth, from_start| {
        let number = scene.lives.len() as u32;
        let size = 1 + number * 7 % 90;
        scene.lives.push(Life {
            birth,
            death: events,
            at: place,
            size,
            group: number % 5,
            from_start,
        });
        scene.requested.push(u64::from(size) * 512);
        place += size + number % 3;
        scene.row = place;
        number
    };
    for _ in 0..from_start {
        live.push(begin(&mut scene, 0, true));
    }
    for (event, step) in (0u32..).zip(steps) {
        let change = match step {
            Some(n) if !live.is_empty() => {
                let gone = live.swap_remove(n % live.len());
                scene.lives[gone as usize].death = event;
                Some((gone, false))
            }
            Some(_) => None,
            None => {
                live.push(begin(&mut scene, event, false));
                live.last().map(|id| (*id, true))
            }
        };
        scene.moves.push(change);
    }
    scene
}

/// Live blocks before an event as the page finds them: size and group by place.
fn unpacked(scene: &Scene, event: u32) -> BTreeMap<u64, (u64, u64)> {
    let (keys, pieces) = (detail::keys(scene), detail::pieces(scene));
    let span = detail::PIECE * detail::PIECES_PER_KEY;
    let number = (event / span).min(keys.len() as u32 - 1);
    let mut live = BTreeMap::new();
    let mut key = Reader::new(&keys[number as usize]);
    let mut place = 0;
    for _ in 0..key.number() {
        place += key.number();
        let (size, group, _age) = (key.number(), key.number(), key.number());
        live.insert(place, (size, group));
    }
    let mut at = number * span;
    while at < event {
        let mut piece = Reader::new(&pieces[(at / detail::PIECE) as usize]);
        let mut place = 0i64;
        for _ in 0..detail::PIECE.min(event - at) {
            let tag = piece.number();
            if tag > 0 {
                place += piece.difference();
                if tag == 1 {
                    assert!(live.remove(&(place as u64)).is_some(), "a free of nothing at {place}");
                } else {
                    live.insert(place as u64, (piece.number(), tag - 2));
                }
            }
        }
        at += detail::PIECE;
    }
    live
}

fn truth(scene: &Scene, event: u32) -> BTreeMap<u64, (u64, u64)> {
    let before = |life: &&Life| (life.from_start || life.birth < event) && life.death >= event;
    let row = |life: &Life| (u64::from(life.at), (u64::from(life.size), u64::from(life.group)));
    scene.lives.iter().filter(before).map(row).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_page_finds_what_was_live(
        steps in prop::collection::vec(prop::option::weighted(0.45, any::<usize>()), 1..400),
        from_start in 0..30u32,
        at in any::<prop::sample::Index>(),
    ) {
        let scene = scene(&steps, from_start);
        let event = at.index(steps.len() + 1) as u32;
        prop_assert_eq!(unpacked(&scene, event), truth(&scene, event));
    }

    #[test]
    fn curves_hold_the_peak_and_layers_add_up(
        steps in prop::collection::vec(prop::option::weighted(0.45, any::<usize>()), 1..400),
        from_start in 0..30u32,
    ) {
        let scene = scene(&steps, from_start);
        let curves = curves::curves(&scene);
        let sum = |event| truth(&scene, event).values().map(|(size, _)| size).sum::<u64>();
        let highest = (0..=scene.events).map(sum).max().unwrap_or(0);
        prop_assert_eq!(curves.peak.0, highest);
        let mut data = Reader::new(&curves.packed);
        let count = curves.stretches as usize;
        let mut series = || {
            let mut last = 0i64;
            (0..count).map(|_| { last += data.difference(); last as u64 }).collect::<Vec<_>>()
        };
        let (high, low, _reserved, requested) = (series(), series(), series(), series());
        let layers: Vec<Vec<u64>> = curves.layers.iter().map(|_| series()).collect();
        prop_assert_eq!(high.iter().max().copied(), Some(highest));
        for at in 0..count {
            prop_assert!(low[at] <= high[at] && requested[at] <= high[at]);
            prop_assert_eq!(layers.iter().map(|layer| layer[at]).sum::<u64>(), high[at]);
        }
    }
}

#[test]
fn pieces_and_keys_cover_long_recordings() {
    let steps: Vec<Option<usize>> = (0..detail::PIECE * detail::PIECES_PER_KEY * 2 + 77)
        .map(|n| (n % 2 == 1).then_some(n as usize))
        .collect();
    let scene = scene(&steps, 9);
    let span = detail::PIECE * detail::PIECES_PER_KEY;
    assert_eq!(detail::keys(&scene).len(), 3);
    for event in [0, 1, detail::PIECE, span - 1, span, span + 1, 2 * span, scene.events] {
        assert_eq!(unpacked(&scene, event), truth(&scene, event), "event {event}");
    }
}
