//! From the graph of a pickle to named tensors. The walk is a loop over an explicit stack, enters each
//! container once however often it is referred to, and caps depth, names and the number of tensors.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use plimsoll_units::Bytes;

use super::classes::{self, Element};
use super::{CheckpointTensor, SECTION, Storage, StorageId};
use crate::error::shown;
use crate::pickle::{Call, Node, NodeId, Pickle};
use crate::{Diagnostic, FormatError};

/// Deepest nesting of dictionaries, lists and modules that is followed.
pub const MAX_DEPTH: usize = 256;
/// Longest name of a tensor, in bytes.
pub const MAX_NAME: usize = 4096;
/// Most tensors.
pub const MAX_TENSORS: usize = 1 << 20;
/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Most bytes of names, over all tensors.
const MAX_NAMES: usize = 128 << 20;
/// Wrappers (parameter, subclass) around one tensor that are looked through.
const MAX_WRAPPERS: usize = 8;

/// What rebuilds a tensor of a class of its own: function, class, the function's arguments, state.
const FROM_TYPE: &str = "torch._tensor._rebuild_from_type_v2";

/// What a graph holds.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) tensors: Vec<CheckpointTensor>,
    pub(super) storages: Vec<Storage>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// Finds storages and tensors, and lists the classes that are not known.
pub(super) fn find(graph: &Pickle) -> Result<Found, FormatError> {
    let mut walk = Walk { graph, found: Found::default(), by_key: HashMap::new(), names: 0 };
    let mut unknown: BTreeSet<&str> = BTreeSet::new();
    for node in graph.nodes() {
        match node {
            Node::Persistent(id) => walk.storage(*id)?,
            Node::Call(call) => {
                unknown.extend(graph.global(call.callee).filter(|name| !classes::is_known(name)));
            }
            _ => {}
        }
    }
    let unknown = unknown.into_iter().map(|name| Diagnostic::UnknownGlobal { name: shown(name) });
    walk.found.diagnostics.extend(unknown);
    walk.run()?;
    Ok(walk.found)
}

struct Walk<'a> {
    graph: &'a Pickle,
    found: Found,
    by_key: HashMap<&'a str, StorageId>,
    /// Bytes of names made so far.
    names: usize,
}

/// What a persistent id says of a storage.
struct StorageRef<'a> {
    key: &'a str,
    location: &'a str,
    element: Element,
    elements: u64,
}

/// A place still to be searched.
struct Place {
    node: NodeId,
    name: String,
    depth: usize,
}

