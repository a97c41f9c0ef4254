//! From bytes of any kind to clean lines: ended by `\n` or `\r` (progress bars), without colours, as text, with the
//! process that wrote them where a prefix names it. Memory is bounded: what exceeds the cap of a line is dropped and
//! counted.

use std::borrow::Cow;

/// A longer line is cut here; engines print their whole configuration on one line, which stays far below.
pub const MAX_LINE: usize = 64 << 10;

/// Puts chunks together to lines.
#[derive(Debug, Default)]
pub struct Lines {
    partial: Vec<u8>,
    /// Lines that were longer than [`MAX_LINE`].
    pub cut: u64,
    overflowing: bool,
}

impl Lines {
    /// Hands every line that ends within `chunk` to `each`.
    pub fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|b| matches!(b, b'\n' | b'\r')) {
            let (line, after) = rest.split_at(end);
            if self.partial.is_empty() && line.len() <= MAX_LINE {
                each(line);
            } else {
                self.hold(line);
                each(&self.partial);
                self.partial.clear();
                self.overflowing = false;
            }
            rest = after.get(1..).unwrap_or_default();
        }
        self.hold(rest);
    }

    /// Hands over what stands after the last line end.
    pub fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            each(&self.partial);
            self.partial.clear();
        }
        self.overflowing = false;
    }

    fn hold(&mut self, part: &[u8]) {
        let room = MAX_LINE - self.partial.len().min(MAX_LINE);
        if part.len() > room && !self.overflowing {
            self.overflowing = true;
            self.cut += 1;
        }
        self.partial.extend_from_slice(part.get(..room).unwrap_or(part));
    }
}

/// The line as text, without escape sequences and with wrong UTF-8 replaced.
pub fn clean(line: &[u8]) -> Cow<'_, str> {
    if !line.contains(&0x1b) {
        return String::from_utf8_lossy(line);
    }
    let mut plain = Vec::with_capacity(line.len());
    let mut at = 0;
    while let Some(&byte) = line.get(at) {
        if byte == 0x1b {
            at += escape(line.get(at..).unwrap_or_default());
        } else {
            plain.push(byte);
            at += 1;
        }
    }
    Cow::Owned(String::from_utf8_lossy(&plain).into_owned())
}

/// The length of the escape sequence that `text` begins with.
fn escape(text: &[u8]) -> usize {
    match text.get(1) {
        // Control sequence: parameters, then one letter.
        Some(b'[') => {
            let end = text.iter().skip(2).position(|b| (0x40..=0x7e).contains(b));
            end.map_or(text.len(), |n| n + 3)
        }
        // Operating system command (links, titles): until BEL or ESC \.
        Some(b']') => {
            let end = text.iter().skip(2).position(|b| matches!(b, 0x07 | 0x1b));
            match end.map(|n| n + 2) {
                Some(n) if text.get(n) == Some(&0x1b) => (n + 2).min(text.len()),
                Some(n) => n + 1,
                None => text.len(),
            }
        }
        Some(_) => 2,
        None => 1,
    }
}

/// The longest name of a process that is kept.
const MAX_ORIGIN: usize = 24;

/// The process that wrote a line, where its start says so: `rank 3`, `TP5`, `DP0 TP1`, `Worker_TP0`, `pid 507`.
///
/// Known are torch's `[rank3]:`, torchrun's `[default3]:`, mpirun's `[1,3]<stderr>:`, srun's `3: `, SGLang's
/// `[date time TP5]`, and the `(Name pid=507)` of vLLM and Ray.
pub fn origin(line: &str) -> Option<String> {
    let text = line.trim_start();
    let first = text.as_bytes().first()?;
    match first {
        b'[' => bracketed(text.get(1..)?),
        b'(' => named(text.get(1..)?),
        b'0'..=b'9' => {
            let digits = digits(text)?;
            let rest = text.get(digits.len()..)?;
            // Longer numbers are times and sizes.
            (digits.len() <= 4 && rest.starts_with(": ")).then(|| format!("rank {digits}"))
        }
        _ => None,
    }
}

fn digits(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).filter(|d| !d.is_empty() && d.len() <= 6)
}

