//! The live set at a moment as a flame graph: one SVG file with titles that browsers show on hover.

use std::collections::BTreeMap;
use std::fmt::Write;

use plimsoll_formats::snapshot::StackId;
use plimsoll_timeline::Category;
use plimsoll_units::Bytes;

use super::Export;
use crate::markup::escaped;
use crate::place;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;
const TOP: f64 = 34.0;
/// Narrower boxes are left out.
const NARROWEST: f64 = 0.3;
/// Width of a letter, about.
const LETTER: f64 = 6.6;

#[derive(Default)]
struct Node {
    bytes: u64,
    category: Option<Category>,
    children: BTreeMap<String, Node>,
}

/// The flame graph of what is live right after an event; `None` is the moment before the first one. Frames are stacked
/// from the outermost up, widths are bytes.
pub fn flame_graph(export: &Export<'_, '_>, event: Option<u32>, title: &str) -> String {
    let recording = export.recording();
    let mut root = Node::default();
    for (index, tensor) in recording.timeline.allocations().iter().enumerate() {
        if !export.sorted.lives.is_live(index, event) {
            continue;
        }
        let bytes = export.blocks[index].1;
        let (category, _) = export.category(index);
        let stack = recording.stack_of(tensor.origin);
        let mut node = &mut root;
        node.bytes = node.bytes.saturating_add(bytes);
        for name in chain(export, stack) {
            node = node.children.entry(name).or_default();
            node.bytes = node.bytes.saturating_add(bytes);
            node.category.get_or_insert(category);
        }
    }
    let depth = depth(&root);
    let height = TOP + ROW * depth as f64 + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fbfaf8\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\" fill=\"#1d232b\">{}: {} live</text>\n",
        escaped(title),
        Bytes::new(root.bytes)
    );
    let total = root.bytes.max(1);
    draw(&mut svg, "everything", &root, 0.0, 0, depth, total);
    svg.push_str("</svg>\n");
    svg
}

/// Frames of a stack as text, outermost first.
fn chain(export: &Export<'_, '_>, stack: StackId) -> Vec<String> {
    let snapshot = export.recording().snapshot;
    let mut chain: Vec<String> = place::frames(snapshot, stack)
        .filter_map(|frame| place::named_in_words(snapshot, frame))
        .collect();
    if chain.is_empty() {
        chain.push("not recorded".to_owned());
    }
    chain.reverse();
    chain
}

fn depth(node: &Node) -> usize {
    // Stacks are at most a few hundred frames deep, but a file may claim more: no recursion on it.
    let mut deepest = 1;
    let mut open = vec![(node, 1)];
    while let Some((node, at)) = open.pop() {
        deepest = deepest.max(at);
        open.extend(node.children.values().map(|child| (child, at + 1)));
    }
    deepest
}

fn draw(
    svg: &mut String,
    name: &str,
    node: &Node,
    left: f64,
    row: usize,
    depth: usize,
    total: u64,
) {
    let mut open = vec![(name, node, left, row)];
    while let Some((name, node, left, row)) = open.pop() {
        let width = node.bytes as f64 / total as f64 * WIDTH;
        if width < NARROWEST {
            continue;
        }
        let y = TOP + ROW * (depth - 1 - row) as f64;
        let share = node.bytes as f64 / total as f64 * 100.0;
        let _ = write!(
            svg,
            "<g><title>{}: {}, {share:.1} %</title><rect x=\"{left:.2}\" y=\"{y}\" width=\"{:.2}\" height=\"{}\" rx=\"1\" fill=\"{}\"/>",
            escaped(name),
            Bytes::new(node.bytes),
            (width - 0.5).max(0.2),
            ROW - 1.0,
            colour(node.category, name)
        );
        let letters = ((width - 6.0) / LETTER) as usize;
        if letters >= 3 {
            let shown: String = if name.chars().count() > letters {
                name.chars().take(letters - 1).chain(['…']).collect()
            } else {
                name.to_owned()
            };
            let _ = write!(
                svg,
                "<text x=\"{:.2}\" y=\"{}\" fill=\"#ffffff\">{}</text>",
                left + 3.0,
                y + 13.0,
                escaped(&shown)
            );
        }
        svg.push_str("</g>\n");
        let mut children: Vec<(&String, &Node)> = node.children.iter().collect();
        children.sort_by(|a, b| b.1.bytes.cmp(&a.1.bytes).then(a.0.cmp(b.0)));
        let mut at = left;
        for (name, child) in children {
            open.push((name, child, at, row + 1));
            at += child.bytes as f64 / total as f64 * WIDTH;
        }
    }
}

/// One hue for each category, a little lighter or darker by name.
fn colour(category: Option<Category>, name: &str) -> String {
    let hue = match category {
        Some(Category::Parameters) => 212,
        Some(Category::Gradients) => 265,
        Some(Category::OptimizerStates) => 32,
        Some(Category::Activations) => 145,
        Some(Category::LogitsAndLoss) => 188,
        Some(Category::Workspace) => 48,
        Some(Category::Communication) => 320,
        Some(Category::KvCache) => 0,
        Some(Category::Inputs) => 95,
        _ => return "hsl(215 8% 45%)".to_owned(),
    };
    format!("hsl({hue} 52% {}%)", 40 + name.len() % 5 * 2)
}
