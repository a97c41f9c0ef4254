//! The pickle machine of snapshots, protocols 2 to 5. It knows dictionaries, lists, tuples of numbers, text and
//! numbers, and nothing else; an opcode that could name, call or build anything is refused by name.
//!
//! Containers are *open* while they may still be filled. Their items wait in one buffer that works as a stack. As
//! soon as a container is consumed by another, or the next item of its list begins, it is closed: it becomes a row
//! or an interned id, and the memo entry that pointed at it is changed to that. So nothing of the file's size is
//! held but rows, and four bytes for every memo entry.

use std::io::Read;

use super::input::Input;
use super::memo::Memo;
use super::rows::{Shape, Tables};
use super::source::Source;
use super::value::{self, Value};
use crate::FormatError;

/// Most containers that are open at once.
const MAX_OPEN: usize = 1 << 20;
/// No memo entry.
const NO_MEMO: u32 = u32::MAX;

/// A container that may still be filled.
#[derive(Clone, Copy)]
struct Open {
    dict: bool,
    /// Its items in [`Machine::held`].
    begin: usize,
    end: usize,
    /// The memo entry that points at it; further ones are in [`Machine::aliases`].
    memo: u32,
    /// What it became, once closed.
    closed: Value,
    /// The file ended while it was filled.
    cut: bool,
}

/// Reads one pickle into tables.
pub(super) struct Machine<R> {
    pub(super) input: Input<R>,
    pub(super) tables: Tables,
    stack: Vec<Value>,
    /// Heights of the stack where a MARK was put.
    marks: Vec<usize>,
    memo: Memo,
    open: Vec<Open>,
    /// Open containers with a second memo entry, and that entry. No writer makes any.
    aliases: Vec<(usize, u32)>,
    held: Vec<Value>,
    opcode: u8,
    at: u64,
    /// Where to look next at what is held.
    look: u64,
}

/// How much may be held of a compressed file: this much, and this many times what was read of it. An event of
/// 200 bytes that compresses well takes 10 to 15, and 60 in memory.
const HELD: u64 = if cfg!(test) { 8 << 20 } else { 256 << 20 };
const HELD_PER_BYTE: u64 = 64;
/// Bytes of the pickle between two looks at what is held.
const LOOK: u64 = 1 << 20;

impl<R: Read> Machine<Source<R>> {
    pub(super) fn new(input: Input<Source<R>>) -> Self {
        Machine {
            input,
            look: LOOK,
            tables: Tables::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            open: Vec::new(),
            aliases: Vec::new(),
            held: Vec::new(),
            opcode: 0,
            at: 0,
        }
    }

    /// Runs to the STOP; what it left on the stack.
    pub(super) fn run(&mut self) -> Result<Value, FormatError> {
        loop {
            self.at = self.input.position();
            if self.at >= self.look {
                self.look_at_memory()?;
            }
            let [opcode] = self.input.array()?;
            self.opcode = opcode;
            match opcode {
                // By how often they come.
                b'j' => {
                    let at = u32::from_le_bytes(self.input.array()?);
                    self.get(at)?;
                    self.gets();
                }
                b'h' => {
                    let [at] = self.input.array()?;
                    self.get(u32::from(at))?;
                }
                0x94 => self.put(self.memo.len())?,
                0x8c => {
                    let [length] = self.input.array()?;
                    self.text(u64::from(length))?;
                }
                b'(' => self.marks.push(self.stack.len()),
                b'}' => {
                    self.next_item(true)?;
                    self.begin(true)?;
                }
                b']' => {
                    self.next_item(false)?;
                    self.begin(false)?;
                }
                b'u' => {
                    let mark = self.mark()?;
                    self.set_items(mark)?;
                }
                b'e' => {
                    let mark = self.mark()?;
                    self.append(mark)?;
                }
                b'K' => {
                    let [n] = self.input.array()?;
                    self.small(i64::from(n));
                }
                b'M' => {
                    let n = u16::from_le_bytes(self.input.array()?);
                    self.small(i64::from(n));
                }
                b'J' => {
                    let n = i32::from_le_bytes(self.input.array()?);
                    self.small(i64::from(n));
                }
                0x8a => {
                    let [length] = self.input.array()?;
                    self.long(usize::from(length))?;
                }
                b'.' => {
                    let top = self.pop()?;
                    return self.resolve(top);
                }
                _ => self.rare(opcode)?,
            }
        }
    }

