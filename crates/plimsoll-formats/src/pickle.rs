//! A symbolic pickle machine, protocols 0 to 5. It builds a graph of what a pickle *says* and runs nothing: a
//! global is a name, a call is a node that holds the callee and its arguments, a build is a state attached to a
//! node. What the calls would mean is for the reader of the graph to judge.
//!
//! The graph is an arena, so neither building nor dropping it recurses, and a node may refer to itself. Every
//! opcode adds at most one node; nodes and kept text are capped.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use crate::FormatError;

/// Most nodes in one graph. Twenty per tensor are usual.
pub(crate) const MAX_NODES: u64 = 1 << 23;
/// Most bytes of text kept in one graph.
pub(crate) const MAX_TEXT: u64 = 64 << 20;
/// Longest line of the textual opcodes.
const MAX_LINE: u64 = 1 << 16;
/// Longest big integer that is kept, in bytes.
const MAX_BIG: u64 = 32;

const SECTION: &str = "pickle";

/// A node of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a pickle says.
#[derive(Debug)]
pub(crate) enum Node {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits: its little-endian bytes, where they are few.
    Big(Box<[u8]>),
    Float(f64),
    Text(Box<str>),
    /// Bytes: how many. Their content is never needed.
    Bytes(#[expect(dead_code, reason = "shown when a graph is printed")] u64),
    List(Vec<NodeId>),
    Tuple(Vec<NodeId>),
    Dict(Vec<(NodeId, NodeId)>),
    /// A class or function: `module.name`.
    Global(Box<str>),
    /// A reference outside the pickle; in checkpoints, a storage.
    Persistent(NodeId),
    Call(Box<Call>),
}

/// Something called, or an object made: what was called with what, and what was put into it afterwards.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) callee: NodeId,
    pub(crate) arguments: NodeId,
    pub(crate) state: Option<NodeId>,
    pub(crate) items: Vec<NodeId>,
    pub(crate) pairs: Vec<(NodeId, NodeId)>,
}

/// The graph of one pickle.
#[derive(Debug)]
pub(crate) struct Pickle {
    nodes: Vec<Node>,
    pub(crate) root: NodeId,
}

