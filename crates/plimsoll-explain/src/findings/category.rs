//! What each tensor is for: its stack says what the program was doing, its life decides between what that may mean.
//! Every decision keeps the rule that made it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_formats::snapshot::NameId;
use plimsoll_timeline::Category;
use serde::Serialize;

use super::lives::{Lives, NEVER};
use super::rules::{Doing, Rules, STACK_RULES};
use super::steps::Run;
use crate::recording::Recording;

/// How a category was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Rule {
    /// The file says it (snapshots made from profiler data).
    Stated,
    /// The stack alone decides.
    Stack,
    /// The optimizer allocated it, and it outlives the step.
    KeptByOptimizer,
    /// The optimizer allocated it and let it go within the step.
    ScratchOfOptimizer,
    /// The backward pass allocated it, and it outlives the pass.
    KeptByBackward,
    /// The backward pass allocated it and let it go within the pass.
    ScratchOfBackward,
    /// The backward pass or the optimizer allocated it, the recording ends within, and a parameter has the same size.
    SizeOfParameter,
    /// It was made with the parameters and let go at once.
    ScratchOfLoading,
    /// It was there before the recording, and zero_grad freed it.
    FreedByZeroGrad,
    /// It was there before the recording, and the optimizer's step freed it.
    FreedByOptimizer,
    /// It was there before the recording and stays: parameters, buffers, optimizer states. Where the recording
    /// trains, sizes that come three times are a weight and Adam's two moments.
    Persistent,
    /// It was there before the recording, and its size comes three times: one of Adam's two moments.
    PersistentTriple,
    /// Nothing says.
    None,
}

impl Rule {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Rule::Stated => "the file says so",
            Rule::Stack => "its stack says so",
            Rule::KeptByOptimizer => "allocated by the optimizer, and outlives the step",
            Rule::ScratchOfOptimizer => "allocated by the optimizer and freed within the step",
            Rule::KeptByBackward => "allocated by the backward pass, and outlives it",
            Rule::ScratchOfBackward => "allocated by the backward pass and freed within it",
            Rule::SizeOfParameter => {
                "allocated by the backward pass or the optimizer, not freed, and of the size of a parameter"
            }
            Rule::ScratchOfLoading => "allocated while parameters were made, and freed soon",
            Rule::FreedByZeroGrad => "from before the recording, freed by zero_grad",
            Rule::FreedByOptimizer => "from before the recording, freed by the optimizer's step",
            Rule::Persistent => "from before the recording, and never freed",
            Rule::PersistentTriple => {
                "from before the recording, never freed, of a size that comes three times as a weight and Adam's moments do"
            }
            Rule::None => "nothing tells",
        }
    }
}

/// Category and rule of every tensor.
#[derive(Clone, Debug)]
pub(crate) struct Categories {
    pub of: Vec<(Category, Rule)>,
    /// Stack rule of each origin.
    pub stack_rules: Vec<Option<usize>>,
}

/// The stack rule of each origin of the timeline.
pub(crate) fn stack_rules(recording: &Recording<'_>, rules: &Rules<'_>) -> Vec<Option<usize>> {
    recording.stacks.iter().map(|stack| rules.of_stack(*stack)).collect()
}

/// Decides for every tensor.
pub(crate) fn categories(
    recording: &Recording<'_>,
    lives: &Lives,
    rules: &Rules<'_>,
    stack_rules: Vec<Option<usize>>,
    runs: &[Run],
) -> Categories {
    let sorter = Sorter {
        recording,
        lives,
        rules,
        stack_rules: &stack_rules,
        runs,
        last: recording.timeline.events().len() as u32,
    };
    let mut of: Vec<(Category, Rule)> = (0..recording.timeline.allocations().len())
        .map(|tensor| sorter.stated(tensor).unwrap_or_else(|| sorter.decide(tensor)))
        .collect();
    sorter.triples(&mut of);
    sorter.by_size(&mut of);
    Categories { of, stack_rules }
}

struct Sorter<'a, 's> {
    recording: &'a Recording<'s>,
    lives: &'a Lives,
    rules: &'a Rules<'s>,
    stack_rules: &'a [Option<usize>],
    runs: &'a [Run],
    /// Number of events.
    last: u32,
}

impl Sorter<'_, '_> {
    /// What the file states of a tensor, under the names of torch.profiler.
    fn stated(&self, tensor: usize) -> Option<(Category, Rule)> {
        let snapshot = self.recording.snapshot;
        if snapshot.extras.len() <= 1 {
            return None;
        }
        let event = self.recording.trace_index.get(self.lives.born[tensor] as usize)?;
        let event = self.recording.events().get(*event as usize)?;
        let extra = snapshot.extras.get(event.extra.0 as usize)?;
        let name = |id: NameId| snapshot.names.get(id);
        let category = match name(extra.category?) {
            "PARAMETER" => Category::Parameters,
            "GRADIENT" => Category::Gradients,
            "OPTIMIZER_STATE" => Category::OptimizerStates,
            "ACTIVATION" | "AUTOGRAD_DETAIL" => Category::Activations,
            "INPUT" => Category::Inputs,
            "TEMPORARY" => Category::Workspace,
            _ => return None,
        };
        Some((category, Rule::Stated))
    }