    /// Opcodes that come a few times in a file, and those that are refused.
    fn rare(&mut self, opcode: u8) -> Result<(), FormatError> {
        match opcode {
            0x80 => {
                let [version] = self.input.array()?;
                if !(2..=5).contains(&version) {
                    return Err(self.fault("a pickle protocol other than 2 to 5; dump the snapshot again with protocol 4"));
                }
            }
            0x95 => drop(self.input.array::<8>()?),
            b'N' => self.stack.push(Value::NONE),
            0x88 => self.stack.push(Value::new(value::BOOL, 1)),
            0x89 => self.stack.push(Value::new(value::BOOL, 0)),
            b'G' => {
                let x = f64::from_be_bytes(self.input.array()?);
                let x = self.tables.float(x);
                self.stack.push(x);
            }
            b'X' => {
                let length = u32::from_le_bytes(self.input.array()?);
                self.text(u64::from(length))?;
            }
            0x8d => {
                let length = u64::from_le_bytes(self.input.array()?);
                self.text(length)?;
            }
            0x8b => {
                let length = i32::from_le_bytes(self.input.array()?);
                let length = usize::try_from(length).ok().filter(|n| *n <= 255);
                let length =
                    length.ok_or_else(|| self.fault("an integer of more than 255 bytes"))?;
                self.long(length)?;
            }
            b'q' => {
                let [at] = self.input.array()?;
                self.put(usize::from(at))?;
            }
            b'r' => {
                let at = u32::from_le_bytes(self.input.array()?);
                self.put(at as usize)?;
            }
            b')' => self.stack.push(Value::EMPTY),
            0x85..=0x87 => {
                let height = self.stack.len().checked_sub(usize::from(opcode - 0x84));
                let height = height.filter(|h| self.marks.last().is_none_or(|mark| h >= mark));
                let height = height.ok_or_else(|| self.fault("the stack is too short"))?;
                self.tuple(height)?;
            }
            b't' => {
                let mark = self.mark()?;
                self.tuple(mark)?;
            }
            b'd' | b'l' => self.filled(opcode == b'd')?,
            b's' => {
                let height = self.stack.len().checked_sub(2);
                let height = height.ok_or_else(|| self.fault("the stack is too short"))?;
                self.set_items(height)?;
            }
            b'a' => {
                let height = self.stack.len().checked_sub(1);
                let height = height.ok_or_else(|| self.fault("the stack is too short"))?;
                self.append(height)?;
            }
            _ => return Err(self.refuse(opcode)?),
        }
        Ok(())
    }

    /// Refuses a compressed file that unpacks to more than a recording can.
    #[cold]
    fn look_at_memory(&mut self) -> Result<(), FormatError> {
        self.look = self.at + LOOK;
        let Some(packed) = self.input.reader().compressed_bytes() else { return Ok(()) };
        let values = self.stack.len() + self.held.len();
        let value = (8 * values + self.memo.bytes()) as u64 + self.tables.bytes();
        let limit = packed.saturating_mul(HELD_PER_BYTE).saturating_add(HELD);
        if value > limit {
            let what = "content for its compressed size, in bytes:";
            return Err(FormatError::TooLarge { section: "memory snapshot", what, value, limit });
        }
        Ok(())
    }

    // Values.

    fn fault(&self, reason: &'static str) -> FormatError {
        FormatError::Pickle { opcode: self.opcode, offset: self.at, reason }
    }

