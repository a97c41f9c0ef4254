//! The curves of the page, in stretches of equal numbers of events: for each stretch the highest and lowest allocated
//! bytes, the highest reserved and requested ones, and what the layers held when most was allocated.

use plimsoll_timeline::Category;

use super::pack::Packer;
use super::scene::{Scene, UNIT};

/// Stretches, at most: more than a wide screen has points when it is zoomed in eight times.
const MOST_STRETCHES: u32 = 1 << 14;
/// Layers, at most, the rest included.
const MOST_LAYERS: usize = 12;

/// What the stacked areas show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub name: String,
    /// Category, where the layer is one.
    pub category: Option<Category>,
}

/// Curves ready for the page.
#[derive(Clone, Debug, Default)]
pub(super) struct Curves {
    pub layers: Vec<Layer>,
    /// Layer of each group.
    pub layer_of: Vec<u8>,
    /// Events of one stretch.
    pub stride: u32,
    pub stretches: u32,
    pub packed: String,
    /// Highest allocated bytes, in units, and its event; the state before the first event counts as event 0.
    pub peak: (u64, u32),
    /// Highest reserved bytes.
    pub reserved_peak: u64,
}

/// One stretch while it is filled.
#[derive(Clone, Debug)]
struct Stretch {
    highest: u64,
    lowest: u64,
    reserved: u64,
    requested: u64,
    layers: Vec<u64>,
}

pub(super) fn curves(scene: &Scene) -> Curves {
    let (layers, layer_of) = layers(scene);
    let stride = scene.events.div_ceil(MOST_STRETCHES).max(1).next_power_of_two();
    let mut walk = Walk::new(scene, &layer_of, layers.len());
    let mut stretches = Vec::new();
    let mut peak = (walk.allocated, 0);
    let mut open = walk.stretch();
    for event in 0..scene.events {
        walk.step(event);
        if walk.allocated > peak.0 {
            peak = (walk.allocated, event);
        }
        walk.note(&mut open);
        if (event + 1).is_multiple_of(stride) || event + 1 == scene.events {
            let next = walk.stretch();
            stretches.push(std::mem::replace(&mut open, next));
        }
    }
    if stretches.is_empty() {
        stretches.push(open);
    }
    Curves {
        packed: pack(&stretches, layers.len()),
        layers,
        layer_of,
        stride,
        stretches: stretches.len() as u32,
        peak,
        reserved_peak: stretches.iter().map(|s| s.reserved).max().unwrap_or(0),
    }
}

/// Series one after the other, each as differences.
fn pack(stretches: &[Stretch], layers: usize) -> String {
    let mut packer = Packer::default();
    let mut series = |value: &dyn Fn(&Stretch) -> u64| {
        let mut last = 0;
        for stretch in stretches {
            let value = value(stretch);
            packer.difference(last, value);
            last = value;
        }
    };
    series(&|s| s.highest);
    series(&|s| s.lowest);
    series(&|s| s.reserved / UNIT);
    series(&|s| s.requested / UNIT);
    for layer in 0..layers {
        series(&|s| s.layers[layer]);
    }
    packer.text()
}

/// Categories where several are known; otherwise the lines that held most at the peak, and the rest.
fn layers(scene: &Scene) -> (Vec<Layer>, Vec<u8>) {
    let mut categories: Vec<Category> = scene.groups.iter().map(|group| group.category).collect();
    categories.sort_unstable();
    categories.dedup();
    if categories.len() > 1 {
        let of = |category: Category| categories.binary_search(&category).unwrap_or(0) as u8;
        let layer_of = scene.groups.iter().map(|group| of(group.category)).collect();
        let layer = |category: &Category| Layer {
            name: category.label().to_owned(),
            category: Some(*category),
        };
        return (categories.iter().map(layer).collect(), layer_of);
    }
    let held = held_at_peak(scene);
    let mut lines: Vec<(&str, u64)> = Vec::new();
    for (group, units) in scene.groups.iter().zip(&held) {
        match lines.iter_mut().find(|(what, _)| *what == group.what) {
            Some(line) => line.1 += units,
            None => lines.push((&group.what, *units)),
        }
    }
    lines.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    lines.truncate(MOST_LAYERS - 1);
    let of =
        |what: &str| lines.iter().position(|(line, _)| *line == what).unwrap_or(lines.len()) as u8;
    let layer_of = scene.groups.iter().map(|group| of(&group.what)).collect();
    let named = lines.iter().map(|(what, _)| Layer { name: (*what).to_owned(), category: None });
    let rest = Layer { name: "everything else".to_owned(), category: None };
    (named.chain([rest]).collect(), layer_of)
}

