//! Runs prefill and decode: weights, the passes of all stages over the prompt, then token by token, in the order that
//! `generate` of Transformers does it, and writes the timeline.

use plimsoll_model::Graph;
use plimsoll_model::graph::{Stage, StageKind};
use plimsoll_timeline::{Category, OriginId, PhaseKind, TensorId, Timeline, TimelineBuilder};
use plimsoll_units::{Bytes, DType};

use super::cache::{Counts, Kept, LayerCache};
use super::pass::{Cached, Leaving, Pass, Step};
use super::weights::WeightRow;

/// Everything that a run needs to know.
pub(super) struct Run<'a> {
    pub graph: &'a Graph,
    pub weights: &'a [WeightRow],
    pub caches: &'a [LayerCache],
    /// First stage of the stack that generates.
    pub main: usize,
    pub batch: u64,
    /// Positions that the generating stack sees in its first pass.
    pub prompt: u64,
    /// Token ids of the request per sequence: of the encoder, where there is one.
    pub ids: u64,
    /// Pixels or frames of the towers.
    pub features: Bytes,
    /// Encoder positions.
    pub memory: u64,
    /// Tokens that are generated, the one after prefill included.
    pub generate: u64,
    /// Rows of logits per sequence in the first pass.
    pub logit_rows: u64,
    /// Width of logits; 0 where the model has none.
    pub outputs: u64,
    pub compute: DType,
    pub cache: DType,
    /// Passes by block: over the prompt, at the first and at the last decoded token.
    pub prefill: &'a [Pass],
    pub decode: Option<(&'a [Pass], &'a [Pass])>,
    /// Rotary tables of a position: elements, 0 for none.
    pub rotary: u64,
    /// Written-out attention adds a mask of this type.
    pub mask: bool,
    /// Library workspaces that the framework's allocator holds.
    pub workspace: Bytes,
}

/// Steps of decoding that are replayed one by one; more are thinned out, the last one always included.
const DECODE_EVENTS: u64 = 60_000;

struct Simulation<'a> {
    run: &'a Run<'a>,
    t: TimelineBuilder,
    /// Origins of each stage by label.
    origins: Vec<Vec<(&'static str, OriginId)>>,
    misc: Misc,
    boundaries: Vec<Option<TensorId>>,
    /// Cached tensors of each layer of the generating stack.
    cached: Vec<[Option<TensorId>; 5]>,
    embedding: Option<TensorId>,
    /// Outputs of earlier stacks.
    memory: Vec<TensorId>,
}

struct Misc {
    inputs: OriginId,
    features: OriginId,
    library: OriginId,
    rotary: OriginId,
    mask: OriginId,
    next: OriginId,
    upcast: OriginId,
    probabilities: OriginId,
    /// By kind of cache: all tokens, a window, cross-attention, states.
    caches: [OriginId; 4],
}

/// Simulates one rank.
pub(super) fn simulate(run: &Run<'_>) -> Timeline {
    let mut t = TimelineBuilder::new();
    let misc = Misc {
        inputs: t.origin("", "token ids and mask"),
        features: t.origin("", "pixels or frames"),
        library: t.origin("", "cuBLAS workspace"),
        rotary: t.origin("", "rotary tables"),
        mask: t.origin("", "attention mask"),
        next: t.origin("head", "next-token logits in F32"),
        upcast: t.origin("head", "logits in F32"),
        probabilities: t.origin("head", "probabilities"),
        caches: CACHES.map(|what| t.origin("", what)),
    };
    let mut s = Simulation {
        run,
        origins: run.graph.stages.iter().map(|_| Vec::new()).collect(),
        misc,
        boundaries: vec![None; run.graph.boundaries as usize],
        cached: vec![[None; 5]; run.caches.len()],
        embedding: None,
        memory: Vec::new(),
        t,
    };
    s.load();
    s.prefill();
    s.t.finish()
}

/// Origins of cached tensors.
pub(super) const CACHES: [&str; 4] = ["full layers", "window layers", "cross-attention", "states"];

