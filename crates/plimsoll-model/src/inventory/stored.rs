//! The inventory of files that exist: every tensor of their headers with its bytes, packed quantized tensors joined to
//! the matrix that they store, equal experts of a layer in one row.

use std::collections::HashMap;

use plimsoll_formats::TensorInfo;
use plimsoll_units::{Bytes, DType};

use super::parts::{Classified, classify};
use super::{Inventory, Parameter, Part};
use crate::arch::{Architecture, StackRole};

/// What a checkpoint stores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredInventory {
    /// One row per matrix or vector, in the order of the headers.
    pub rows: Vec<StoredRow>,
    /// Bytes of buffers that current versions do not load (causal masks, inverse frequencies).
    pub stale: Bytes,
}

/// One logical parameter and what it occupies.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRow {
    /// Name, logical shape (of the matrix before packing) and part.
    pub parameter: Parameter,
    /// Type of the main tensor; for packed weights, the type with its scales where [`DType`] has it.
    pub dtype: Option<DType>,
    /// Bytes of all its tensors: values, scales, zero points, indices; of all `count` experts.
    pub bytes: Bytes,
    /// Belongs to a draft (multi-token prediction) block.
    pub draft: bool,
}

impl StoredInventory {
    /// The logical parameters.
    pub fn inventory(&self) -> Inventory {
        Inventory { parameters: self.rows.iter().map(|row| row.parameter.clone()).collect() }
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> Bytes {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    /// Elements of all rows that are not of a draft, saturating.
    pub fn elements(&self) -> u64 {
        let rows = self.rows.iter().filter(|row| !row.draft);
        rows.fold(0, |n, row| n.saturating_add(row.parameter.elements()))
    }
}

/// What a tensor is to the matrix that it helps to store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The values, one by one.
    Plain,
    /// GPTQ or AWQ integers.
    Qweight,
    /// `compressed-tensors` integers or nibbles.
    Packed,
    /// MXFP4 nibbles, 16 bytes to a block of 32.
    Blocks,
    /// Scales, zero points, group indices, look-up tables.
    Side,
}

/// Suffix, what the logical name ends in, role.
const SUFFIXES: &[(&str, &str, Role)] = &[
    (".qweight", ".weight", Role::Qweight),
    (".qzeros", ".weight", Role::Side),
    (".scales", ".weight", Role::Side),
    (".g_idx", ".weight", Role::Side),
    (".weight_packed", ".weight", Role::Packed),
    (".weight_scale", ".weight", Role::Side),
    (".weight_scale_inv", ".weight", Role::Side),
    (".weight_scale_2", ".weight", Role::Side),
    (".weight_global_scale", ".weight", Role::Side),
    (".weight_zero_point", ".weight", Role::Side),
    (".weight_shape", ".weight", Role::Side),
    (".weight_g_idx", ".weight", Role::Side),
    (".input_scale", ".weight", Role::Side),
    (".input_global_scale", ".weight", Role::Side),
    (".k_scale", ".weight", Role::Side),
    (".v_scale", ".weight", Role::Side),
    (".weight.absmax", ".weight", Role::Side),
    (".weight.quant_map", ".weight", Role::Side),
    (".weight.nested_absmax", ".weight", Role::Side),
    (".weight.nested_quant_map", ".weight", Role::Side),
    (".weight.quant_state.bitsandbytes__nf4", ".weight", Role::Side),
    (".weight.quant_state.bitsandbytes__fp4", ".weight", Role::Side),
    (".SCB", ".weight", Role::Side),
    (".weight_format", ".weight", Role::Side),
    ("_blocks", "", Role::Blocks),
    ("_scales", "", Role::Side),
];

/// Sorts the tensors of a checkpoint into rows. With an architecture, stacks are its own; without one, each prefix of
/// layers counts as a stack, in order of appearance.
pub fn inventory_from_tensors(
    tensors: &[TensorInfo],
    architecture: Option<&Architecture>,
) -> StoredInventory {
    let mut out = StoredInventory::default();
    let mut prefixes: Vec<&str> = Vec::new();
    for group in groups(tensors) {
        let Some(main) = group.main() else { continue };
        let found = classify(&group.name);
        if found.stale {
            out.stale += group.bytes;
            continue;
        }
        let prefix = classify(&main.name).prefix;
        let stack = found.layer.and_then(|_| stack_of(prefix, &found, architecture, &mut prefixes));
        let beyond = match (architecture, stack, found.layer) {
            (Some(a), Some(stack), Some(layer)) => {
                a.stacks.get(stack).is_some_and(|s| !s.shared && layer >= s.layers.len())
            }
            _ => false,
        };
        let (shape, dtype) = group.logical(main);
        out.rows.push(StoredRow {
            parameter: Parameter {
                shape,
                count: group.count,
                stack,
                layer: found.layer,
                part: found.part,
                bias: found.bias,
                frozen: found.part == Part::Router && found.bias && is_correction(&group.name),
                name: group.name.clone(),
            },
            dtype,
            bytes: group.bytes,
            draft: found.draft || beyond,
        });
    }
    out
}

/// A router's correction bias is a buffer, its plain bias is trained.
fn is_correction(name: &str) -> bool {
    ["e_score_correction", "expert_bias", "exp_probs_b"].iter().any(|text| name.contains(text))
}

/// The tensors that store one matrix, and how many equal experts they stand for.
struct Group<'a> {
    name: String,
    count: u64,
    members: Vec<(Role, &'a TensorInfo)>,
    bytes: Bytes,
}

impl<'a> Group<'a> {
    fn find(&self, role: Role) -> Option<&'a TensorInfo> {
        self.members.iter().find(|(r, _)| *r == role).map(|(_, t)| *t)
    }