impl Pickle {
    pub(crate) fn get(&self, id: NodeId) -> &Node {
        self.nodes.get(id.index()).unwrap_or(&Node::None)
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn text(&self, id: NodeId) -> Option<&str> {
        match self.get(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn global(&self, id: NodeId) -> Option<&str> {
        match self.get(id) {
            Node::Global(name) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn count(&self, id: NodeId) -> Option<u64> {
        match self.get(id) {
            Node::Int(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    /// The elements of a tuple or list.
    pub(crate) fn elements(&self, id: NodeId) -> Option<&[NodeId]> {
        match self.get(id) {
            Node::Tuple(items) | Node::List(items) => Some(items),
            _ => None,
        }
    }
}

/// Bytes of a pickle, with the position that messages name.
pub(crate) struct Input<R> {
    reader: R,
    position: u64,
}

impl<R: BufRead> Input<R> {
    /// Begins at `position` of the file or record that `reader` stands in.
    pub(crate) fn new(reader: R, position: u64) -> Self {
        Input { reader, position }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn short(&self, length: u64, got: u64) -> FormatError {
        FormatError::Truncated {
            section: SECTION,
            offset: self.position,
            end: self.position.saturating_add(length),
            available: self.position.saturating_add(got),
        }
    }

    fn io(&self, e: &std::io::Error) -> FormatError {
        FormatError::Io { section: SECTION, offset: self.position, reason: e.to_string() }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        let mut bytes = [0; N];
        let mut got = 0;
        while let Some(rest) = bytes.get_mut(got..).filter(|rest| !rest.is_empty()) {
            match self.reader.read(rest) {
                Ok(0) => return Err(self.short(N as u64, got as u64)),
                Ok(n) => got += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.io(&e)),
            }
        }
        self.position += N as u64;
        Ok(bytes)
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, FormatError> {
        let mut bytes = Vec::new();
        let got = (&mut self.reader).take(length).read_to_end(&mut bytes);
        let got = got.map_err(|e| self.io(&e))? as u64;
        if got < length {
            return Err(self.short(length, got));
        }
        self.position += length;
        Ok(bytes)
    }

    fn skip(&mut self, length: u64) -> Result<(), FormatError> {
        let mut rest = (&mut self.reader).take(length);
        let got = std::io::copy(&mut rest, &mut std::io::sink()).map_err(|e| self.io(&e))?;
        if got < length {
            return Err(self.short(length, got));
        }
        self.position += length;
        Ok(())
    }

    fn line(&mut self) -> Result<String, FormatError> {
        let mut line = Vec::new();
        let got = (&mut self.reader).take(MAX_LINE).read_until(b'\n', &mut line);
        let got = got.map_err(|e| self.io(&e))? as u64;
        if line.pop() != Some(b'\n') {
            return Err(match got {
                MAX_LINE => {
                    let (what, value, limit) = ("a line longer than", MAX_LINE, MAX_LINE);
                    FormatError::TooLarge { section: SECTION, what, value, limit }
                }
                got => self.short(got + 1, got),
            });
        }
        self.position += got;
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

/// Reads one pickle, up to its STOP, and leaves `input` behind it.
pub(crate) fn load<R: BufRead>(input: &mut Input<R>) -> Result<Pickle, FormatError> {
    let mut machine = Machine {
        input,
        nodes: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        text: 0,
        opcode: 0,
        at: 0,
    };
    loop {
        machine.at = machine.input.position();
        let [opcode] = machine.input.array()?;
        machine.opcode = opcode;
        if opcode == b'.' {
            let root = machine.pop()?;
            return Ok(Pickle { nodes: machine.nodes, root });
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a, R> {
    input: &'a mut Input<R>,
    nodes: Vec<Node>,
    stack: Vec<NodeId>,
    /// Heights of the stack where a MARK was put.
    marks: Vec<usize>,
    memo: HashMap<u32, NodeId>,
    /// Bytes of text kept so far.
    text: u64,
    opcode: u8,
    at: u64,
}

impl<R: BufRead> Machine<'_, R> {
    fn step(&mut self, opcode: u8) -> Result<(), FormatError> {
        match opcode {
            // Protocol and framing.
            0x80 => {
                let [version] = self.input.array()?;
                if version > 5 {
                    return Err(self
                        .fault("a pickle protocol above 5; save the file again with protocol 2"));
                }
                Ok(())
            }
            0x95 => self.input.array::<8>().map(drop),
            // Stack.
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => {
                // A pop on top of a mark removes the mark.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                    return Ok(());
                }
                self.pop().map(drop)
            }
            b'1' => self.drain_to_mark().map(drop),
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
                Ok(())
            }
            // Constants and numbers.
            b'N' => self.push(Node::None),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            b'J' | b'K' | b'M' | b'I' | b'L' | 0x8a | 0x8b => self.integer(opcode),
            b'G' => {
                let value = f64::from_be_bytes(self.input.array()?);
                self.push(Node::Float(value))
            }
            b'F' => {
                let value = self.input.line()?.trim().parse().unwrap_or(f64::NAN);
                self.push(Node::Float(value))
            }
            // Text and bytes.
            b'U' | b'X' | b'T' | b'B' | b'C' | 0x8c | 0x8d | 0x8e | 0x96 => self.lengthy(opcode),
            b'S' | b'V' => {
                let line = self.input.line()?;
                let text = line.trim_matches(['\'', '"']).to_owned();
                self.push_text(text)
            }
            0x97 => self.push(Node::Bytes(0)),
            0x98 => Ok(()),
            _ => self.containers(opcode),
        }
    }

    /// Opcodes that make and fill lists, tuples, sets and dictionaries.
    fn containers(&mut self, opcode: u8) -> Result<(), FormatError> {
        match opcode {
            b']' => self.push(Node::List(Vec::new())),
            b')' => self.push(Node::Tuple(Vec::new())),
            b'}' => self.push(Node::Dict(Vec::new())),
            0x8f => self.push(Node::List(Vec::new())),
            b'l' | 0x91 => {
                let items = self.drain_to_mark()?;
                self.push(Node::List(items))
            }
            b't' => {
                let items = self.drain_to_mark()?;
                self.push(Node::Tuple(items))
            }
            0x85..=0x87 => {
                let height = self.stack.len().checked_sub(usize::from(opcode - 0x84));
                let height = height.filter(|h| self.marks.last().is_none_or(|mark| h >= mark));
                let height = height.ok_or_else(|| self.fault("the stack is too short"))?;
                let items = self.stack.split_off(height);
                self.push(Node::Tuple(items))
            }
            b'd' => {
                let items = self.drain_to_mark()?;
                let pairs = self.pairs(&items)?;
                self.push(Node::Dict(pairs))
            }
            b'a' => {
                let item = self.pop()?;
                self.append(&[item])
            }
            b'e' | 0x90 => {
                let items = self.drain_to_mark()?;
                self.append(&items)
            }
            b's' => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.insert(&[(key, value)])
            }
            b'u' => {
                let items = self.drain_to_mark()?;
                let pairs = self.pairs(&items)?;
                self.insert(&pairs)
            }
            _ => self.objects(opcode),
        }
    }

    /// Opcodes that name, call, build, remember and refer.
    fn objects(&mut self, opcode: u8) -> Result<(), FormatError> {
        match opcode {
            b'p' | b'q' | b'r' | 0x94 => {
                let key = match opcode {
                    b'p' => self.line_number()?,
                    b'q' => u32::from(self.input.array::<1>()?[0]),
                    b'r' => u32::from_le_bytes(self.input.array()?),
                    _ => self.memo.len() as u32,
                };
                let top = self.top()?;
                self.memo.insert(key, top);
                Ok(())
            }
            b'g' | b'h' | b'j' => {
                let key = match opcode {
                    b'g' => self.line_number()?,
                    b'h' => u32::from(self.input.array::<1>()?[0]),
                    _ => u32::from_le_bytes(self.input.array()?),
                };
                let known = self.memo.get(&key).copied();
                let known = known.ok_or_else(|| self.fault("it recalls what was never stored"))?;
                self.stack.push(known);
                Ok(())
            }
            b'c' => {
                let name = self.named()?;
                self.push(Node::Global(name))
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (module, name) = (self.text_of(module)?, self.text_of(name)?);
                self.push_global(&module, &name)
            }
            b'i' => {
                let name = self.named()?;
                let items = self.drain_to_mark()?;
                let callee = self.node(Node::Global(name))?;
                let arguments = self.node(Node::Tuple(items))?;
                self.push_call(callee, arguments)
            }
            b'o' => {
                let items = self.drain_to_mark()?;
                let (callee, rest) =
                    items.split_first().ok_or_else(|| self.fault("the stack is too short"))?;
                let arguments = self.node(Node::Tuple(rest.to_vec()))?;
                self.push_call(*callee, arguments)
            }
            b'R' | 0x81 => {
                let (arguments, callee) = (self.pop()?, self.pop()?);
                self.push_call(callee, arguments)
            }
            0x92 => {
                let (_keywords, arguments, callee) = (self.pop()?, self.pop()?, self.pop()?);
                self.push_call(callee, arguments)
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                if let Some(Node::Call(call)) = self.nodes.get_mut(target.index()) {
                    call.state = Some(state);
                }
                Ok(())
            }
            b'Q' => {
                let id = self.pop()?;
                self.push(Node::Persistent(id))
            }
            b'P' => {
                let line = self.input.line()?;
                let text = self.charge(line)?;
                let id = self.node(Node::Text(text))?;
                self.push(Node::Persistent(id))
            }
            0x82..=0x84 => {
                Err(self.fault("it uses the extension registry, which no checkpoint does"))
            }
            _ => Err(self.fault("this is no opcode; the pickle is damaged")),
        }
    }

    fn integer(&mut self, opcode: u8) -> Result<(), FormatError> {
        let node = match opcode {
            b'J' => Node::Int(i32::from_le_bytes(self.input.array()?).into()),
            b'K' => Node::Int(self.input.array::<1>()?[0].into()),
            b'M' => Node::Int(u16::from_le_bytes(self.input.array()?).into()),
            b'I' | b'L' => {
                let line = self.input.line()?;
                match line.trim().trim_end_matches('L') {
                    "01" if opcode == b'I' => Node::Bool(true),
                    "00" if opcode == b'I' => Node::Bool(false),
                    digits => digits.parse().map_or_else(|_| Node::Big(Box::default()), Node::Int),
                }
            }
            _ => {
                let length = if opcode == 0x8a {
                    u64::from(self.input.array::<1>()?[0])
                } else {
                    let length = i32::from_le_bytes(self.input.array()?);
                    u64::try_from(length).map_err(|_| self.fault("a negative length"))?
                };
                if length > MAX_BIG {
                    self.input.skip(length)?;
                    return self.push(Node::Big(Box::default()));
                }
                let bytes = self.input.bytes(length)?;
                if bytes.len() > 8 {
                    Node::Big(bytes.into_boxed_slice())
                } else {
                    let sign = bytes.last().is_some_and(|b| b & 0x80 != 0);
                    let mut wide = [if sign { 0xff } else { 0 }; 8];
                    for (to, from) in wide.iter_mut().zip(&bytes) {
                        *to = *from;
                    }
                    Node::Int(i64::from_le_bytes(wide))
                }
            }
        };
        self.push(node)
    }

    /// Text and bytes with a length in front.
    fn lengthy(&mut self, opcode: u8) -> Result<(), FormatError> {
        let length = match opcode {
            b'U' | b'C' | 0x8c => u64::from(self.input.array::<1>()?[0]),
            b'X' | b'B' => u64::from(u32::from_le_bytes(self.input.array()?)),
            b'T' => {
                let length = i32::from_le_bytes(self.input.array()?);
                u64::try_from(length).map_err(|_| self.fault("a negative length"))?
            }
            _ => u64::from_le_bytes(self.input.array()?),
        };
        if matches!(opcode, b'B' | b'C' | 0x8e | 0x96) {
            self.input.skip(length)?;
            return self.push(Node::Bytes(length));
        }
        self.afford(length)?;
        let bytes = self.input.bytes(length)?;
        let text = match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(e) => String::from_utf8_lossy(e.as_bytes()).into_owned(),
        };
        self.push_text(text)
    }

    fn fault(&self, reason: &'static str) -> FormatError {
        FormatError::Pickle { opcode: self.opcode, offset: self.at, reason }
    }

    fn afford(&self, length: u64) -> Result<(), FormatError> {
        let value = self.text.saturating_add(length);
        if value > MAX_TEXT {
            let (what, limit) = ("text in total of", MAX_TEXT);
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        Ok(())
    }

    fn charge(&mut self, text: String) -> Result<Box<str>, FormatError> {
        self.afford(text.len() as u64)?;
        self.text += text.len() as u64;
        Ok(text.into_boxed_str())
    }

    fn node(&mut self, node: Node) -> Result<NodeId, FormatError> {
        let value = self.nodes.len() as u64;
        if value >= MAX_NODES {
            let (what, limit) = ("more objects than", MAX_NODES);
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        self.nodes.push(node);
        Ok(NodeId(value as u32))
    }

    fn push(&mut self, node: Node) -> Result<(), FormatError> {
        let id = self.node(node)?;
        self.stack.push(id);
        Ok(())
    }

    fn push_text(&mut self, text: String) -> Result<(), FormatError> {
        let text = self.charge(text)?;
        self.push(Node::Text(text))
    }

    fn push_call(&mut self, callee: NodeId, arguments: NodeId) -> Result<(), FormatError> {
        let (state, items, pairs) = (None, Vec::new(), Vec::new());
        self.push(Node::Call(Box::new(Call { callee, arguments, state, items, pairs })))
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<(), FormatError> {
        let name = self.charge(format!("{module}.{name}"))?;
        self.push(Node::Global(name))
    }

    /// The two lines behind GLOBAL and INST.
    fn named(&mut self) -> Result<Box<str>, FormatError> {
        let (module, name) = (self.input.line()?, self.input.line()?);
        self.charge(format!("{module}.{name}"))
    }

    fn text_of(&self, id: NodeId) -> Result<String, FormatError> {
        match self.nodes.get(id.index()) {
            Some(Node::Text(text)) => Ok(text.to_string()),
            _ => Err(self.fault("it names a class with something that is not text")),
        }
    }

    fn line_number(&mut self) -> Result<u32, FormatError> {
        let line = self.input.line()?;
        line.trim().parse().map_err(|_| self.fault("it remembers under a key that is no number"))
    }

    fn top(&self) -> Result<NodeId, FormatError> {
        let above_mark = self.marks.last().is_none_or(|mark| self.stack.len() > *mark);
        let top = self.stack.last().copied().filter(|_| above_mark);
        top.ok_or_else(|| self.fault("the stack is too short"))
    }

    fn pop(&mut self) -> Result<NodeId, FormatError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Everything above the last mark, which goes too.
    fn drain_to_mark(&mut self) -> Result<Vec<NodeId>, FormatError> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        let mark = mark.ok_or_else(|| self.fault("there is no mark on the stack"))?;
        Ok(self.stack.split_off(mark))
    }

    fn pairs(&self, items: &[NodeId]) -> Result<Vec<(NodeId, NodeId)>, FormatError> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.fault("a key without a value"));
        }
        Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
    }

    fn append(&mut self, new: &[NodeId]) -> Result<(), FormatError> {
        let target = self.top()?;
        match self.nodes.get_mut(target.index()) {
            Some(Node::List(items)) => items.extend_from_slice(new),
            Some(Node::Call(call)) => call.items.extend_from_slice(new),
            _ => return Err(self.fault("it appends to what is no list")),
        }
        Ok(())
    }

    fn insert(&mut self, new: &[(NodeId, NodeId)]) -> Result<(), FormatError> {
        let target = self.top()?;
        match self.nodes.get_mut(target.index()) {
            Some(Node::Dict(pairs)) => pairs.extend_from_slice(new),
            Some(Node::Call(call)) => call.pairs.extend_from_slice(new),
            _ => return Err(self.fault("it sets items of what is no dictionary")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pickle(bytes: &[u8]) -> Result<Pickle, FormatError> {
        load(&mut Input::new(bytes, 0))
    }

    #[test]
    fn numbers_of_every_width() {
        for (bytes, value) in [
            (&b"J\xfe\xff\xff\xff."[..], -2),
            (b"K\x07.", 7),
            (b"M\x01\x02.", 513),
            (b"I-12\n.", -12),
            (b"L12L\n.", 12),
            (b"\x8a\x00.", 0),
            (b"\x8a\x02\x00\xff.", -256),
            (b"\x8b\x01\x00\x00\x00\x80.", -128),
        ] {
            let pickle = pickle(bytes).unwrap();
            assert!(
                matches!(pickle.get(pickle.root), Node::Int(n) if *n == value),
                "{}",
                bytes.escape_ascii()
            );
        }
    }

    #[test]
    fn faults_name_opcode_and_offset() {
        for (bytes, message) in [
            (&b"t."[..], "opcode 0x74 at byte 0: there is no mark"),
            (b"NR.", "opcode 0x52 at byte 1: the stack is too short"),
            (b"h\x05.", "opcode 0x68 at byte 0: it recalls"),
            (b"]NNs.", "it sets items of what is no dictionary"),
            (b"}(Nu.", "a key without a value"),
            (b"NNa.", "it appends to what is no list"),
            (b"\xff.", "this is no opcode"),
            (b"\x80\x06.", "a pickle protocol above 5"),
            (b"\x82\x01.", "extension registry"),
            (b"T\xff\xff\xff\xff.", "a negative length"),
            (b"X\xff\xff\xff\xffab", "text in total of"),
            (b"X\x05\0\0\0ab", "cut short"),
            (b"N", "cut short"),
            (b"cos\nsystem", "cut short"),
            (b"(N.", "pickle is"),
        ] {
            match pickle(bytes) {
                Err(e) => assert!(e.to_string().contains(message), "{e}"),
                Ok(_) => assert_eq!(message, "pickle is", "{}", bytes.escape_ascii()),
            }
        }
    }

    #[test]
    fn a_call_is_only_a_node() {
        let pickle = pickle(b"cos\nsystem\n(X\x06\0\0\0rm -rftR.").unwrap();
        let Node::Call(call) = pickle.get(pickle.root) else { panic!("{pickle:?}") };
        assert_eq!(pickle.global(call.callee), Some("os.system"));
        let arguments = pickle.elements(call.arguments).unwrap();
        assert_eq!(pickle.text(arguments[0]), Some("rm -rf"));
    }

    #[test]
    fn a_list_may_hold_itself() {
        let pickle = pickle(b"]q\0h\0a.").unwrap();
        assert_eq!(pickle.elements(pickle.root), Some(&[pickle.root][..]));
    }
}
