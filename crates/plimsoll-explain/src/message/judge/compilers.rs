//! JAX, XLA on TPUs, TensorFlow, ONNX Runtime.

use plimsoll_units::Bytes;

use super::super::figure::{self, Amount, Key};
use super::super::quantity::Printed;
use super::super::{Failure, Log};
use super::{Knowledge, at, percent, push, readings_of, shapes, usage};
use crate::finding::{Finding, Weight};

/// `RESOURCE_EXHAUSTED: Out of memory while trying to allocate N bytes.`
pub fn xla(log: &Log, failure: &Failure, knowledge: &Knowledge, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let (requested, temporaries, parameters) =
        (get(Key::Requested), get(Key::Temporaries), get(Key::Parameters));
    let mut finding =
        Finding::new("program-too-large", Weight::Cause, "a compiled program found no room");
    if let Some(requested) = requested {
        finding = finding.say(format!("{} were asked for in one piece", requested.bytes));
        let temp = temporaries.is_some_and(|t| {
            let off = if t.bytes > requested.bytes {
                t.bytes - requested.bytes
            } else {
                requested.bytes - t.bytes
            };
            off <= t.slack + Bytes::mib(1)
        });
        if temp {
            finding = finding.say("That is the block for all intermediate results of the program, which XLA plans at compile time and takes at once");
        }
    }
    if let (Some(t), Some(p)) = (temporaries, parameters) {
        finding = finding.say(format!("Temporaries take {}, arguments {}", t.bytes, p.bytes));
    }
    for key in [
        Key::Requested,
        Key::Parameters,
        Key::Outputs,
        Key::Temporaries,
        Key::Constants,
        Key::Total,
    ] {
        finding = push(finding, key, get(key));
    }
    finding = largest(finding, failure, knowledge);
    if get(Key::Outputs)
        .zip(parameters)
        .is_some_and(|(o, p)| o.bytes > p.bytes / 2 && o.bytes > Bytes::gib(1))
    {
        finding = finding.act("donate inputs that are replaced (jax.jit(..., donate_argnums=...)): outputs as large as the arguments are kept beside them");
    }
    finding = finding
        .act("lower the batch, or split it in micro-batches with jax.lax.scan")
        .act("rematerialise: jax.checkpoint around layers")
        .act("JAX takes 75 % of the device by default: XLA_PYTHON_CLIENT_MEM_FRACTION=0.92 gives it more; nvidia-smi shows this policy, not the need")
        .act("end other processes that hold the device");
    out.push(at(finding, failure));
    arithmetic(failure, out);
    let _ = log;
}

/// The parts of the plan sum to its total.
fn arithmetic(failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let Some(total) = get(Key::Total) else { return };
    let parts = [Key::Parameters, Key::Constants, Key::Outputs, Key::Temporaries].map(get);
    let known: Vec<Printed> = parts.into_iter().flatten().collect();
    let sum: Bytes = known.iter().map(|p| p.bytes).sum();
    let slack: Bytes = known.iter().map(|p| p.slack).sum::<Bytes>() + total.slack;
    if known.len() == 4 && sum > total.bytes + slack + Bytes::mib(1) {
        out.push(
            Finding::new("shared-buffers", Weight::Note, "the parts are more than the total")
                .say(format!("they sum to {sum}, the total is {}: donated arguments and outputs share buffers", total.bytes)),
        );
    }
}

/// The largest buffers of the plan, with what they may be.
fn largest(mut finding: Finding, failure: &Failure, knowledge: &Knowledge) -> Finding {
    let mut told = std::collections::BTreeSet::new();
    for reading in readings_of(failure, Key::LargestBuffer).take(3) {
        let (Some(of), Some(bytes)) = (&reading.of, reading.value.bytes()) else { continue };
        finding = finding.bytes(format!("large buffer {of}"), bytes);
        if let Some(what) = shapes::of_shape(of, knowledge)
            && told.insert(what)
        {
            finding = finding.say(format!("Among the largest is {bytes} of {what}"));
        }
    }
    if told.iter().any(|w| w.contains("attention")) {
        finding = finding.act("use a fused attention (jax.nn.dot_product_attention with implementation=\"cudnn\"), which never writes the scores");
    }
    if told.iter().any(|w| w.contains("logits")) {
        finding = finding.act("compute the loss in chunks over tokens, so that logits of the whole batch are never alive");
    }
    finding
}

/// `Ran out of memory in memory space hbm. Used 63.80G of 30.75G hbm.`
pub fn tpu(failure: &Failure, knowledge: &Knowledge, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let mut finding = Finding::new(
        "program-too-large",
        Weight::Cause,
        "the program does not fit into the TPU's memory",
    )
    .say("the compiler found it before anything ran");
    if let (Some(used), Some(capacity)) = (get(Key::Total), get(Key::Capacity)) {
        finding = finding.say(format!(
            "it needs {} of {}: {} too much",
            used.bytes,
            capacity.bytes,
            used.bytes - capacity.bytes
        ));
        if let Some(exceeded) = get(Key::Exceeded) {
            let off = (used.bytes - capacity.bytes).max(exceeded.bytes)
                - (used.bytes - capacity.bytes).min(exceeded.bytes);
            if off > used.slack + capacity.slack + exceeded.slack {
                out.push(
                    Finding::new(
                        "hbm-arithmetic",
                        Weight::Doubt,
                        "the excess is not used less capacity",
                    )
                    .say(format!("the message says {}", exceeded.bytes)),
                );
            }
        }
    }
    for key in
        [Key::Total, Key::Capacity, Key::Exceeded, Key::Program, Key::Parameters, Key::Temporaries]
    {
        finding = push(finding, key, get(key));
    }
    out.push(
        largest(finding, failure, knowledge)
            .act("shard over more chips, or lower the batch per chip")
            .act("rematerialise: jax.checkpoint around layers")
            .act("look for padding: \"Extra memory due to padding\" says that a last dimension below 128 wastes the rest"),
    );
}

