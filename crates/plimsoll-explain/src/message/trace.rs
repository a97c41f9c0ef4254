//! Where a program was when memory ran out: the frames of the traceback before the message, and what they say of the
//! phase; and the progress bar.

/// Where a program was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// `train.py:41 in forward`: the deepest frame outside installed packages, else the deepest.
    pub frame: String,
    /// What the program did, as far as frames tell.
    pub phase: Option<Phase>,
}

/// What a program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Weights were read or moved to the device.
    Load,
    /// The forward pass.
    Forward,
    /// Attention.
    Attention,
    /// Logits or loss.
    Loss,
    /// The backward pass.
    Backward,
    /// The optimizer's step.
    Optimizer,
    /// Generation.
    Generate,
    /// The engine's trial run.
    Profile,
    /// The KV cache was allocated.
    KvCache,
    /// CUDA graphs were captured.
    Capture,
}

impl Phase {
    /// In words, after "in".
    pub const fn words(self) -> &'static str {
        match self {
            Phase::Load => "loading",
            Phase::Forward => "the forward pass",
            Phase::Attention => "attention",
            Phase::Loss => "logits and loss",
            Phase::Backward => "the backward pass",
            Phase::Optimizer => "the optimizer's step",
            Phase::Generate => "generation",
            Phase::Profile => "the engine's trial run",
            Phase::KvCache => "the allocation of the KV cache",
            Phase::Capture => "the capture of CUDA graphs",
        }
    }
}

/// The frames of one traceback.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    own: Option<String>,
    deepest: Option<String>,
    phase: Option<Phase>,
}

/// Parts of a path or function that tell the phase; the first that matches a frame counts, later frames win, except
/// that a step of the optimizer or of backward is not undone by what it calls.
const SIGNS: &[(&str, Phase)] = &[
    ("capture_model", Phase::Capture),
    ("cuda_graph_runner", Phase::Capture),
    ("initialize_kv_cache", Phase::KvCache),
    ("init_memory_pool", Phase::KvCache),
    ("_allocate_kv_cache", Phase::KvCache),
    ("profile_run", Phase::Profile),
    ("determine_num_available_blocks", Phase::Profile),
    ("determine_available_memory", Phase::Profile),
    ("/optim/", Phase::Optimizer),
    ("optimizer_step", Phase::Optimizer),
    ("_take_model_step", Phase::Optimizer),
    ("_run_backward", Phase::Backward),
    ("autograd/", Phase::Backward),
    ("cross_entropy", Phase::Loss),
    ("_loss", Phase::Loss),
    ("lm_head", Phase::Loss),
    ("/loss", Phase::Loss),
    ("scaled_dot_product", Phase::Attention),
    ("attention", Phase::Attention),
    ("from_pretrained", Phase::Load),
    ("load_model", Phase::Load),
    ("load_weights", Phase::Load),
    ("load_state_dict", Phase::Load),
    ("in _apply", Phase::Load),
    ("generation/utils", Phase::Generate),
    ("in generate", Phase::Generate),
    ("in forward", Phase::Forward),
];

/// Folders of installed packages.
const INSTALLED: [&str; 4] = ["site-packages", "dist-packages", "lib/python", "lib\\python"];

impl Trace {
    /// Takes a line `File "path", line 12, in name`.
    pub fn frame(&mut self, text: &str) {
        let Some((_, rest)) = text.split_once("File \"") else { return };
        let Some((path, rest)) = rest.split_once('"') else { return };
        let Some(rest) = rest.strip_prefix(", line ") else { return };
        let (number, rest) = rest.split_once(',').unwrap_or((rest.trim(), ""));
        let function = rest.trim();
        if path.len() > 400 || number.len() > 9 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return;
        }
        let haystack = format!("{path} {function}");
        let sign = SIGNS.iter().find(|(sign, _)| haystack.contains(sign)).map(|(_, phase)| *phase);
        let lasting = matches!(
            self.phase,
            Some(
                Phase::Optimizer
                    | Phase::Backward
                    | Phase::Profile
                    | Phase::KvCache
                    | Phase::Capture
            )
        );
        if let Some(sign) = sign
            && (!lasting || sign > Phase::Loss)
            && !(self.phase == Some(Phase::Loss) && sign == Phase::Forward)
            && !(self.phase == Some(Phase::Attention) && sign == Phase::Forward)
        {
            self.phase = Some(sign);
        }
        let name = path.rsplit(['/', '\\']).next().unwrap_or(path);
        let frame: String =
            format!("{name}:{number} {function}").trim_end().chars().take(100).collect();
        if !INSTALLED.iter().any(|folder| path.contains(folder)) {
            self.own = Some(frame.clone());
        }
        self.deepest = Some(frame);
    }

    /// Where the program was.
    pub fn place(&self) -> Option<Place> {
        let frame = self.own.clone().or_else(|| self.deepest.clone())?;
        Some(Place { frame, phase: self.phase })
    }
}

/// Bars of other things than steps.
const OTHER_BARS: [&str; 9] = [
    "Loading",
    "Map",
    "Fetching",
    "Downloading",
    "Capturing",
    "split",
    "Tokeniz",
    "shards",
    "Filter",
];

/// Step and steps of a progress bar: `  3%|▎         | 123/4000 [00:12<06:29,  9.95it/s]`.
pub fn progress(text: &str) -> Option<(u64, u64)> {
    if OTHER_BARS.iter().any(|word| text.contains(word)) {
        return None;
    }
    let (head, _) = text.split_once(" [")?;
    let words = head.rsplit([' ', '|']).find(|w| !w.is_empty())?;
    let (step, steps) = words.split_once('/')?;
    Some((step.parse().ok()?, steps.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_tell_the_phase() {
        for (frames, expected, phase) in [
            (
                &[
                    "File \"/home/me/train.py\", line 41, in main",
                    "  File \"/venv/lib/python3.12/site-packages/torch/_tensor.py\", line 581, in backward",
                    "  File \"/venv/lib/python3.12/site-packages/torch/autograd/graph.py\", line 825, in _engine_run_backward",
                ][..],
                "train.py:41 in main",
                Some(Phase::Backward),
            ),
            (
                &[
                    "File \"C:\\me\\x.py\", line 7, in <module>",
                    "File \"C:\\Python\\Lib\\site-packages\\torch\\nn\\functional.py\", line 3494, in cross_entropy",
                ],
                "x.py:7 in <module>",
                Some(Phase::Loss),
            ),
            (
                &["File \"/usr/lib/python3/dist-packages/torch/optim/adamw.py\", line 2, in step"],
                "adamw.py:2 in step",
                Some(Phase::Optimizer),
            ),
            (&["File \"x\", line y"], "", None),
        ] {
            let mut trace = Trace::default();
            frames.iter().for_each(|f| trace.frame(f));
            let place = trace.place();
            assert_eq!(place.as_ref().map_or("", |p| p.frame.as_str()), expected);
            assert_eq!(place.and_then(|p| p.phase), phase);
        }
    }

    #[test]
    fn bars_tell_the_step() {
        for (bar, expected) in [
            ("  3%|▎         | 123/4000 [00:12<06:29,  9.95it/s]", Some((123, 4000))),
            ("Loading checkpoint shards:  50%|█  | 1/2 [00:01<00:01,  1.2s/it]", None),
            ("1.2it/s", None),
        ] {
            assert_eq!(progress(bar), expected, "{bar}");
        }
    }
}