    fn pop(&mut self) -> Result<Value, FormatError> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(self.fault("there is no value above the mark"));
        }
        self.stack.pop().ok_or_else(|| self.fault("the stack is empty"))
    }

    fn mark(&mut self) -> Result<usize, FormatError> {
        self.marks.pop().ok_or_else(|| self.fault("there is no mark"))
    }

    #[inline]
    fn small(&mut self, n: i64) {
        // Every n of up to 32 bits fits.
        self.stack.push(Value::int(n).unwrap_or(Value::OTHER));
    }

    #[inline]
    fn long(&mut self, length: usize) -> Result<(), FormatError> {
        let bytes = self.input.take(length)?;
        let negative = bytes.last().is_some_and(|b| *b >= 0x80);
        let fill = if negative { 0xff } else { 0 };
        if let Some(bytes) = bytes.get(..length.min(8)).filter(|_| length <= 8) {
            let mut word = [fill; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            let n = i64::from_le_bytes(word);
            let v = Value::int(n).unwrap_or_else(|| self.tables.integer(i128::from(n)));
            self.stack.push(v);
            return Ok(());
        }
        let mut wide = [fill; 16];
        let fits = bytes.len() <= 16 || bytes[16..].iter().all(|b| *b == fill);
        wide.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let n = match (fits, negative) {
            (true, _) => i128::from_le_bytes(wide),
            (false, true) => i128::MIN,
            (false, false) => i128::MAX,
        };
        let v = self.tables.integer(n);
        self.stack.push(v);
        Ok(())
    }

    #[inline]
    fn text(&mut self, length: u64) -> Result<(), FormatError> {
        let bytes = self.input.text(length)?;
        let name = match std::str::from_utf8(bytes) {
            Ok(text) => self.tables.names.intern(text)?,
            Err(_) => {
                let text = String::from_utf8_lossy(bytes);
                self.tables
                    .odd
                    .note("texts that are not UTF-8 were read with replacement characters");
                self.tables.names.intern(&text)?
            }
        };
        self.stack.push(Value::text(name));
        Ok(())
    }

    // Memo.

    #[inline]
    fn get(&mut self, at: u32) -> Result<(), FormatError> {
        let v = self.memo.get(at as usize);
        let v = match v.tag() {
            value::NOTHING => return Err(self.fault("there is no such memo entry")),
            value::OPEN => self.close(v.place() as usize)?,
            _ => v,
        };
        self.stack.push(v);
        Ok(())
    }

    /// The references that follow a reference, as the frames of a stack do: as many as are plain and in memory.
    #[inline]
    fn gets(&mut self) {
        let bytes = self.input.rest();
        let mut rest = bytes;
        loop {
            let (at, next) = match rest {
                [b'j', a, b, c, d, next @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]), next),
                [b'h', at, next @ ..] => (u32::from(*at), next),
                _ => break,
            };
            let v = self.memo.get(at as usize);
            if v.is(value::NOTHING) || v.is(value::OPEN) {
                break;
            }
            self.stack.push(v);
            rest = next;
        }
        self.input.advance(bytes.len() - rest.len());
    }

    #[inline]
    fn put(&mut self, at: usize) -> Result<(), FormatError> {
        let Some(top) = self.stack.last().copied() else {
            return Err(self.fault("the stack is empty"));
        };
        let mut kept = top;
        if top.is(value::OPEN)
            && let Some(open) = self.open.get_mut(top.place() as usize)
        {
            if !open.closed.is(value::NOTHING) {
                kept = open.closed;
            } else if open.memo == NO_MEMO {
                open.memo = at as u32;
            } else {
                self.aliases.push((top.place() as usize, at as u32));
            }
        }
        if at == self.memo.len() {
            self.memo.push(kept);
            return Ok(());
        }
        // Every entry takes a few bytes of the file, so a place beyond them is no honest one.
        if at as u64 >= self.at {
            return Err(self.fault("a memo entry far beyond those before it"));
        }
        self.memo.set(at, kept);
        Ok(())
    }

    // Containers.

    fn begin(&mut self, dict: bool) -> Result<(), FormatError> {
        if self.open.len() >= MAX_OPEN {
            let (what, value, limit) =
                ("containers nested to a depth of", MAX_OPEN as u64 + 1, MAX_OPEN as u64);
            return Err(FormatError::TooLarge { section: "memory snapshot", what, value, limit });
        }
        let end = self.held.len();
        let (begin, closed) = (end, Value::NOTHING);
        self.stack.push(Value::new(value::OPEN, self.open.len() as u32));
        self.open.push(Open { dict, begin, end, memo: NO_MEMO, closed, cut: false });
        Ok(())
    }

    /// Before a dictionary or list begins: closes what lies directly below it, where that is finished for certain.
    /// A dictionary that has items takes no dictionary as its next key; a list that has events takes no list.
    #[inline]
    fn next_item(&mut self, dict: bool) -> Result<(), FormatError> {
        let Some(top) = self.stack.last().copied().filter(|v| v.is(value::OPEN)) else {
            return Ok(());
        };
        if self.marks.last() == Some(&self.stack.len()) {
            return Ok(());
        }
        let at = top.place() as usize;
        let Some(open) = self.open.get(at) else { return Ok(()) };
        let finished = open.end > open.begin
            && match open.dict {
                true => true,
                false => {
                    !dict
                        && self.held.get(open.end - 1).is_some_and(|v| self.tables.is_event_run(*v))
                }
            };
        if finished && at + 1 == self.open.len() {
            let begin = open.begin;
            let v = self.close(at)?;
            self.open.pop();
            self.held.truncate(begin);
            self.stack.pop();
            self.stack.push(v);
        }
        Ok(())
    }

    /// Turns an open container into what it stands for.
    fn close(&mut self, at: usize) -> Result<Value, FormatError> {
        let Some(open) = self.open.get(at) else { return Ok(Value::OTHER) };
        if !open.closed.is(value::NOTHING) {
            return Ok(open.closed);
        }
        let items = self.held.get(open.begin..open.end).unwrap_or_default();
        let v = if open.dict { self.tables.dict(items)? } else { self.tables.list(items)? };
        let handle = Value::new(value::OPEN, at as u32);
        let open = &mut self.open[at];
        open.closed = v;
        // The entry may have been written anew since.
        self.memo.replace(open.memo as usize, handle, v);
        if !self.aliases.is_empty() {
            let memo = &mut self.memo;
            self.aliases.retain(|(open, entry)| {
                if *open == at {
                    memo.replace(*entry as usize, handle, v);
                }
                *open != at
            });
        }
        Ok(v)
    }

    #[inline]
    fn resolve(&mut self, v: Value) -> Result<Value, FormatError> {
        if v.is(value::OPEN) { self.close(v.place() as usize) } else { Ok(v) }
    }

    /// The open container below `height` that takes what lies above.
    #[inline]
    fn target(&self, height: usize, dict: bool) -> Result<usize, FormatError> {
        let below =
            height.checked_sub(1).filter(|n| self.marks.last().is_none_or(|mark| n >= mark));
        let below = below.and_then(|n| self.stack.get(n)).filter(|v| v.is(value::OPEN));
        let at = below.map(|v| v.place() as usize);
        match at.and_then(|at| self.open.get(at)) {
            Some(open) if open.dict == dict && open.closed.is(value::NOTHING) => {
                Ok(at.unwrap_or(0))
            }
            _ => Err(self.fault("items for something that is no container or is already finished")),
        }
    }

    /// Closes what lies above `height` and drops what its containers held.
    fn settle(&mut self, height: usize, target: usize) -> Result<(), FormatError> {
        for n in height..self.stack.len() {
            let v = self.stack[n];
            if v.is(value::OPEN) {
                self.stack[n] = self.close(v.place() as usize)?;
            }
        }
        self.open.truncate(target + 1);
        self.held.truncate(self.open[target].end);
        Ok(())
    }

    fn set_items(&mut self, height: usize) -> Result<(), FormatError> {
        let target = self.target(height, true)?;
        if !(self.stack.len() - height).is_multiple_of(2) {
            return Err(self.fault("a key without a value"));
        }
        self.settle(height, target)?;
        self.held.extend_from_slice(&self.stack[height..]);
        self.open[target].end = self.held.len();
        self.stack.truncate(height);
        Ok(())
    }

    fn append(&mut self, height: usize) -> Result<(), FormatError> {
        let target = self.target(height, false)?;
        if self.stack[height..].iter().all(|v| v.is(value::FRAME)) {
            // Nothing to close and nothing to join.
            self.open.truncate(target + 1);
            self.held.truncate(self.open[target].end);
            self.held.extend_from_slice(&self.stack[height..]);
            self.open[target].end = self.held.len();
            self.stack.truncate(height);
            return Ok(());
        }
        self.settle(height, target)?;
        let begin = self.open[target].begin;
        for v in &self.stack[height..] {
            let last = self.held.get(begin..).and_then(|items| items.last().copied());
            if let Some(v) = self.tables.join(last, *v) {
                self.held.push(v);
            }
        }
        self.open[target].end = self.held.len();
        self.stack.truncate(height);
        Ok(())
    }

    fn tuple(&mut self, height: usize) -> Result<(), FormatError> {
        let v = match self.stack[height..] {
            [a, b] => self.tables.pair(a, b),
            _ => None,
        };
        let mut items = Vec::new();
        for v in self.stack.split_off(height) {
            let v = self.resolve(v)?;
            let joined = self.tables.join(items.last().copied(), v);
            items.extend(joined);
        }
        // Any other tuple is read as the list of the same items.
        let v = v.map_or_else(|| self.tables.list(&items), Ok)?;
        self.stack.push(v);
        Ok(())
    }

    /// DICT and LIST: a container from the items above a mark.
    fn filled(&mut self, dict: bool) -> Result<(), FormatError> {
        let height = self.mark()?;
        if dict && !(self.stack.len() - height).is_multiple_of(2) {
            return Err(self.fault("a key without a value"));
        }
        for n in height..self.stack.len() {
            self.stack[n] = self.resolve(self.stack[n])?;
        }
        let items = self.stack.split_off(height);
        self.begin(dict)?;
        self.stack.extend(items);
        let target = self.open.len() - 1;
        self.append_to(target, height + 1);
        Ok(())
    }

    /// Moves settled values from the stack into the container that was opened last.
    fn append_to(&mut self, target: usize, height: usize) {
        let (begin, dict) = (self.open[target].begin, self.open[target].dict);
        for v in &self.stack[height..] {
            let last = self.held.get(begin..).and_then(|items| items.last().copied());
            let joined = if dict { Some(*v) } else { self.tables.join(last, *v) };
            self.held.extend(joined);
        }
        self.open[target].end = self.held.len();
        self.stack.truncate(height);
    }

    // Files that end too early.

    /// Finishes what a cut file had begun, as far as it is whole: lists keep their items, the snapshot its keys,
    /// but an event, block, segment or frame that lacks its end is dropped.
    pub(super) fn salvage(&mut self) -> Result<Value, FormatError> {
        loop {
            let floor = self.marks.last().copied().unwrap_or(0);
            while self.stack.len() > floor + 1 {
                let below = self.stack.len() - 2;
                let fills = |v: Option<&Value>, dict: bool| {
                    let open =
                        v.filter(|v| v.is(value::OPEN)).map(|v| &self.open[v.place() as usize]);
                    open.is_some_and(|o| {
                        o.dict == dict && o.end == o.begin && o.closed.is(value::NOTHING)
                    })
                };
                if fills(self.stack.get(below), false) {
                    self.keep(below + 1, false)?;
                } else if below > floor
                    && self.stack[below].is(value::TEXT)
                    && fills(self.stack.get(below - 1), true)
                {
                    self.keep(below, true)?;
                } else {
                    break;
                }
            }
            let Some(height) = self.marks.pop() else { break };
            let below = height.checked_sub(1).and_then(|n| self.stack.get(n)).copied();
            match below
                .filter(|v| v.is(value::OPEN))
                .and_then(|v| self.open.get(v.place() as usize))
            {
                Some(open) if open.closed.is(value::NOTHING) => {
                    let dict = open.dict;
                    self.keep(height, dict)?;
                }
                _ => self.stack.truncate(height),
            }
        }
        let Some(first) = self.stack.first().copied() else { return Ok(Value::OTHER) };
        self.resolve(first)
    }

    /// Puts what is whole above `height` into the container below.
    fn keep(&mut self, height: usize, dict: bool) -> Result<(), FormatError> {
        let mut whole = Vec::new();
        for v in self.stack.split_off(height) {
            let cut = v.is(value::OPEN) && {
                let open = &self.open[v.place() as usize];
                let items = self.held.get(open.begin..open.end).unwrap_or_default();
                let shape = Tables::shape(items);
                open.dict
                    && (open.cut || items.is_empty())
                    && !matches!(shape, Shape::Root | Shape::Settings)
            };
            let v = if cut { Value::NOTHING } else { self.resolve(v)? };
            whole.push(v);
        }
        if dict {
            whole.truncate(whole.len() / 2 * 2);
            whole = whole
                .chunks_exact(2)
                .filter(|p| !p[1].is(value::NOTHING))
                .flatten()
                .copied()
                .collect();
        } else {
            whole.retain(|v| !v.is(value::NOTHING));
        }
        let target = self.target(height, dict)?;
        self.open[target].cut = true;
        self.stack.extend(whole);
        if dict { self.set_items(height) } else { self.append(height) }
    }

    // Refusals.

    /// The error for an opcode that no snapshot needs.
    #[cold]
    fn refuse(&mut self, opcode: u8) -> Result<FormatError, FormatError> {
        let text = |v: Option<&Value>| {
            v.and_then(|v| v.name()).map(|n| self.tables.names.names.get(n).to_owned())
        };
        let named = match opcode {
            b'c' | b'i' => match (self.input.line()?, self.input.line()?) {
                (Some(module), Some(name)) => Some(format!("{module}.{name}")),
                _ => None,
            },
            0x93 => {
                let at = self.stack.len().saturating_sub(2);
                let parts = self.stack.get(at..).unwrap_or_default();
                match (text(parts.first()), text(parts.get(1))) {
                    (Some(module), Some(name)) => Some(format!("{module}.{name}")),
                    _ => None,
                }
            }
            _ => None,
        };
        let (name, kind) = opcode_name(opcode);
        let found = match (named, kind) {
            (Some(named), _) => {
                format!("asks for `{}`, which could run code", crate::error::shown(&named))
            }
            (None, Kind::Runs) => "could run code".to_owned(),
            (None, Kind::Foreign) => "is one that no snapshot needs".to_owned(),
            (None, Kind::Textual) => {
                "belongs to pickle protocol 0 or 1; dump it again with protocol 2 or later"
                    .to_owned()
            }
            (None, Kind::None) => format!("({opcode:#04x}) does not exist; the file is damaged"),
        };
        Ok(FormatError::NotPlain { opcode: name, offset: self.at, found })
    }
}