impl Simulation<'_> {
    fn load(&mut self) {
        self.t.phase(PhaseKind::Load, 0);
        let mut known: Vec<(&'static str, OriginId)> = Vec::new();
        for row in self.run.weights {
            let origin = match known.iter().find(|(g, _)| *g == row.group) {
                Some((_, origin)) => *origin,
                None => {
                    let origin = self.t.origin("", row.group);
                    known.push((row.group, origin));
                    origin
                }
            };
            // A hostile count must not decide how long the timeline is.
            let copies = row.count.clamp(1, 1024);
            for _ in 0..copies {
                self.t.alloc(row.bytes.share(copies), Category::Parameters, origin);
            }
        }
        self.t.alloc(self.run.workspace, Category::Workspace, self.misc.library);
    }

    fn prefill(&mut self) {
        let run = self.run;
        self.t
            .phase(if run.caches.is_empty() { PhaseKind::Forward } else { PhaseKind::Prefill }, 0);
        let ids = Bytes::new(8) * run.batch.saturating_mul(run.ids);
        for _ in 0..2 {
            self.t.alloc(ids, Category::Inputs, self.misc.inputs);
        }
        if !run.features.is_zero() {
            self.t.alloc(run.features, Category::Inputs, self.misc.features);
        }
        self.stages(0, run.prefill, run.prompt, Kept::Prompt(run.prompt));
        let logits = self.take_output();
        if run.generate == 0 || run.caches.is_empty() {
            return;
        }
        let mut held = self.next_token(logits, run.logit_rows);
        let last = run.generate.saturating_sub(1);
        let Some((first_pass, last_pass)) = run.decode.filter(|_| last > 0) else { return };
        let per_step = 4 * (run.caches.len() as u64).max(1);
        let stride = last.div_ceil((DECODE_EVENTS / per_step).clamp(4, 256));
        let mut token = 1;
        loop {
            self.t.phase(PhaseKind::Decode, u32::try_from(token).unwrap_or(u32::MAX));
            let kept = Kept::Grown(run.prompt.saturating_add(token));
            if token == 1 || token == last {
                let passes = if token == last { last_pass } else { first_pass };
                self.stages(run.main, passes, 1, kept);
                let logits = self.take_output();
                held.into_iter().for_each(|id| self.t.free(id));
                held = self.next_token(logits, 1);
            } else {
                for layer in 0..run.caches.len() {
                    self.update(layer, Cached::Keys, kept);
                    self.update(layer, Cached::Values, kept);
                }
            }
            if token == last {
                break;
            }
            token = token.saturating_add(stride).min(last);
        }
    }

    /// The scores of the next token in F32 and their probabilities, which stay through the next pass; `logits` go.
    fn next_token(&mut self, logits: Option<TensorId>, rows: u64) -> Vec<TensorId> {
        let run = self.run;
        let one = DType::F32.bytes(run.batch.saturating_mul(run.outputs));
        let upcast = (rows > 1).then(|| {
            let bytes = one * rows;
            self.t.alloc(bytes, Category::LogitsAndLoss, self.misc.upcast)
        });
        let held = vec![
            self.t.alloc(one, Category::LogitsAndLoss, self.misc.next),
            self.t.alloc(one, Category::LogitsAndLoss, self.misc.probabilities),
        ];
        logits.into_iter().chain(upcast).for_each(|id| self.t.free(id));
        held
    }

    fn take_output(&mut self) -> Option<TensorId> {
        let output = self.run.graph.stages.last().and_then(|s| s.outputs.first()).copied();
        output.and_then(|b| self.boundaries[b.0 as usize].take())
    }

    /// Runs the stages from `from` on. The caller of a layer holds its input until the layer returns, and the body holds
    /// the embedding of its stack until it returns.
    fn stages(&mut self, from: usize, passes: &[Pass], positions: u64, kept: Kept) {
        let run = self.run;
        let mut locals: Vec<TensorId> = Vec::new();
        for (index, stage) in run.graph.stages.iter().enumerate().skip(from) {
            if stage.kind == StageKind::Embedding {
                self.locals(index, positions, kept, &mut locals);
            }
            self.stage(index, stage, &passes[stage.block.0 as usize], kept, &mut locals);
            if stage.kind == StageKind::Head && index + 1 < run.graph.stages.len() {
                let output = stage.outputs.first().and_then(|b| self.boundaries[b.0 as usize]);
                self.memory.extend(output);
            }
        }
        // Features of a tower are part of the embeddings once the pass is over; an encoder's output serves every token.
        if run.memory == 0 {
            for id in std::mem::take(&mut self.memory) {
                self.t.free(id);
            }
        }
    }

    /// Rotary tables and mask, made once per pass over a stack.
    fn locals(&mut self, index: usize, positions: u64, kept: Kept, locals: &mut Vec<TensorId>) {
        let run = self.run;
        if index < run.main || run.caches.is_empty() {
            return;
        }
        if run.rotary > 0 {
            let bytes = run.compute.bytes(positions.saturating_mul(run.rotary));
            for _ in 0..2 {
                locals.push(self.t.alloc(bytes, Category::Activations, self.misc.rotary));
            }
        }
        if run.mask {
            let (Kept::Prompt(keys) | Kept::Grown(keys)) = kept;
            let cells = run.batch.saturating_mul(positions).saturating_mul(keys);
            let bytes = run.compute.bytes(cells);
            locals.push(self.t.alloc(bytes, Category::Activations, self.misc.mask));
        }
    }

    fn stage(
        &mut self,
        index: usize,
        stage: &Stage,
        pass: &Pass,
        kept: Kept,
        locals: &mut Vec<TensorId>,
    ) {
        let origins = self.origins_of(index, stage, pass);
        let input = stage.inputs.first().copied();
        let mut slots: Vec<Option<TensorId>> = vec![None; pass.slots];
        let mut returned = false;
        for step in &pass.steps {
            match *step {
                Step::Alloc { slot, bytes, category, label } => {
                    let origin = origins[label as usize];
                    slots[slot as usize] = Some(self.t.alloc(bytes, category, origin));
                }
                Step::Free { slot } => {
                    if let Some(id) = slots[slot as usize].take() {
                        self.t.free(id);
                    }
                }
                Step::Update(what) => {
                    let layer = stage.layer.map_or(usize::MAX, |l| l as usize);
                    self.update(layer, what, kept);
                }
                Step::BodyReturns => {
                    self.body_returns(input.map(|b| b.0 as usize), locals);
                    returned = true;
                }
            }
        }
        let output = stage.outputs.first().map(|b| b.0 as usize);
        let leaving = match pass.leaving {
            Leaving::Slot(slot) => slots[slot as usize].take(),
            Leaving::Input => input.and_then(|b| self.boundaries[b.0 as usize].take()),
        };
        if let Some(output) = output {
            self.boundaries[output] = leaving;
        }
        if stage.kind == StageKind::Embedding {
            self.embedding = leaving;
        } else if !returned
            && let Some(id) = input.and_then(|b| self.boundaries[b.0 as usize].take())
            && Some(id) != self.embedding
            && !self.memory.contains(&id)
        {
            self.t.free(id);
        }
        if stage.kind == StageKind::Head && !returned {
            self.body_returns(None, locals);
        }
        for id in slots.into_iter().flatten() {
            self.t.free(id);
        }
    }

    fn origins_of(&mut self, index: usize, stage: &Stage, pass: &Pass) -> Vec<OriginId> {
        let mut origins = Vec::with_capacity(pass.labels.len());
        for (label, _) in &pass.labels {
            let known = self.origins[index].iter().find(|(l, _)| l == label);
            origins.push(match known {
                Some((_, origin)) => *origin,
                None => {
                    let origin = self.t.origin(&stage.name, label);
                    self.origins[index].push((label, origin));
                    origin
                }
            });
        }
        origins
    }

    fn body_returns(&mut self, input: Option<usize>, locals: &mut Vec<TensorId>) {
        let input = input.and_then(|b| self.boundaries[b].take());
        let embedding = self.embedding.take();
        // An embedding that left as the stack's output belongs to what comes next.
        let left = |id: &TensorId, s: &Self| s.boundaries.contains(&Some(*id));
        let gone: Vec<TensorId> = input.into_iter().chain(embedding).collect();
        for id in gone {
            if !left(&id, self) {
                self.t.free(id);
            }
        }
        locals.drain(..).for_each(|id| self.t.free(id));
    }

    /// `torch.cat` makes the new tensor before the variable lets go of the old one. States are written in place.
    fn update(&mut self, layer: usize, what: Cached, kept: Kept) {
        let run = self.run;
        let Some(cache) = run.caches.get(layer) else { return };
        let (at, kind) = match what {
            Cached::Keys => (0, usize::from(cache.window.is_some())),
            Cached::Values => (1, usize::from(cache.window.is_some())),
            Cached::CrossKeys => (2, 2),
            Cached::CrossValues => (3, 2),
            Cached::State => (4, 3),
        };
        let old = self.cached[layer][at];
        if old.is_some() && matches!(what, Cached::State | Cached::CrossKeys | Cached::CrossValues)
        {
            return;
        }
        let counts = Counts { batch: run.batch, tokens: kept, memory: run.memory };
        let bytes = cache.bytes(what, &counts, run.cache, run.compute);
        let new = self.t.alloc(bytes, Category::KvCache, self.misc.caches[kind]);
        self.cached[layer][at] = Some(new);
        if let Some(old) = old {
            self.t.free(old);
        }
    }
}
