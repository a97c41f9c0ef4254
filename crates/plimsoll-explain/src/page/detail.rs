//! What the page needs when it looks closer: the largest blocks for the picture as a whole, a raster of how full the
//! addresses are, and the events themselves in pieces, with the live blocks before every so many pieces.

use super::pack::Packer;
use super::scene::{Life, Scene};

/// Blocks drawn one by one in the picture as a whole.
const LARGEST: usize = 20_000;
/// Events of one piece.
pub(super) const PIECE: u32 = 1 << 13;
/// Pieces between two lists of live blocks.
pub(super) const PIECES_PER_KEY: u32 = 16;
/// Columns and rows of the raster.
pub(super) const RASTER: (usize, usize) = (1024, 192);

/// The largest blocks by bytes and events together: birth, events lived, place, size, group.
pub(super) fn largest(scene: &Scene) -> String {
    let area = |life: &Life| u64::from(life.size) * u64::from(life.death - life.birth).max(1);
    let mut order: Vec<usize> =
        (0..scene.lives.len()).filter(|at| scene.lives[*at].size > 0).collect();
    if order.len() > LARGEST {
        order.select_nth_unstable_by_key(LARGEST, |at| {
            (std::cmp::Reverse(area(&scene.lives[*at])), *at)
        });
        order.truncate(LARGEST);
    }
    order.sort_unstable_by_key(|at| (scene.lives[*at].birth, *at));
    let mut packer = Packer::default();
    packer.number(order.len() as u64);
    let mut last = 0;
    for at in order {
        let life = &scene.lives[at];
        packer.number(u64::from(life.birth - last));
        packer.number(u64::from(life.death - life.birth));
        packer.number(u64::from(life.at));
        packer.number(u64::from(life.size));
        packer.number(u64::from(life.group));
        last = life.birth;
    }
    packer.text()
}

/// How full each part of the addresses is over the events, 0 to 255, row by row.
pub(super) fn raster(scene: &Scene) -> String {
    let (columns, rows) = RASTER;
    let mut change = vec![0i64; (columns + 1) * rows];
    let column =
        |event: u32| (u64::from(event) * columns as u64 / u64::from(scene.events.max(1))) as usize;
    let row_units = u64::from(scene.row).div_ceil(rows as u64).max(1);
    for life in &scene.lives {
        let (begin, end) = (column(life.birth), column(life.death).min(columns));
        if begin == end {
            continue;
        }
        let (mut at, last) = (u64::from(life.at), u64::from(life.at) + u64::from(life.size));
        while at < last {
            let row = (at / row_units) as usize;
            if row >= rows {
                break;
            }
            let until = last.min((at / row_units + 1) * row_units);
            change[row * (columns + 1) + begin] += (until - at) as i64;
            change[row * (columns + 1) + end] -= (until - at) as i64;
            at = until;
        }
    }
    let mut packer = Packer::default();
    for row in 0..rows {
        let mut full = 0;
        for column in 0..columns {
            full += change[row * (columns + 1) + column];
            packer.number((full.max(0) as u64 * 255 / row_units).min(255));
        }
    }
    packer.text()
}

/// The events in pieces: for each event 0 for nothing, 1 for a free (place), 2 and more for an allocation (its group,
/// then place and size). Places are differences to the place before.
pub(super) fn pieces(scene: &Scene) -> Vec<String> {
    let mut pieces = Vec::new();
    for part in scene.moves.chunks(PIECE as usize) {
        let mut packer = Packer::default();
        let mut place = 0;
        for step in part {
            let Some((life, begins)) = *step else {
                packer.number(0);
                continue;
            };
            let life = &scene.lives[life as usize];
            packer.number(if begins { u64::from(life.group) + 2 } else { 1 });
            packer.difference(place, u64::from(life.at));
            place = u64::from(life.at);
            if begins {
                packer.number(u64::from(life.size));
            }
        }
        pieces.push(packer.text());
    }
    pieces
}

/// The live blocks before every so many pieces: place, size, group, and how many events ago they were made.
pub(super) fn keys(scene: &Scene) -> Vec<String> {
    let every = PIECE * PIECES_PER_KEY;
    let mut live: Vec<u32> =
        (0u32..).zip(&scene.lives).filter(|(_, life)| life.from_start).map(|(at, _)| at).collect();
    let mut keys = vec![key(scene, &live, 0)];
    for from in (0..scene.events).step_by(every as usize) {
        let to = from.saturating_add(every).min(scene.events);
        if to == scene.events {
            break;
        }
        for step in &scene.moves[from as usize..to as usize] {
            if let Some((life, true)) = step {
                live.push(*life);
            }
        }
        live.retain(|at| scene.lives[*at as usize].death >= to);
        keys.push(key(scene, &live, to));
    }
    keys
}

fn key(scene: &Scene, live: &[u32], event: u32) -> String {
    let mut lives: Vec<&Life> = live.iter().map(|at| &scene.lives[*at as usize]).collect();
    lives.sort_unstable_by_key(|life| life.at);
    let mut packer = Packer::default();
    packer.number(lives.len() as u64);
    let mut place = 0;
    for life in lives {
        packer.number(u64::from(life.at - place));
        packer.number(u64::from(life.size));
        packer.number(u64::from(life.group));
        packer.number(u64::from(if life.from_start { 0 } else { event - life.birth }));
        place = life.at;
    }
    packer.text()
}