enum Kind {
    Runs,
    Foreign,
    Textual,
    None,
}

/// Name of an opcode that is refused, and what is wrong with it.
fn opcode_name(opcode: u8) -> (&'static str, Kind) {
    match opcode {
        b'c' => ("GLOBAL", Kind::Runs),
        0x93 => ("STACK_GLOBAL", Kind::Runs),
        b'R' => ("REDUCE", Kind::Runs),
        b'b' => ("BUILD", Kind::Runs),
        b'i' => ("INST", Kind::Runs),
        b'o' => ("OBJ", Kind::Runs),
        0x81 => ("NEWOBJ", Kind::Runs),
        0x92 => ("NEWOBJ_EX", Kind::Runs),
        0x82 => ("EXT1", Kind::Runs),
        0x83 => ("EXT2", Kind::Runs),
        0x84 => ("EXT4", Kind::Runs),
        b'P' => ("PERSID", Kind::Runs),
        b'Q' => ("BINPERSID", Kind::Runs),
        0x96 => ("BYTEARRAY8", Kind::Foreign),
        0x97 => ("NEXT_BUFFER", Kind::Foreign),
        0x98 => ("READONLY_BUFFER", Kind::Foreign),
        b'B' => ("BINBYTES", Kind::Foreign),
        b'C' => ("SHORT_BINBYTES", Kind::Foreign),
        0x8e => ("BINBYTES8", Kind::Foreign),
        0x8f => ("EMPTY_SET", Kind::Foreign),
        0x90 => ("ADDITEMS", Kind::Foreign),
        0x91 => ("FROZENSET", Kind::Foreign),
        b'0' => ("POP", Kind::Foreign),
        b'1' => ("POP_MARK", Kind::Foreign),
        b'2' => ("DUP", Kind::Foreign),
        b'T' => ("BINSTRING", Kind::Foreign),
        b'U' => ("SHORT_BINSTRING", Kind::Foreign),
        b'I' => ("INT", Kind::Textual),
        b'L' => ("LONG", Kind::Textual),
        b'F' => ("FLOAT", Kind::Textual),
        b'S' => ("STRING", Kind::Textual),
        b'V' => ("UNICODE", Kind::Textual),
        b'p' => ("PUT", Kind::Textual),
        b'g' => ("GET", Kind::Textual),
        _ => ("byte", Kind::None),
    }
}
