//! What was live at one moment, by purpose, by module, by source line and by stack. Each way of sorting adds up to
//! the same total.

use std::collections::BTreeMap;

use plimsoll_formats::snapshot::StackId;
use plimsoll_timeline::{Category, OriginId};
use plimsoll_units::Bytes;
use serde::Serialize;

use super::category::{Categories, Rule};
use super::lives::Lives;
use super::rules::STACK_RULES;
use crate::place;
use crate::recording::Recording;

/// Frames shown of a stack.
const FRAMES: usize = 12;

/// What was live at one moment. Bytes are those of blocks, rounding and slack included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Live {
    /// All of it.
    pub bytes: Bytes,
    /// What the program had asked for.
    pub requested: Bytes,
    /// Tensors.
    pub tensors: u64,
    /// By purpose, largest first.
    pub by_category: Vec<CategoryShare>,
    /// By module, largest first; the empty name stands for no module.
    pub by_module: Vec<NamedShare>,
    /// By source line, largest first.
    pub by_line: Vec<NamedShare>,
    /// By stack, largest first.
    pub by_stack: Vec<StackShare>,
    /// Bytes of stacks that are not listed.
    pub other_stacks: Bytes,
}

/// What one purpose holds, by the rules that decided so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CategoryShare {
    /// The purpose.
    pub category: Category,
    /// Bytes.
    pub bytes: Bytes,
    /// Tensors.
    pub tensors: u64,
    /// The rules that decided, largest first, each in words.
    pub rules: Vec<NamedShare>,
}

/// What something with a name holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedShare {
    /// The name.
    pub name: String,
    /// Bytes.
    pub bytes: Bytes,
    /// Tensors.
    pub tensors: u64,
}

/// What one stack holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StackShare {
    /// The purpose of most of its bytes.
    pub category: Category,
    /// Bytes.
    pub bytes: Bytes,
    /// Tensors.
    pub tensors: u64,
    /// The line: `train.py:31 main`.
    pub line: String,
    /// Modules, outermost first.
    pub module: String,
    /// The stack, for those who look it up in the file.
    #[serde(skip)]
    pub stack: StackId,
    /// Its frames in Python, innermost first, or its first ones in C++ where there are none.
    pub frames: Vec<String>,
}

/// Bytes and tensors.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub bytes: Bytes,
    pub tensors: u64,
}

impl Sum {
    fn add(&mut self, bytes: Bytes) {
        self.bytes += bytes;
        self.tensors += 1;
    }
}

/// The live set right after an event, or before the first one. `listed` bounds modules, lines and stacks each.
pub(crate) fn live_after(
    recording: &Recording<'_>,
    sizes: &[Bytes],
    lives: &Lives,
    categories: &Categories,
    event: Option<u32>,
    listed: usize,
) -> Live {
    let Sums { mut live, by_category, by_origin } =
        sums(recording, sizes, lives, categories, event);
    live.by_category = category_shares(by_category);
    let mut modules: BTreeMap<String, Sum> = BTreeMap::new();
    let mut lines: BTreeMap<String, Sum> = BTreeMap::new();
    for (origin, sum, _) in &by_origin {
        let place = recording.timeline.origin(OriginId(*origin));
        for (map, name) in [(&mut modules, &place.module), (&mut lines, &place.what)] {
            let entry = map.entry(name.to_string()).or_default();
            entry.bytes += sum.bytes;
            entry.tensors += sum.tensors;
        }
    }
    live.by_module = named(modules, listed);
    live.by_line = named(lines, listed);
    let mut stacks = by_origin;
    stacks.sort_by_key(|(origin, sum, _)| (std::cmp::Reverse(sum.bytes), *origin));
    live.other_stacks = stacks.iter().skip(listed).map(|(_, sum, _)| sum.bytes).sum();
    live.by_stack = (stacks.into_iter().take(listed))
        .map(|(origin, sum, category)| stack_share(recording, origin, sum, category))
        .collect();
    live
}

/// The sums that everything else is made from.
pub(crate) struct Sums {
    /// Totals; the lists are empty.
    pub live: Live,
    by_category: BTreeMap<(Category, Rule, Option<usize>), Sum>,
    /// By origin, with the purpose of most of its bytes.
    pub by_origin: Vec<(u32, Sum, Category)>,
}

impl Sums {
    /// Bytes by purpose.
    pub fn categories(&self) -> BTreeMap<Category, Bytes> {
        let mut categories = BTreeMap::new();
        for ((category, ..), sum) in &self.by_category {
            *categories.entry(*category).or_default() += sum.bytes;
        }
        categories
    }
}