    fn side(&self, ends: &[&str]) -> Option<&'a TensorInfo> {
        let mut members = self.members.iter();
        members.find(|(_, t)| ends.iter().any(|end| t.name.ends_with(end))).map(|(_, t)| *t)
    }

    /// The tensor with the values. Side tensors alone (a stray scale) store nothing that counts as a matrix.
    fn main(&self) -> Option<&'a TensorInfo> {
        [Role::Qweight, Role::Packed, Role::Blocks, Role::Plain]
            .into_iter()
            .find_map(|role| self.find(role))
            .or_else(|| self.members.first().map(|(_, t)| *t))
    }

    /// Shape before packing, and the storage type.
    fn logical(&self, main: &TensorInfo) -> (Vec<u64>, Option<DType>) {
        if let Some(tensor) = self.find(Role::Qweight) {
            return self.unpack_integers(tensor);
        }
        if let Some(tensor) = self.find(Role::Packed) {
            let (per_element, dtype) = match tensor.dtype {
                Some(DType::U8) => (2, DType::Nvfp4),
                _ => (8, DType::Int4G128),
            };
            return (widen_last(&tensor.shape, per_element), Some(dtype));
        }
        if let Some(tensor) = self.find(Role::Blocks) {
            if let [rows @ .., blocks, bytes] = tensor.shape.as_slice() {
                let mut shape = rows.to_vec();
                shape.push(blocks.saturating_mul(bytes.saturating_mul(2)));
                return (shape, Some(DType::Mxfp4));
            }
            return (tensor.shape.clone(), tensor.dtype);
        }
        if main.dtype == Some(DType::U8) && self.side(&[".quant_map", "__nf4", "__fp4"]).is_some() {
            // bitsandbytes flattens: two values to a byte, the shape is inside an opaque tensor.
            let double = self.side(&[".nested_absmax"]).is_some();
            let dtype = if double { DType::Nf4Dq } else { DType::Nf4 };
            return (vec![main.elements().saturating_mul(2)], Some(dtype));
        }
        if main.dtype == Some(DType::U8) && self.side(&[".weight_scale_2"]).is_some() {
            return (widen_last(&main.shape, 2), Some(DType::Nvfp4));
        }
        (main.shape.clone(), main.dtype)
    }

    /// GPTQ packs along the inputs, AWQ along the outputs; the scales (groups x outputs) tell which, and the zero
    /// points how many bits.
    fn unpack_integers(&self, tensor: &TensorInfo) -> (Vec<u64>, Option<DType>) {
        let (&[rows, columns], Some(scales)) = (tensor.shape.as_slice(), self.side(&[".scales"]))
        else {
            return (tensor.shape.clone(), tensor.dtype);
        };
        let outputs = scales.shape.last().copied().unwrap_or(columns).max(1);
        if outputs != columns {
            // AWQ: 4 bits, eight outputs to a word.
            return (vec![outputs, rows], Some(DType::Int4G128));
        }
        let zeros = self.side(&[".qzeros"]).and_then(|z| z.shape.last()).copied();
        let bits = zeros.map_or(4, |z| z.saturating_mul(32) / outputs).clamp(2, 8);
        let dtype = if bits == 8 { DType::Int8G128 } else { DType::Int4G128 };
        (vec![outputs, rows.saturating_mul(32) / bits], Some(dtype))
    }
}

