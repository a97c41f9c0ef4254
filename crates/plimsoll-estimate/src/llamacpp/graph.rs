//! A compute graph as ggml holds it, as far as memory is concerned: shapes, types, who reads whom, which operators
//! may overwrite their input, which tensors are windows into others. Nothing is computed.

use plimsoll_units::DType;

/// A tensor of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TensorId(pub(super) u32);

impl TensorId {
    pub(super) fn index(self) -> usize {
        self.0 as usize
    }
}

/// A place that tensors live in or operators run on; 0.. are GPUs, [`HOST`] is the CPU.
pub(super) type Place = usize;

/// The CPU.
pub(super) const HOST: Place = usize::MAX;

/// What a tensor is to the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A weight in its own buffer.
    Weight(Place),
    /// A cache in its own buffer.
    Cache(Place),
    /// Filled by the host before each run.
    Input,
    /// The result of an operator.
    Result,
}

/// One tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) role: Role,
    pub(super) dtype: DType,
    pub(super) shape: [u64; 4],
    pub(super) sources: Vec<TensorId>,
    /// The tensor whose memory this one looks into (never itself a window).
    pub(super) window: Option<TensorId>,
    /// The operator may write over an input of the same shape.
    pub(super) in_place: bool,
    /// Never freed.
    pub(super) output: bool,
    /// Scratch that the backend asks for behind the result (flash attention on quantized caches).
    pub(super) scratch: u64,
    /// The scheduler may move it to a GPU although its weight is on the host (all but row look-ups, given a batch).
    pub(super) offloadable: bool,
    /// Reshape, view, permute or transpose: no work, skipped by the scheduler.
    pub(super) is_view_op: bool,
    /// Where the graph's author put it, if anywhere.
    pub(super) pinned: Option<Place>,
}

impl Tensor {
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().fold(1u64, |n, d| n.saturating_mul(*d))
    }

    /// Bytes of the data: whole rows.
    pub(super) fn bytes(&self) -> u64 {
        let rows = self.shape[1..].iter().fold(1u64, |n, d| n.saturating_mul(*d));
        self.dtype.bytes(self.shape[0]).get().saturating_mul(rows)
    }

    /// Bytes that the planner asks for on a GPU.
    pub(super) fn allocation(&self) -> u64 {
        self.bytes().saturating_add(self.scratch)
    }
}

/// The graph under construction and its order of execution.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    pub(super) tensors: Vec<Tensor>,
    /// Operators in order of execution.
    pub(super) nodes: Vec<TensorId>,
    /// Weights, caches and inputs in order of first use.
    pub(super) leaves: Vec<TensorId>,
    seen: Vec<bool>,
}

impl Graph {
    pub(super) fn get(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.index()]
    }

    pub(super) fn get_mut(&mut self, id: TensorId) -> &mut Tensor {
        &mut self.tensors[id.index()]
    }

    fn push(&mut self, tensor: Tensor) -> TensorId {
        let id = TensorId(u32::try_from(self.tensors.len()).unwrap_or(u32::MAX));
        self.tensors.push(tensor);
        id
    }

    fn blank(role: Role, dtype: DType, shape: [u64; 4]) -> Tensor {
        Tensor {
            role,
            dtype,
            shape: shape.map(|d| d.max(1)),
            sources: Vec::new(),
            window: None,
            in_place: false,
            output: false,
            scratch: 0,
            offloadable: true,
            is_view_op: false,
            pinned: None,
        }
    }

    /// A weight of `shape` (innermost first) in its own buffer at `place`.
    pub(super) fn weight(&mut self, dtype: DType, shape: [u64; 4], place: Place) -> TensorId {
        self.push(Self::blank(Role::Weight(place), dtype, shape))
    }

    /// A cache at `place`.
    pub(super) fn cache(&mut self, dtype: DType, shape: [u64; 4], place: Place) -> TensorId {
        self.push(Self::blank(Role::Cache(place), dtype, shape))
    }

    /// An input that the host fills.
    pub(super) fn input(&mut self, dtype: DType, shape: [u64; 4]) -> TensorId {
        self.push(Self::blank(Role::Input, dtype, shape))
    }

    /// An operator with a new result.
    pub(super) fn op(&mut self, dtype: DType, shape: [u64; 4], sources: &[TensorId]) -> TensorId {
        let mut t = Self::blank(Role::Result, dtype, shape);
        t.sources = sources.to_vec();
        self.push(t)
    }

    /// An operator that may overwrite an input of the same shape; the shape is that of the first source.
    pub(super) fn in_place(&mut self, sources: &[TensorId]) -> TensorId {
        let (dtype, shape) = sources
            .first()
            .map_or((DType::F32, [1; 4]), |s| (self.get(*s).dtype, self.get(*s).shape));
        let id = self.op(dtype, shape, sources);
        self.get_mut(id).in_place = true;
        id
    }

    /// An element-wise operator that needs a new result.
    pub(super) fn like(&mut self, sources: &[TensorId]) -> TensorId {
        let id = self.in_place(sources);
        self.get_mut(id).in_place = false;
        id
    }

    /// A matrix product; the row length of the result is the second size of the weight.
    pub(super) fn matmul(&mut self, weight: TensorId, x: TensorId) -> TensorId {
        let (w, s) = (self.get(weight).shape, self.get(x).shape);
        self.op(DType::F32, [w[1], s[1], s[2], s[3]], &[weight, x])
    }

    /// A product with the chosen experts: `[rows, used, tokens]`.
    pub(super) fn matmul_id(&mut self, weight: TensorId, x: TensorId, ids: TensorId) -> TensorId {
        let (w, i) = (self.get(weight).shape, self.get(ids).shape);
        self.op(DType::F32, [w[1], i[0], i[1], 1], &[weight, x, ids])
    }

    /// A window into `source` with a new shape.
    pub(super) fn view(&mut self, source: TensorId, shape: [u64; 4]) -> TensorId {
        let of = self.get(source).window.unwrap_or(source);
        let dtype = self.get(source).dtype;
        let id = self.op(dtype, shape, &[source]);
        let t = self.get_mut(id);
        t.window = Some(of);
        t.is_view_op = true;
        id
    }

    /// Writes `sources[1..]` into `sources[0]`: the result is a window into it.
    pub(super) fn write_into(&mut self, target: TensorId, sources: &[TensorId]) -> TensorId {
        let of = self.get(target).window.unwrap_or(target);
        let (dtype, shape) = (self.get(target).dtype, self.get(target).shape);
        let id = self.op(dtype, shape, sources);
        self.get_mut(id).window = Some(of);
        id
    }

    /// Puts `id` and all that it needs in the order of execution, depth first, sources from left to right.
    pub(super) fn expand(&mut self, id: TensorId) {
        self.seen.resize(self.tensors.len(), false);
        // (tensor, next source to visit); a stack of our own, since graphs of 100 layers are deep.
        let mut stack = vec![(id, 0usize)];
        while let Some((top, next)) = stack.pop() {
            if next == 0 {
                if self.seen[top.index()] {
                    continue;
                }
                self.seen[top.index()] = true;
            }
            let sources = &self.tensors[top.index()].sources;
            if let Some(source) = sources.get(next).copied() {
                stack.push((top, next + 1));
                stack.push((source, 0));
            } else if self.get(top).role == Role::Result {
                self.nodes.push(top);
            } else {
                self.leaves.push(top);
            }
        }
    }
}