fn bracketed(text: &str) -> Option<String> {
    for word in ["rank", "Rank ", "default", "RANK "] {
        if let Some(number) = text.strip_prefix(word).and_then(digits) {
            return Some(format!("rank {number}"));
        }
    }
    // mpirun: [job,rank]<stderr>
    if let Some((job, rest)) = text.split_once(',')
        && digits(job) == Some(job)
        && let Some(rank) = digits(rest)
        && rest.get(rank.len()..)?.starts_with("]<")
    {
        return Some(format!("rank {rank}"));
    }
    // SGLang: [2025-10-16 09:06:22 DP0 TP5]
    let (inside, _) = text.split_once(']')?;
    let ranks: Vec<&str> = inside
        .split(' ')
        .filter(|w| {
            let number = w.get(2..).unwrap_or_default();
            ["TP", "DP", "PP", "EP"].iter().any(|p| w.starts_with(p))
                && digits(number) == Some(number)
        })
        .take(4)
        .collect();
    (!ranks.is_empty()).then(|| clip(&ranks.join(" ")))
}

fn named(text: &str) -> Option<String> {
    let (inside, _) = text.split_once(')')?;
    let (name, rest) = inside.split_once(' ')?;
    let pid = rest.split([' ', ',']).find_map(|w| w.strip_prefix("pid="))?;
    if let Some(rank) = rest.split(' ').find_map(|w| w.strip_prefix("rank=")).and_then(digits) {
        return Some(format!("rank {rank}"));
    }
    // A name with a number tells workers apart; others need the process id.
    if name.bytes().last().is_some_and(|b| b.is_ascii_digit()) {
        return Some(clip(name));
    }
    digits(pid).map(|pid| format!("pid {pid}"))
}

fn clip(text: &str) -> String {
    text.chars().take(MAX_ORIGIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> (Vec<String>, u64) {
        let mut reader = Lines::default();
        let mut out = Vec::new();
        for chunk in chunks {
            reader.feed(chunk, |line| out.push(clean(line).into_owned()));
        }
        reader.finish(|line| out.push(clean(line).into_owned()));
        (out, reader.cut)
    }

    #[test]
    fn lines_end_as_systems_and_bars_end_them() {
        let (got, cut) = lines(&[b"a\r\nb", b"c\n  1%\r  2%", b"\r\xff\xfe\n", b"last"]);
        assert_eq!(got, ["a", "", "bc", "  1%", "  2%", "\u{fffd}\u{fffd}", "last"]);
        assert_eq!(cut, 0);
    }

    #[test]
    fn long_lines_are_cut_once() {
        let long = vec![b'x'; MAX_LINE + 10];
        let (got, cut) = lines(&[&long, &long, b"\nnext\n"]);
        assert_eq!(got.iter().map(String::len).collect::<Vec<_>>(), [MAX_LINE, 4]);
        assert_eq!(cut, 1);
    }

    #[test]
    fn colours_and_links_vanish() {
        for (line, plain) in [
            (&b"\x1b[1;31mKilled\x1b[0m"[..], "Killed"),
            (b"\x1b]8;;http://x\x07text\x1b]8;;\x1b\\!", "text!"),
            (b"cut \x1b[", "cut "),
            (b"end \x1b", "end "),
        ] {
            assert_eq!(clean(line), plain);
        }
    }

    #[test]
    fn prefixes_name_the_process() {
        for (line, expected) in [
            ("[rank3]: torch.OutOfMemoryError: x", Some("rank 3")),
            ("[default12]:text", Some("rank 12")),
            ("[1,7]<stderr>: text", Some("rank 7")),
            ("3: text", Some("rank 3")),
            ("[2025-10-16 09:06:22 TP5] KV Cache is allocated.", Some("TP5")),
            ("[2025-07-02 07:41:58 DP0 TP0] Load weight end.", Some("DP0 TP0")),
            ("(Worker_TP1 pid=549) ERROR", Some("Worker_TP1")),
            ("(VllmWorkerProcess pid=507) INFO", Some("pid 507")),
            ("(VllmWorker rank=1 pid=9) INFO", Some("rank 1")),
            ("[2025-10-16 09:06:22] text", None),
            ("2025: text", Some("rank 2025")),
            ("12:30: text", None),
            ("(see above)", None),
            ("", None),
        ] {
            assert_eq!(origin(line).as_deref(), expected, "{line}");
        }
    }
}