/// Units that each group holds when most is allocated.
fn held_at_peak(scene: &Scene) -> Vec<u64> {
    let mut walk = Walk::new(scene, &[], 0);
    let mut peak = (walk.allocated, None);
    for event in 0..scene.events {
        walk.step(event);
        if walk.allocated > peak.0 {
            peak = (walk.allocated, Some(event));
        }
    }
    let mut held = vec![0; scene.groups.len()];
    for life in &scene.lives {
        let alive = match peak.1 {
            None => life.from_start,
            Some(event) => (life.from_start || life.birth <= event) && life.death > event,
        };
        if alive {
            held[life.group as usize] += u64::from(life.size);
        }
    }
    held
}

/// Sums after each event.
struct Walk<'a> {
    scene: &'a Scene,
    layer_of: &'a [u8],
    allocated: u64,
    requested: u64,
    reserved: u64,
    next_reserved: usize,
    layers: Vec<u64>,
}

impl<'a> Walk<'a> {
    fn new(scene: &'a Scene, layer_of: &'a [u8], layers: usize) -> Self {
        let mut walk = Walk {
            scene,
            layer_of,
            allocated: 0,
            requested: 0,
            reserved: 0,
            next_reserved: 0,
            layers: vec![0; layers],
        };
        for index in 0..scene.lives.len() {
            if scene.lives[index].from_start {
                walk.change(index, true);
            }
        }
        if let Some((_, reserved)) = scene.reserved.first() {
            (walk.reserved, walk.next_reserved) = (*reserved, 1);
        }
        walk
    }

    fn change(&mut self, index: usize, begins: bool) {
        let life = &self.scene.lives[index];
        let (size, requested) = (u64::from(life.size), self.scene.requested[index]);
        let layer = self.layer_of.get(life.group as usize).map(|layer| usize::from(*layer));
        if begins {
            self.allocated = self.allocated.saturating_add(size);
            self.requested = self.requested.saturating_add(requested);
        } else {
            self.allocated = self.allocated.saturating_sub(size);
            self.requested = self.requested.saturating_sub(requested);
        }
        if let Some(layer) = layer.and_then(|layer| self.layers.get_mut(layer)) {
            *layer = if begins { layer.saturating_add(size) } else { layer.saturating_sub(size) };
        }
    }

    fn step(&mut self, event: u32) {
        if let Some((life, begins)) = self.scene.moves[event as usize] {
            self.change(life as usize, begins);
        }
        while let Some((from, reserved)) = self.scene.reserved.get(self.next_reserved)
            && *from <= event
        {
            self.reserved = *reserved;
            self.next_reserved += 1;
        }
    }

    /// A stretch that has seen the state as it is now.
    fn stretch(&self) -> Stretch {
        Stretch {
            highest: self.allocated,
            lowest: self.allocated,
            reserved: self.reserved,
            requested: self.requested,
            layers: self.layers.clone(),
        }
    }

    fn note(&self, stretch: &mut Stretch) {
        if self.allocated > stretch.highest {
            stretch.highest = self.allocated;
            stretch.layers.clone_from(&self.layers);
        }
        stretch.lowest = stretch.lowest.min(self.allocated);
        stretch.reserved = stretch.reserved.max(self.reserved);
        stretch.requested = stretch.requested.max(self.requested);
    }
}
