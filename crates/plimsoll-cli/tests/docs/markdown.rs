//! As much of Markdown as the checks need: fenced blocks, links, the anchors of headings, and words of a shell line.

use std::ops::Range;

/// A fenced block.
pub struct Block {
    /// The word after the fence.
    pub language: String,
    /// The text between the fences.
    pub range: Range<usize>,
}

impl Block {
    pub fn text<'a>(&self, page: &'a str) -> &'a str {
        &page[self.range.clone()]
    }

    pub fn is_shell(&self) -> bool {
        ["sh", "console", "bash"].contains(&self.language.as_str())
    }
}

/// The fenced blocks of a page.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, usize)> = None;
    let mut at = 0;
    for line in page.split_inclusive('\n') {
        let next = at + line.len();
        if let Some(language) = line.trim_start().strip_prefix("```") {
            match open.take() {
                Some((language, start)) => blocks.push(Block { language, range: start..at }),
                None => open = Some((language.trim().to_owned(), next)),
            }
        }
        at = next;
    }
    blocks
}

/// The page without fenced blocks and code spans, where links mean nothing.
fn prose(page: &str) -> String {
    let mut out = String::new();
    let mut at = 0;
    for block in blocks(page) {
        out.push_str(&page[at..block.range.start]);
        at = block.range.end;
    }
    out.push_str(&page[at..]);
    let spans = out.split('`').enumerate().filter(|(i, _)| i % 2 == 0);
    spans.map(|(_, s)| s).collect::<Vec<_>>().join(" ")
}

/// Targets of links and pictures, in both spellings.
pub fn links(page: &str) -> Vec<&str> {
    let prose = prose(page);
    let mut links: Vec<&str> = Vec::new();
    for (before, after) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
        for (at, _) in page.match_indices(before) {
            let rest = &page[at + before.len()..];
            let target = &rest[..rest.find(after).unwrap_or(0)];
            let target = target.split_whitespace().next().unwrap_or_default();
            if !target.is_empty() && prose.contains(&format!("{before}{target}")) {
                links.push(target);
            }
        }
    }
    links
}

/// Anchors of headings, as GitHub and mdBook make them.
pub fn anchors(page: &str) -> Vec<String> {
    let prose_lines = page.lines().filter(|l| l.starts_with('#'));
    prose_lines
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept =
                title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

/// Words of a shell line: quotes hold spaces together, `#` begins a comment.
pub fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn a_page_is_taken_apart() {
    let page = "# A b-c: d\n[x](y.md#z) `[no](no)`\n```sh\n$ plimsoll a 'b c' # d\n[no](no)\n```\n";
    assert_eq!(links(page), ["y.md#z"]);
    assert_eq!(anchors(page), ["a-b-c-d"]);
    let block = &blocks(page)[0];
    assert!(block.is_shell());
    assert_eq!(words(block.text(page).lines().next().unwrap()), ["$", "plimsoll", "a", "b c"]);
}