fn widen_last(shape: &[u64], factor: u64) -> Vec<u64> {
    let mut wide = shape.to_vec();
    if let Some(last) = wide.last_mut() {
        *last = last.saturating_mul(factor);
    }
    wide
}

/// Joins side tensors to their matrices, and equal experts to one row.
fn groups(tensors: &[TensorInfo]) -> Vec<Group<'_>> {
    // Suffixes that other tensors use too (`_scales`) count only beside a packed one.
    let packed: HashMap<&str, ()> = tensors
        .iter()
        .filter_map(|t| t.name.strip_suffix("_blocks").map(|base| (base, ())))
        .collect();
    let mut order: Vec<Group<'_>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for tensor in tensors {
        let (name, role) = logical_name(&tensor.name, &packed);
        match known.get(&name) {
            Some(&at) => {
                if let Some(group) = order.get_mut(at) {
                    group.bytes += tensor.bytes;
                    group.members.push((role, tensor));
                }
            }
            None => {
                known.insert(name.clone(), order.len());
                let members = vec![(role, tensor)];
                order.push(Group { name, count: 1, members, bytes: tensor.bytes });
            }
        }
    }
    merge_experts(order)
}

fn logical_name(name: &str, packed: &HashMap<&str, ()>) -> (String, Role) {
    for (suffix, ending, role) in SUFFIXES {
        let Some(base) = name.strip_suffix(suffix) else { continue };
        if suffix.starts_with('_') && !packed.contains_key(base) {
            continue;
        }
        return (format!("{base}{ending}"), *role);
    }
    (name.to_owned(), Role::Plain)
}

/// `...experts.12.gate_proj.weight` becomes `...experts.*.gate_proj.weight` with a count.
fn merge_experts(groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    let mut merged: Vec<Group<'_>> = Vec::with_capacity(groups.len());
    let mut rows: HashMap<String, usize> = HashMap::new();
    for mut group in groups {
        let Some(starred) = star(&group.name) else {
            merged.push(group);
            continue;
        };
        let same =
            rows.get(&starred).and_then(|at| merged.get_mut(*at)).filter(|first| {
                first.members.len() == group.members.len()
                    && first.members.iter().zip(&group.members).all(|((ra, a), (rb, b))| {
                        ra == rb && a.shape == b.shape && a.dtype == b.dtype
                    })
            });
        match same {
            Some(first) => {
                first.count = first.count.saturating_add(1);
                first.bytes += group.bytes;
            }
            None => {
                rows.insert(starred.clone(), merged.len());
                group.name = starred;
                merged.push(group);
            }
        }
    }
    merged
}

/// The name with the expert's index starred, if it has one.
fn star(name: &str) -> Option<String> {
    let at = name.find(".experts.")? + ".experts.".len();
    let (index, rest) = name.get(at..)?.split_once('.')?;
    if index.is_empty() || !index.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(format!("{}*.{rest}", &name[..at]))
}

fn stack_of<'a>(
    prefix: &'a str,
    found: &Classified<'_>,
    architecture: Option<&Architecture>,
    prefixes: &mut Vec<&'a str>,
) -> Option<usize> {
    let Some(architecture) = architecture else {
        if let Some(known) = prefixes.iter().position(|p| *p == prefix) {
            return Some(known);
        }
        prefixes.push(prefix);
        return Some(prefixes.len() - 1);
    };
    let stacks = &architecture.stacks;
    if found.draft {
        return stacks.iter().position(|s| s.role == StackRole::Draft);
    }
    if let Some(exact) = stacks.iter().position(|s| s.prefix == prefix) {
        return Some(exact);
    }
    let by_role = |role| stacks.iter().position(|s| s.role == role);
    let says = |words: &[&str]| words.iter().any(|w| prefix.contains(w));
    if says(&["vision", "visual", "v.blk"]) {
        return by_role(StackRole::Vision);
    }
    if says(&["audio", "a.blk"]) {
        return by_role(StackRole::Audio);
    }
    if says(&["encoder"]) && by_role(StackRole::Decoder).is_some() {
        return by_role(StackRole::Encoder).or_else(|| by_role(StackRole::Audio));
    }
    by_role(StackRole::Decoder)
        .or_else(|| by_role(StackRole::Encoder))
        .or_else(|| by_role(StackRole::Vision))
}