/// Sums up the live set right after an event, or before the first one.
pub(crate) fn sums(
    recording: &Recording<'_>,
    sizes: &[Bytes],
    lives: &Lives,
    categories: &Categories,
    event: Option<u32>,
) -> Sums {
    let mut live = Live::default();
    let mut by_category: BTreeMap<(Category, Rule, Option<usize>), Sum> = BTreeMap::new();
    // By origin, with the bytes of each category.
    let mut by_origin: BTreeMap<u32, (Sum, BTreeMap<Category, Bytes>)> = BTreeMap::new();
    for (tensor, allocation) in recording.timeline.allocations().iter().enumerate() {
        if !lives.is_live(tensor, event) {
            continue;
        }
        let bytes = sizes.get(tensor).copied().unwrap_or_default();
        live.bytes += bytes;
        live.requested += allocation.requested;
        live.tensors += 1;
        let (category, rule) = categories.of[tensor];
        let origin = allocation.origin.0;
        let stack_rule = categories.stack_rules.get(origin as usize).copied().flatten();
        by_category.entry((category, rule, stack_rule)).or_default().add(bytes);
        let entry = by_origin.entry(origin).or_default();
        entry.0.add(bytes);
        *entry.1.entry(category).or_default() += bytes;
    }
    let by_origin = (by_origin.into_iter())
        .map(|(origin, (sum, categories))| {
            let most = categories
                .into_iter()
                .max_by_key(|(category, bytes)| (*bytes, std::cmp::Reverse(*category)));
            (origin, sum, most.map_or(Category::Unknown, |(category, _)| category))
        })
        .collect();
    Sums { live, by_category, by_origin }
}

fn category_shares(sums: BTreeMap<(Category, Rule, Option<usize>), Sum>) -> Vec<CategoryShare> {
    let mut shares: Vec<CategoryShare> = Vec::new();
    for ((category, rule, stack_rule), sum) in sums {
        let reason = stack_rule.map_or("", |rule| STACK_RULES[rule].reason);
        let name = match rule {
            Rule::Stack => reason.to_owned(),
            rule => rule.words().to_owned(),
        };
        let share = match shares.last_mut().filter(|share| share.category == category) {
            Some(share) => share,
            None => {
                let (bytes, rules) = (Bytes::ZERO, Vec::new());
                shares.push(CategoryShare { category, bytes, tensors: 0, rules });
                let last = shares.len() - 1;
                &mut shares[last]
            }
        };
        share.bytes += sum.bytes;
        share.tensors += sum.tensors;
        match share.rules.iter_mut().find(|known| known.name == name) {
            Some(known) => {
                known.bytes += sum.bytes;
                known.tensors += sum.tensors;
            }
            None => share.rules.push(NamedShare { name, bytes: sum.bytes, tensors: sum.tensors }),
        }
    }
    for share in &mut shares {
        share.rules.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    }
    shares.sort_by_key(|share| (std::cmp::Reverse(share.bytes), share.category));
    shares
}

fn named(sums: BTreeMap<String, Sum>, listed: usize) -> Vec<NamedShare> {
    let mut shares: Vec<NamedShare> = (sums.into_iter())
        .map(|(name, Sum { bytes, tensors })| NamedShare { name, bytes, tensors })
        .collect();
    shares.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    shares.truncate(listed);
    shares
}

fn stack_share(recording: &Recording<'_>, origin: u32, sum: Sum, category: Category) -> StackShare {
    let origin = OriginId(origin);
    let place = recording.timeline.origin(origin);
    let stack = recording.stack_of(origin);
    StackShare {
        category,
        bytes: sum.bytes,
        tensors: sum.tensors,
        line: place.what.to_string(),
        module: place.module.to_string(),
        stack,
        frames: frames_in_words(recording, stack),
    }
}

/// The frames of a stack as a person reads them.
pub(crate) fn frames_in_words(recording: &Recording<'_>, stack: StackId) -> Vec<String> {
    let names = &recording.snapshot.names;
    let words = |python: bool| -> Vec<String> {
        place::frames(recording.snapshot, stack)
            .filter(|frame| place::is_python(names.get(frame.file)) == python)
            .take(FRAMES)
            .map(|frame| place::in_words(recording.snapshot, frame))
            .collect()
    };
    let python = words(true);
    if python.is_empty() { words(false) } else { python }
}