/// BFC's message, and the tensor that was asked for.
pub fn tensorflow(log: &Log, failure: &Failure, knowledge: &Knowledge, out: &mut Vec<Finding>) {
    let near = |key| {
        figure::printed(&failure.readings, key)
            .or_else(|| log.failures.iter().find_map(|f| figure::printed(&f.readings, key)))
    };
    let stats = usage(log, None, "tf-stats");
    let stat = |key| stats.and_then(|u| figure::printed(&u.readings, key));
    let requested = near(Key::Requested);
    let shape =
        log.failures.iter().find_map(|f| match figure::find(&f.readings, Key::Shape)?.value {
            Amount::Text(ref text) => Some(text.clone()),
            _ => None,
        });
    let (limit, in_use) = (stat(Key::Limit), stat(Key::InUse));
    let free = limit.zip(in_use).map(|(l, u)| l.bytes - u.bytes);
    let fits = free.zip(requested).is_some_and(|(free, r)| free >= r.bytes);
    let mut finding = match fits {
        true => {
            Finding::new("fragmentation", Weight::Cause, "free memory in pieces that are too small")
        }
        false => {
            Finding::new("too-big", Weight::Cause, "the run needs more than TensorFlow may take")
        }
    };
    if let Some(requested) = requested {
        finding = finding.say(format!("{} were asked for", requested.bytes));
    }
    if let Some(shape) = &shape {
        finding = finding.say(format!("The tensor is {shape}"));
        if let Some(what) = shapes::of_shape(shape, knowledge) {
            finding = finding.say(format!("These are {what}"));
        }
    }
    if let (Some(limit), Some(in_use), Some(free)) = (limit, in_use, free) {
        finding = finding.say(format!(
            "{} of the limit of {} are in use ({} %), {free} are not",
            in_use.bytes,
            limit.bytes,
            percent(in_use.bytes, limit.bytes)
        ));
    }
    finding = push(finding, Key::Requested, requested);
    for key in [Key::Limit, Key::InUse, Key::MaxInUse, Key::LargestAlloc, Key::LargestFree] {
        finding = push(finding, key, stat(key));
    }
    if fits {
        finding = finding.act(
            "TF_GPU_ALLOCATOR=cuda_malloc_async: the driver's pool joins gaps by moving pages",
        );
    }
    out.push(at(
        finding
            .act("lower the batch or the image size")
            .act("mixed precision: tf.keras.mixed_precision.set_global_policy(\"mixed_bfloat16\")")
            .act("end other processes: TensorFlow takes nearly all of every visible GPU unless set_memory_growth is on"),
        failure,
    ));
}

/// Sizes that no tensor has: an overflow in a shape.
const ABSURD: Bytes = Bytes::gib(1 << 16);

/// ONNX Runtime's arena.
pub fn onnx(failure: &Failure, out: &mut Vec<Finding>) {
    let requested = figure::printed(&failure.readings, Key::Requested);
    let left = figure::printed(&failure.readings, Key::ArenaFree);
    let mut finding = match (requested, left) {
        (Some(r), _) if r.bytes >= ABSURD => Finding::new("absurd-size", Weight::Cause, "the size is no real need")
            .say(format!("{} were asked for: a dynamic dimension is wrong or overflowed, often through concurrent runs of one session with an unsafe provider, or a shape that the model does not expect", r.bytes))
            .act("check the shapes of the inputs")
            .act("run one request at a time, to see whether it is a race"),
        (Some(r), Some(left)) => Finding::new("arena-limit", Weight::Cause, "the arena reached its limit")
            .say(format!("{} were asked for, the limit leaves {}", r.bytes, left.bytes))
            .act("raise gpu_mem_limit of the provider (or the arena's max_mem)"),
        _ => {
            let mut finding = Finding::new("arena", Weight::Cause, "the arena could not grow");
            if let Some(r) = requested {
                finding = finding.say(format!("{} were asked for; the arena keeps the most that any earlier batch took", r.bytes));
            }
            finding
        }
    };
    if let Some(figure::Reading { value: Amount::Text(node), .. }) =
        figure::find(&failure.readings, Key::Shape)
    {
        finding = finding.say(format!("It was running {node}"));
    }
    finding = push(push(finding, Key::Requested, requested), Key::ArenaFree, left);
    out.push(
        finding
            .act("arena_extend_strategy=kSameAsRequested: the default doubles the arena at each growth")
            .act("limit the batch; cudnn_conv_use_max_workspace=0 for convolutions")
            .act("shrink the arena after large runs: memory.enable_memory_arena_shrinkage=gpu:0"),
    );
}