impl<'a> Walk<'a> {
    /// `("storage", class, key, location, number of elements, ...)`, or `None` for any other reference.
    fn storage_ref(&self, id: NodeId) -> Option<StorageRef<'a>> {
        let [tag, class, key, location, elements, ..] = *self.graph.elements(id)? else {
            return None;
        };
        if self.graph.text(tag)? != "storage" {
            return None;
        }
        Some(StorageRef {
            key: self.graph.text(key)?,
            location: self.graph.text(location).unwrap_or(""),
            element: classes::storage(self.graph.global(class)?)?,
            elements: self.graph.count(elements)?,
        })
    }

    /// Registers a storage; the same key again changes nothing but a larger size.
    fn storage(&mut self, id: NodeId) -> Result<(), FormatError> {
        let Some(storage) = self.storage_ref(id) else { return Ok(()) };
        let Some(bytes) = storage.elements.checked_mul(storage.element.size) else {
            let (field, found) = ("as number of elements", storage.elements);
            let accepted = "a size below 2^64 bytes";
            return Err(FormatError::invalid(SECTION, storage.key, field, found, accepted));
        };
        let bytes = Bytes::new(bytes);
        match self.by_key.get(storage.key) {
            Some(known) => {
                if let Some(known) = self.found.storages.get_mut(known.0) {
                    known.bytes = known.bytes.max(bytes);
                }
            }
            None => {
                self.charge(storage.key.len() + storage.location.len())?;
                self.by_key.insert(storage.key, StorageId(self.found.storages.len()));
                self.found.storages.push(Storage {
                    key: storage.key.to_owned(),
                    location: storage.location.to_owned(),
                    bytes,
                });
            }
        }
        Ok(())
    }

    fn charge(&mut self, length: usize) -> Result<(), FormatError> {
        self.names = self.names.saturating_add(length);
        if self.names > MAX_NAMES {
            let (what, value, limit) = ("names in total of", self.names as u64, MAX_NAMES as u64);
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), FormatError> {
        let mut entered = vec![false; self.graph.len()];
        let mut stack = vec![Place { node: self.graph.root, name: String::new(), depth: 0 }];
        let mut children = Vec::new();
        while let Some(place) = stack.pop() {
            let rest = match self.graph.get(place.node) {
                Node::Call(call) => self.tensor(&place.name, call)?,
                _ => true,
            };
            let first_time = entered.get_mut(place.node.index());
            if !rest || first_time.is_none_or(|seen| std::mem::replace(seen, true)) {
                continue;
            }
            if place.depth >= MAX_DEPTH {
                let (field, accepted) = ("a depth above", "less nesting");
                let name = &place.name;
                return Err(FormatError::invalid(SECTION, name, field, MAX_DEPTH, accepted));
            }
            self.children(&place, &mut children)?;
            stack.extend(children.drain(..).rev());
        }
        Ok(())
    }

    /// Whether anything under this node can lead to a tensor.
    fn leads_on(&self, id: NodeId) -> bool {
        match self.graph.get(id) {
            Node::List(items) | Node::Tuple(items) => !items.is_empty(),
            Node::Dict(pairs) => !pairs.is_empty(),
            Node::Call(_) => true,
            _ => false,
        }
    }

    fn children(&mut self, place: &Place, out: &mut Vec<Place>) -> Result<(), FormatError> {
        let graph = self.graph;
        match graph.get(place.node) {
            Node::List(items) | Node::Tuple(items) => self.listed(place, items, out),
            Node::Dict(pairs) => self.keyed(place, pairs, out),
            Node::Call(call) => {
                if let Some(names) = self.named_arguments(call) {
                    for (name, node) in names {
                        self.child(place, Some(name), node, out)?;
                    }
                } else if let Some(arguments) = graph.elements(call.arguments) {
                    match (graph.global(call.callee), arguments) {
                        // A subclass: its inner tensors are in the arguments or the state, and take its name.
                        (Some(FROM_TYPE), [_, _, inner, state, ..]) => {
                            self.child(place, None, *inner, out)?;
                            self.child(place, None, *state, out)?;
                        }
                        _ => self.listed(place, arguments, out)?,
                    }
                }
                self.listed(place, &call.items, out)?;
                self.keyed(place, &call.pairs, out)?;
                match call.state.map(|state| (state, graph.get(state))) {
                    // An object's own dictionary adds nothing to the name.
                    Some((_, Node::Dict(pairs))) => self.keyed(place, pairs, out),
                    Some((_, Node::Tuple(parts))) => {
                        for part in parts {
                            self.child(place, None, *part, out)?;
                        }
                        Ok(())
                    }
                    Some((state, _)) => self.child(place, None, state, out),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Names for the parts of a sparse tensor: its indices and its values.
    fn named_arguments(&self, call: &Call) -> Option<Vec<(&'static str, NodeId)>> {
        if self.graph.global(call.callee)? != "torch._utils._rebuild_sparse_tensor" {
            return None;
        }
        let [_layout, data] = *self.graph.elements(call.arguments)? else { return None };
        let parts = self.graph.elements(data)?;
        // COO has (indices, values, size, ...); the compressed layouts two index tensors in front.
        let names: &[&str] = match parts.get(2).map(|third| self.graph.get(*third)) {
            Some(Node::Call(call)) if self.graph.global(call.callee) != Some("torch.Size") => {
                &["compressed_indices", "plain_indices", "values"]
            }
            _ => &["indices", "values"],
        };
        Some(names.iter().copied().zip(parts.iter().copied()).collect())
    }

    fn listed(
        &mut self,
        place: &Place,
        items: &[NodeId],
        out: &mut Vec<Place>,
    ) -> Result<(), FormatError> {
        for (n, item) in items.iter().enumerate() {
            if self.leads_on(*item) {
                self.child(place, Some(&n.to_string()), *item, out)?;
            }
        }
        Ok(())
    }

    fn keyed(
        &mut self,
        place: &Place,
        pairs: &[(NodeId, NodeId)],
        out: &mut Vec<Place>,
    ) -> Result<(), FormatError> {
        let graph = self.graph;
        for (key, value) in pairs {
            if !self.leads_on(*value) {
                continue;
            }
            let key: Cow<'_, str> = match graph.get(*key) {
                Node::Text(text) => Cow::Borrowed(text),
                Node::Int(n) => n.to_string().into(),
                Node::Float(x) => x.to_string().into(),
                Node::Bool(b) => b.to_string().into(),
                Node::Global(name) => Cow::Borrowed(name),
                _ => "?".into(),
            };
            // A module keeps its tensors and submodules in these; the names people know leave them out.
            let own = matches!(&*key, "_parameters" | "_buffers" | "_modules");
            self.child(place, (!own).then_some(&*key), *value, out)?;
        }
        Ok(())
    }

    fn child(
        &mut self,
        place: &Place,
        segment: Option<&str>,
        node: NodeId,
        out: &mut Vec<Place>,
    ) -> Result<(), FormatError> {
        if !self.leads_on(node) {
            return Ok(());
        }
        let segment = segment.unwrap_or("");
        let length = place.name.len() + 1 + segment.len();
        if length > MAX_NAME {
            let (what, limit) = ("a name longer than", MAX_NAME as u64);
            let value = length as u64;
            return Err(FormatError::TooLarge { section: SECTION, what, value, limit });
        }
        self.charge(length)?;
        let mut name = String::with_capacity(length);
        name.push_str(&place.name);
        if !name.is_empty() && !segment.is_empty() {
            name.push('.');
        }
        name.push_str(segment);
        out.push(Place { node, name, depth: place.depth + 1 });
        Ok(())
    }

    /// Records a call that rebuilds a tensor. Returns whether the call's parts are to be searched as well.
    fn tensor(&mut self, name: &str, call: &'a Call) -> Result<bool, FormatError> {
        let graph = self.graph;
        let (mut callee, mut arguments) = (call.callee, call.arguments);
        let (mut is_parameter, mut search) = (false, false);
        for _ in 0..MAX_WRAPPERS {
            let function = graph.global(callee).unwrap_or("");
            let parts = graph.elements(arguments).unwrap_or(&[]);
            let rebuild = function.strip_prefix("torch._utils._rebuild_").unwrap_or("");
            match (function, rebuild, parts) {
                (_, "parameter" | "parameter_with_state", [inner, ..]) => {
                    let Node::Call(inner) = graph.get(*inner) else { return Ok(true) };
                    is_parameter = true;
                    (callee, arguments) = (inner.callee, inner.arguments);
                }
                (
                    "torch._tensor._rebuild_from_type_v2",
                    _,
                    [inner, _class, inner_arguments, ..],
                ) => {
                    // The state may hold further tensors, as quantized subclasses do.
                    search = true;
                    (callee, arguments) = (*inner, *inner_arguments);
                }
                (_, "tensor" | "tensor_v2" | "qtensor", [storage, offset, size, stride, ..]) => {
                    let view = View {
                        storage: *storage,
                        offset: *offset,
                        size: *size,
                        stride: *stride,
                        dtype: None,
                    };
                    self.view(name, &view, is_parameter)?;
                    return Ok(search);
                }
                (_, "tensor_v3", [storage, offset, size, stride, _, _, dtype, ..]) => {
                    let dtype = Some(*dtype);
                    let view = View {
                        storage: *storage,
                        offset: *offset,
                        size: *size,
                        stride: *stride,
                        dtype,
                    };
                    self.view(name, &view, is_parameter)?;
                    return Ok(search);
                }
                (_, "meta_tensor_no_storage", [dtype, size, ..]) => {
                    self.meta(name, *dtype, *size, is_parameter)?;
                    return Ok(search);
                }
                _ => return Ok(true),
            }
        }
        Ok(true)
    }

    /// A tuple of counts, or a `torch.Size` of one.
    fn counts(&self, name: &str, field: &'static str, id: NodeId) -> Result<Vec<u64>, FormatError> {
        let graph = self.graph;
        let id = match graph.get(id) {
            Node::Call(call) => graph
                .elements(call.arguments)
                .and_then(|arguments| arguments.first().copied())
                .unwrap_or(id),
            _ => id,
        };
        let wrong = |found: String| {
            let accepted = format!("a tuple of at most {MAX_RANK} counts");
            FormatError::invalid(SECTION, name, field, found, accepted)
        };
        let items = graph.elements(id).ok_or_else(|| wrong("that is no tuple".to_owned()))?;
        if items.len() > MAX_RANK {
            return Err(wrong(format!("of {} dimensions", items.len())));
        }
        let count = |id: &NodeId| {
            graph.count(*id).ok_or_else(|| wrong(format!("with {:?}", graph.get(*id))))
        };
        items.iter().map(count).collect()
    }

    fn view(&mut self, name: &str, view: &View, is_parameter: bool) -> Result<(), FormatError> {
        let Node::Persistent(reference) = self.graph.get(view.storage) else {
            let (field, found) = ("as storage", "something else");
            let accepted = "a reference to a storage";
            return Err(FormatError::invalid(SECTION, name, field, found, accepted));
        };
        let Some(storage) = self.storage_ref(*reference) else {
            let (field, found) = ("as storage", "a reference of an unknown kind");
            let accepted = "(\"storage\", class, key, location, count)";
            return Err(FormatError::invalid(SECTION, name, field, found, accepted));
        };
        let element = match view.dtype {
            None => storage.element,
            Some(dtype) => self.element(name, dtype)?,
        };
        let shape = self.counts(name, "a size", view.size)?;
        let stride = self.counts(name, "a stride", view.stride)?;
        let offset = self.graph.count(view.offset);
        let bytes = bytes_of(name, &shape, element)?;
        if shape.len() != stride.len() {
            let (field, found) = ("as number of strides", stride.len());
            return Err(FormatError::invalid(SECTION, name, field, found, shape.len()));
        }
        let id = self.by_key.get(storage.key).copied();
        let available = id.and_then(|id| self.found.storages.get(id.0)).map(|s| s.bytes.get());
        let end = end_of(offset, &shape, &stride, element.size);
        if end.is_none() || end > available {
            let found = end.map_or("beyond 2^64".to_owned(), |end| format!("at byte {end}"));
            let accepted =
                format!("at most {}, the end of its storage", available.unwrap_or_default());
            return Err(FormatError::invalid(SECTION, name, "an end", found, accepted));
        }
        let at = offset.unwrap_or(0).saturating_mul(element.size);
        self.push(name, shape, element, bytes, (id, at), is_parameter)
    }

    fn meta(
        &mut self,
        name: &str,
        dtype: NodeId,
        size: NodeId,
        is_parameter: bool,
    ) -> Result<(), FormatError> {
        let element = self.element(name, dtype)?;
        let shape = self.counts(name, "a size", size)?;
        let bytes = bytes_of(name, &shape, element)?;
        self.found.diagnostics.push(Diagnostic::MetaTensor { tensor: shown(name) });
        self.push(name, shape, element, bytes, (None, 0), is_parameter)
    }

    fn element(&self, name: &str, dtype: NodeId) -> Result<Element, FormatError> {
        let global = self.graph.global(dtype).unwrap_or("nothing");
        classes::dtype(global).ok_or_else(|| {
            let accepted = "an element type of torch";
            FormatError::invalid(SECTION, name, "element type", global, accepted)
        })
    }

    fn push(
        &mut self,
        name: &str,
        shape: Vec<u64>,
        element: Element,
        bytes: u64,
        (storage, offset): (Option<StorageId>, u64),
        is_parameter: bool,
    ) -> Result<(), FormatError> {
        if self.found.tensors.len() >= MAX_TENSORS {
            let (what, limit) = ("more tensors than", MAX_TENSORS as u64);
            return Err(FormatError::TooLarge { section: SECTION, what, value: limit, limit });
        }
        self.found.tensors.push(CheckpointTensor {
            name: name.to_owned(),
            shape,
            dtype: element.dtype,
            type_name: Cow::Borrowed(element.name),
            bytes: Bytes::new(bytes),
            storage,
            storage_offset: Bytes::new(offset),
            is_parameter,
        });
        Ok(())
    }
}

/// The arguments of a rebuild function.
struct View {
    storage: NodeId,
    offset: NodeId,
    size: NodeId,
    stride: NodeId,
    dtype: Option<NodeId>,
}

fn bytes_of(name: &str, shape: &[u64], element: Element) -> Result<u64, FormatError> {
    let bytes = shape.iter().try_fold(element.size, |n, d| n.checked_mul(*d));
    bytes.ok_or_else(|| {
        let (found, accepted) = (format!("{shape:?}"), "a product below 2^64 bytes");
        FormatError::invalid(SECTION, name, "shape", found, accepted)
    })
}

/// The byte behind the last element that a view reaches; `None` beyond 2^64 or without an offset.
fn end_of(offset: Option<u64>, shape: &[u64], stride: &[u64], size: u64) -> Option<u64> {
    let offset = offset?;
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = offset;
    for (dim, stride) in shape.iter().zip(stride) {
        last = last.checked_add(dim.checked_sub(1)?.checked_mul(*stride)?)?;
    }
    last.checked_add(1)?.checked_mul(size)
}