    fn decide(&self, tensor: usize) -> (Category, Rule) {
        let origin = self.recording.timeline.allocations()[tensor].origin.0 as usize;
        let doing = self.stack_rules.get(origin).copied().flatten().map(|r| STACK_RULES[r].doing);
        let Some(doing) = doing else { return self.decide_unseen(tensor) };
        let stack = |category| (category, Rule::Stack);
        match doing {
            Doing::KvCache => stack(Category::KvCache),
            Doing::Communication => stack(Category::Communication),
            Doing::Workspace => stack(Category::Workspace),
            Doing::AccumulateGradient => stack(Category::Gradients),
            Doing::Recompute | Doing::Forward => stack(Category::Activations),
            Doing::Loss => stack(Category::LogitsAndLoss),
            Doing::Inputs => stack(Category::Inputs),
            Doing::ZeroGrad => stack(Category::Gradients),
            Doing::Optimizer if self.outlives_run(tensor) || self.lives.born[tensor] == NEVER => {
                (Category::OptimizerStates, Rule::KeptByOptimizer)
            }
            Doing::Optimizer => (Category::Workspace, Rule::ScratchOfOptimizer),
            Doing::Backward if self.outlives_run(tensor) => {
                (Category::Gradients, Rule::KeptByBackward)
            }
            Doing::Backward => (Category::Activations, Rule::ScratchOfBackward),
            Doing::Load if self.outlives_run(tensor) || self.lives.freed[tensor] == NEVER => {
                stack(Category::Parameters)
            }
            Doing::Load => (Category::Workspace, Rule::ScratchOfLoading),
        }
    }

    /// A tensor whose stack was not recorded or says nothing.
    fn decide_unseen(&self, tensor: usize) -> (Category, Rule) {
        let nothing = (Category::Unknown, Rule::None);
        if self.lives.born[tensor] != NEVER {
            return nothing;
        }
        let freed = self.lives.freed[tensor];
        if freed == NEVER {
            // A recording of one moment shows no life at all.
            let alive = if self.last > 0 { Category::Parameters } else { Category::Unknown };
            let rule = if self.last > 0 { Rule::Persistent } else { Rule::None };
            return (alive, rule);
        }
        match self.freed_by(freed) {
            Some(Doing::ZeroGrad) => (Category::Gradients, Rule::FreedByZeroGrad),
            Some(Doing::Optimizer) => (Category::OptimizerStates, Rule::FreedByOptimizer),
            _ => nothing,
        }
    }

    /// What the stack that freed was doing.
    fn freed_by(&self, event: u32) -> Option<Doing> {
        let index = *self.recording.trace_index.get(event as usize)?;
        self.rules.doing(self.recording.events().get(index as usize)?.stack)
    }

    /// Whether a tensor lives longer than the stretch of events that it was allocated in. What is live at the end of
    /// a recording outlives every stretch but the last.
    fn outlives_run(&self, tensor: usize) -> bool {
        let born = self.lives.born[tensor];
        if born == NEVER {
            return self.last > 0;
        }
        let after = self.runs.partition_point(|run| run.first <= born);
        let end = after.checked_sub(1).map_or(self.last, |at| self.runs[at].end);
        match self.lives.freed[tensor] {
            NEVER => end < self.last,
            freed => freed >= end,
        }
    }

    /// Where the recording trains and shows no state that the optimizer makes or frees, persistent sizes that come in
    /// threes are weights and Adam's two moments.
    fn triples(&self, of: &mut [(Category, Rule)]) {
        let states = of.iter().any(|(category, _)| *category == Category::OptimizerStates);
        if states || !self.runs.iter().any(|run| run.doing == Doing::Optimizer) {
            return;
        }
        let allocations = self.recording.timeline.allocations();
        let mut by_size: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (tensor, (_, rule)) in of.iter().enumerate() {
            if *rule == Rule::Persistent {
                by_size.entry(allocations[tensor].requested.get()).or_default().push(tensor);
            }
        }
        // All of them or none: one size may come three times by chance.
        let triple = |n: usize| n.is_multiple_of(3);
        let all: usize = by_size.values().map(Vec::len).sum();
        let tripled: usize = by_size.values().map(Vec::len).filter(|n| triple(*n)).sum();
        if tripled * 10 < all * 9 {
            return;
        }
        for tensors in by_size.into_values().filter(|tensors| triple(tensors.len())) {
            for tensor in tensors.iter().skip(tensors.len() / 3) {
                of[*tensor] = (Category::OptimizerStates, Rule::PersistentTriple);
            }
        }
    }

    /// The recording may end within a backward pass or a step, so that nothing outlives it: what is still live and has
    /// the size of a parameter is a gradient or a state.
    fn by_size(&self, of: &mut [(Category, Rule)]) {
        let allocations = self.recording.timeline.allocations();
        let size = |tensor: usize| allocations[tensor].requested.get();
        let parameters: BTreeSet<u64> = (of.iter().enumerate())
            .filter(|(_, (category, _))| *category == Category::Parameters)
            .map(|(tensor, _)| size(tensor))
            .collect();
        for (tensor, decided) in of.iter_mut().enumerate() {
            let category = match decided.1 {
                Rule::ScratchOfBackward => Category::Gradients,
                Rule::ScratchOfOptimizer => Category::OptimizerStates,
                _ => continue,
            };
            if self.lives.freed[tensor] == NEVER && parameters.contains(&size(tensor)) {
                *decided = (category, Rule::SizeOfParameter);
            }
        }
    }
}
