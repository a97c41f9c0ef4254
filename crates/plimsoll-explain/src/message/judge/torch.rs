//! PyTorch's own messages: the caching allocator, `cudaMallocAsync`, Metal.
//!
//! "Tried to allocate" is the segment that the allocator asked the driver for, not the tensor: 2 MiB for requests up
//! to 1 MiB, 20 MiB for requests below 10 MiB, else the request rounded up to 2 MiB. Before the message is made the
//! allocator has given back every segment without a live tensor, so what is still unallocated lies between live ones.

use plimsoll_units::Bytes;

use super::super::figure::{self, Amount, Key};
use super::super::quantity::Printed;
use super::super::settings::Setting;
use super::super::table::Framework;
use super::super::trace::Phase;
use super::super::{Failure, Log};
use super::{Knowledge, at, percent, push, readings_of, shapes};
use crate::finding::{Finding, Weight};

const SMALL_SEGMENT: Bytes = Bytes::mib(2);
const LARGE_SEGMENT: Bytes = Bytes::mib(20);
/// A CUDA context with cuBLAS and NCCL loaded stays below this on every card of the catalogue.
const CONTEXT: Bytes = Bytes::mib(1536);
/// Less is no reason.
const WORTH: Bytes = Bytes::mib(256);

/// The figures of the message, completed by arithmetic.
struct Figures {
    requested: Option<Printed>,
    /// The tensor's size: at least, at most.
    tensor: Option<(Bytes, Bytes)>,
    capacity: Option<Printed>,
    free: Option<Printed>,
    allowed: Option<Printed>,
    allocated: Option<Printed>,
    private: Option<Printed>,
    /// In segments, in no tensor.
    unallocated: Option<Printed>,
    reserved: Option<Printed>,
    /// Everything that this process holds.
    own: Option<Printed>,
    /// Whether the process was recognised by its size only.
    own_guessed: bool,
    /// Other processes with their numbers.
    others: Vec<(String, Printed)>,
}

impl Figures {
    fn read(failure: &Failure) -> Figures {
        let get = |key| figure::printed(&failure.readings, key);
        let allocated = get(Key::Allocated);
        let reserved =
            get(Key::Reserved).or_else(|| Some(plus(allocated?, get(Key::Unallocated)?)));
        let unallocated = get(Key::Unallocated).or_else(|| Some(minus(reserved?, allocated?)));
        let mut others: Vec<(String, Printed)> = readings_of(failure, Key::OtherUse)
            .filter_map(|r| match (&r.of, &r.value) {
                (Some(pid), Amount::Size(size)) => Some((pid.clone(), *size)),
                _ => None,
            })
            .collect();
        let mut own = get(Key::ProcessUse);
        let mut own_guessed = false;
        // In a container the process sees itself under its number outside: it is the smallest that holds at least
        // what the allocator reserved.
        if let (None, Some(reserved)) = (own, reserved) {
            let fits = |p: &Printed| p.high() >= reserved.low();
            let index = (0..others.len())
                .filter(|i| others.get(*i).is_some_and(|(_, p)| fits(p)))
                .min_by_key(|i| others.get(*i).map(|(_, p)| p.bytes));
            if let Some(index) = index {
                own = Some(others.remove(index).1);
                own_guessed = true;
            }
        }
        let requested = get(Key::Requested);
        Figures {
            tensor: requested.map(tensor),
            requested,
            capacity: get(Key::Capacity),
            free: get(Key::Free),
            allowed: get(Key::Allowed),
            allocated,
            private: get(Key::PrivatePools),
            unallocated,
            reserved,
            own,
            own_guessed,
            others,
        }
    }

    fn foreign(&self) -> Bytes {
        self.others.iter().map(|(_, p)| p.bytes).sum()
    }

    /// Bytes that were missing: of the device, or of the limit where that is nearer.
    fn missing(&self) -> Option<Bytes> {
        let requested = self.requested?;
        let device = self.free.map(|free| requested.bytes - free.bytes);
        let limit = match (self.allowed, self.reserved) {
            (Some(allowed), Some(reserved)) => {
                Some((reserved.bytes + requested.bytes) - allowed.bytes)
            }
            _ => None,
        };
        device.max(limit)
    }
}

/// What other processes hold.
pub fn foreign(failure: &Failure) -> Bytes {
    Figures::read(failure).foreign()
}

/// Who holds the device at the failure: parts that sum to the capacity as far as the figures allow.
pub fn division(failure: &Failure) -> Vec<(&'static str, Bytes)> {
    let f = Figures::read(failure);
    let Some(capacity) = f.capacity.map(|c| c.bytes) else { return Vec::new() };
    let (Some(allocated), Some(unallocated)) = (f.allocated, f.unallocated) else {
        return Vec::new();
    };
    let reserved = allocated.bytes + unallocated.bytes;
    let free = f.free.map_or(Bytes::ZERO, |p| p.bytes);
    let outside = f.own.map_or(Bytes::ZERO, |own| own.bytes - reserved);
    let foreign = f.foreign();
    let mut parts = vec![
        ("in tensors", allocated.bytes),
        ("reserved but unallocated", unallocated.bytes),
        ("this process outside PyTorch", outside),
        ("other processes", foreign),
    ];
    let known = reserved + outside + foreign + free;
    let rest = capacity - known;
    parts.push((if f.own.is_some() { "not listed" } else { "context and other processes" }, rest));
    parts.push(("free", free));
    // Rounding leaves a few MiB here and there.
    parts.retain(|(_, bytes)| *bytes >= Bytes::mib(16));
    parts
}

fn plus(a: Printed, b: Printed) -> Printed {
    Printed { bytes: a.bytes + b.bytes, slack: a.slack + b.slack }
}

fn minus(a: Printed, b: Printed) -> Printed {
    Printed { bytes: a.bytes - b.bytes, slack: a.slack + b.slack }
}

/// The sizes of a tensor behind a segment.
fn tensor(segment: Printed) -> (Bytes, Bytes) {
    let is = |size: Bytes| segment.low() <= size && size <= segment.high();
    // Sizes that are no multiple of 2 MiB are from allocators before 1.0, which asked for what was needed.
    let multiple = segment.bytes.round_up(SMALL_SEGMENT) - segment.bytes <= segment.slack
        || segment.bytes % SMALL_SEGMENT <= segment.slack;
    if is(SMALL_SEGMENT) {
        (Bytes::new(1), Bytes::mib(1))
    } else if is(LARGE_SEGMENT) {
        (Bytes::mib(1) + Bytes::new(1), LARGE_SEGMENT)
    } else if multiple {
        (segment.low() - SMALL_SEGMENT + Bytes::new(1), segment.high())
    } else {
        (segment.low(), segment.high())
    }
}

/// `CUDA out of memory. Tried to allocate ...`
pub fn caching(log: &Log, failure: &Failure, knowledge: &Knowledge, out: &mut Vec<Finding>) {
    let f = Figures::read(failure);
    let before = out.len();
    contradictions(&f, out);
    larger_than_device(&f, out);
    limit(&f, out);
    refused(&f, out);
    others(&f, out);
    fragmentation(log, &f, out);
    let caused = out.iter().skip(before).any(|finding| finding.weight == Weight::Cause);
    large_tensor(log, failure, knowledge, &f, caused, out);
    outside(&f, out);
    let caused = out.iter().skip(before).any(|finding| finding.weight == Weight::Cause);
    if !caused {
        too_big(log, failure, &f, out);
    }
    segment(&f, out);
    if let Some(first) = out.iter_mut().skip(before).find(|finding| finding.weight == Weight::Cause)
    {
        let taken = std::mem::replace(first, Finding::new("", Weight::Cause, ""));
        *first = at(taken, failure);
    }
}

/// Figures that cannot all hold.
fn contradictions(f: &Figures, out: &mut Vec<Finding>) {
    let Some(capacity) = f.capacity else { return };
    let doubt = |code, title: &str| Finding::new(code, Weight::Doubt, title);
    if let Some(held) = f.reserved.filter(|r| r.low() > capacity.high()) {
        out.push(
            doubt("beyond-the-card", "more is reserved than the card has")
                .say(format!(
                    "{} are reserved on a card of {}: the driver moved the rest to host memory (Windows does so unless its \"CUDA sysmem fallback\" is off), which is many times slower",
                    held.bytes, capacity.bytes
                ))
                .bytes("reserved", held.bytes)
                .bytes("capacity", capacity.bytes),
        );
    }
    if let Some(free) = f.free.filter(|free| free.low() > capacity.high()) {
        out.push(
            doubt("free-beyond-the-card", "more is free than the card has")
                .say(format!(
                    "{} free on a device of {}: host and GPU share one memory, and the two figures count different parts of it; neither is a limit to plan with",
                    free.bytes, capacity.bytes
                ))
                .bytes("free", free.bytes)
                .bytes("capacity", capacity.bytes),
        );
        return;
    }
    if let (Some(own), Some(reserved)) = (f.own, f.reserved)
        && !f.own_guessed
        && reserved.low() > own.high()
    {
        out.push(
            doubt("reserved-beyond-process", "the allocator holds more than the process")
                .say(format!(
                    "PyTorch counts {} reserved, the driver {} for the whole process; the two were not read at one moment, or pages were moved to host memory",
                    reserved.bytes, own.bytes
                ))
                .bytes("reserved", reserved.bytes)
                .bytes("this process", own.bytes),
        );
    }
    let known = f.own.map(|own| plus(own, Printed::exact(f.foreign())));
    if let (Some(known), Some(free)) = (known, f.free) {
        let sum = plus(known, free);
        if sum.low() > capacity.high() {
            out.push(
                doubt("sum-beyond-the-card", "the figures add up to more than the card")
                    .say(format!(
                        "processes and free memory add up to {} of {}; another process freed memory between the readings",
                        sum.bytes, capacity.bytes
                    ))
                    .bytes("sum", sum.bytes)
                    .bytes("capacity", capacity.bytes),
            );
        }
        let hidden = capacity.bytes - sum.bytes;
        if hidden > WORTH + sum.slack + capacity.slack {
            out.push(
                Finding::new("hidden-memory", contribution(f, hidden), "memory that no listed process holds")
                    .say(format!(
                        "{hidden} of {} are neither free nor held by a process in the message: processes of other containers or users, ended ones that the driver has not cleaned up, or the display",
                        capacity.bytes
                    ))
                    .bytes("not listed", hidden)
                    .act("run nvidia-smi on the host, not in the container; fuser -v /dev/nvidia* shows what has the device open"),
            );
        }
    }
}

/// A cause where it alone would have made room for a considerable part, else a contribution.
fn contribution(f: &Figures, bytes: Bytes) -> Weight {
    let enough = f.missing().is_some_and(|missing| !missing.is_zero() && bytes >= missing);
    let much = f.capacity.is_some_and(|c| percent(bytes, c.bytes) >= 10);
    if enough && much { Weight::Cause } else { Weight::Contribution }
}

fn larger_than_device(f: &Figures, out: &mut Vec<Finding>) {
    let (Some(requested), Some(capacity)) = (f.requested, f.capacity) else { return };
    if requested.low() <= capacity.high() {
        return;
    }
    out.push(
        Finding::new("larger-than-device", Weight::Cause, "one tensor is larger than the whole device")
            .say(format!(
                "{} in one piece on a device of {}: no setting of the allocator helps, the tensor itself must become smaller",
                requested.bytes, capacity.bytes
            ))
            .bytes("asked for", requested.bytes)
            .bytes("capacity", capacity.bytes)
            .act("look at the shape at that line: attention scores that are written out (use sdpa or flash attention), logits of a whole batch, an image at full resolution")
            .act("split it: a smaller batch, chunks, tiles"),
    );
}

fn limit(f: &Figures, out: &mut Vec<Finding>) {
    let (Some(allowed), Some(requested), Some(reserved)) = (f.allowed, f.requested, f.reserved)
    else {
        return;
    };
    if plus(reserved, requested).high() < allowed.low() {
        return;
    }
    let free = f.free.is_some_and(|free| free.low() >= requested.high());
    let weight = if free { Weight::Cause } else { Weight::Contribution };
    let mut finding =
        Finding::new("memory-limit", weight, "the process reached the limit that it set itself")
            .say(format!(
                "it may take {}, has reserved {} and asked for {} more",
                allowed.bytes, reserved.bytes, requested.bytes
            ))
            .bytes("allowed", allowed.bytes)
            .bytes("reserved", reserved.bytes)
            .bytes("asked for", requested.bytes);
    if let (true, Some(free)) = (free, f.free) {
        finding = finding.say(format!("{} of the device were free", free.bytes));
    }
    out.push(finding.act(
        "raise or drop the limit: torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction in PYTORCH_ALLOC_CONF",
    ));
}

/// The driver said no although its own figure says yes.
fn refused(f: &Figures, out: &mut Vec<Finding>) {
    let (Some(free), Some(requested)) = (f.free, f.requested) else { return };
    let plausible = f.capacity.is_none_or(|c| free.low() <= c.high());
    if f.allowed.is_some() || free.low() < requested.high() || !plausible {
        return;
    }
    out.push(
        Finding::new("free-but-refused", Weight::Cause, "the driver refused although enough was free")
            .say(format!(
                "{} were free for a request of {}. The figure is read after the refusal, so another process or rank may have freed memory in between; Windows, WSL and shared memory also limit what one process or one allocation may take",
                free.bytes, requested.bytes
            ))
            .bytes("free", free.bytes)
            .bytes("asked for", requested.bytes)
            .act("see whether several processes of the job share this GPU (every rank on GPU 0 is a common mistake: set the device before the first CUDA call)")
            .act("under Windows or WSL, close other programs and raise the page file; on AMD APUs raise the share of GTT memory"),
    );
}

fn others(f: &Figures, out: &mut Vec<Finding>) {
    let foreign = f.foreign();
    if foreign > WORTH {
        let list: Vec<String> = f
            .others
            .iter()
            .take(4)
            .map(|(pid, p)| format!("process {pid} holds {}", p.bytes))
            .collect();
        let sum = if list.len() > 1 { format!(", {foreign} together") } else { String::new() };
        let mut finding = Finding::new(
            "other-process",
            contribution(f, foreign),
            "other processes hold memory of the device",
        )
        .say(format!("{}{sum}", list.join(", ")))
        .bytes("other processes", foreign);
        if let Some(missing) = f.missing() {
            finding = finding.say(match foreign >= missing {
                true => {
                    format!("Without them the request would have fitted; {missing} were missing")
                }
                false => format!("Even without them {} would have been missing", missing - foreign),
            });
        }
        if f.own_guessed {
            finding = finding.say("Which of the processes is this one was judged by size: in a container their numbers differ");
        }
        out.push(
            finding
                .act("end them, or take another GPU (CUDA_VISIBLE_DEVICES)")
                .act("where they must stay, give the estimate what is left with --free"),
        );
        return;
    }
    // Without a list of processes, whatever is neither free nor reserved is theirs, or this process's context.
    if let (None, Some(capacity), Some(free), Some(reserved)) =
        (f.own, f.capacity, f.free, f.reserved)
    {
        let rest = capacity.bytes - free.bytes - reserved.bytes;
        if rest > CONTEXT {
            out.push(
                Finding::new("outside-allocator", contribution(f, rest), "memory outside this process's allocator")
                    .say(format!(
                        "{rest} of {} are neither free nor reserved by PyTorch; a CUDA context takes a few hundred MiB of it, the rest belongs to other processes or libraries",
                        capacity.bytes
                    ))
                    .bytes("outside the allocator", rest)
                    .act("look at nvidia-smi: an earlier run or another program may hold it"),
            );
        }
    }
}

fn fragmentation(log: &Log, f: &Figures, out: &mut Vec<Finding>) {
    let (Some(gaps), Some(reserved)) = (f.unallocated, f.reserved) else { return };
    let share = percent(gaps.bytes, reserved.bytes);
    // Where nothing was missing by the figures, gaps were not the reason.
    let missing = f.missing().filter(|missing| !missing.is_zero());
    if gaps.bytes < WORTH || share < 4 {
        return;
    }
    let enough = missing.is_some_and(|missing| gaps.bytes >= missing);
    if log.run.expandable {
        out.push(
            Finding::new("unallocated", Weight::Contribution, "reserved memory that no tensor uses")
                .say(format!(
                    "{} ({share} % of what is reserved) are in no tensor although expandable segments are on; the hint in the message is printed all the same. What remains are pages that live tensors share, streams and private pools",
                    gaps.bytes
                ))
                .bytes("reserved but unallocated", gaps.bytes),
        );
        return;
    }
    let weight = if enough { Weight::Cause } else { Weight::Contribution };
    let title = if enough {
        "free memory in pieces that are too small"
    } else {
        "some memory is lost in gaps"
    };
    let mut finding = Finding::new("fragmentation", weight, title)
        .say(format!(
            "{} are reserved but in no tensor, {share} % of what PyTorch holds. They lie in gaps between live tensors: segments without any were given back before the message",
            gaps.bytes
        ))
        .bytes("reserved but unallocated", gaps.bytes);
    finding = match (enough, missing) {
        (true, Some(missing)) => finding
            .say(format!(
                "{missing} were missing, so the request would have fitted had the gaps been one; at most {} can be won",
                gaps.bytes
            ))
            .bytes("missing", missing),
        (false, Some(missing)) => finding.say(format!(
            "{missing} were missing: closing every gap would not have been enough, {} remain",
            missing - gaps.bytes
        )),
        _ => finding,
    };
    if let Some(private) = f.private {
        finding = finding.say(format!(
            "{} more stand in private pools (CUDA graphs) and serve nothing else",
            private.bytes
        ));
    }
    out.push(
        finding
            .act("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which lets segments grow instead of leaving gaps (the newer name PYTORCH_ALLOC_CONF is ignored for CUDA by torch 2.9.1)")
            .act("keep shapes alike: pad to a few lengths, or sort by length; ever-changing sizes make gaps")
            .act("where expandable segments are not available, try max_split_size_mb:128 or garbage_collection_threshold:0.8 with a memory fraction")
            .act("record a memory snapshot: a replay says which setting would have fitted"),
    );
}

fn large_tensor(
    log: &Log,
    failure: &Failure,
    knowledge: &Knowledge,
    f: &Figures,
    caused: bool,
    out: &mut Vec<Finding>,
) {
    let (Some(requested), Some((low, high))) = (f.requested, f.tensor) else { return };
    let phase = failure.place.as_ref().and_then(|p| p.phase);
    let logits = shapes::logits(log, knowledge, phase, low, high);
    let share = f.capacity.map_or(0, |c| percent(requested.bytes, c.bytes));
    let one_piece = share >= 20 || requested.bytes >= Bytes::gib(4);
    if logits.is_none() && !one_piece {
        return;
    }
    let weight = if caused { Weight::Contribution } else { Weight::Cause };
    let finding = Finding::new("one-large-tensor", weight, "one very large tensor")
        .say(format!("a single request of {}, {share} % of the device", requested.bytes))
        .bytes("asked for", requested.bytes);
    let finding = match logits {
        Some(text) => finding
            .say(text)
            .act("compute the loss in chunks or fused with the output layer (Liger kernels, --loss fused-linear): logits of the whole batch are then never written")
            .act("lower the micro-batch, and accumulate over more steps"),
        None if phase == Some(Phase::Attention) => finding
            .say("In attention this is the matrix of scores, batch x heads x length x length, which grows with the square of the length")
            .act("use scaled_dot_product_attention or flash attention, which never write the scores (attn_implementation=\"sdpa\")")
            .act("shorten sequences, or lower the batch"),
        None => finding
            .act("look at the shape at that line; what grows with batch x length x vocabulary (logits) or length x length (attention) is the usual reason")
            .act("lower the batch or the length"),
    };
    out.push(finding);
}

/// What the process holds beside the allocator.
fn outside(f: &Figures, out: &mut Vec<Finding>) {
    let (Some(own), Some(reserved)) = (f.own, f.reserved) else { return };
    let rest = minus(own, reserved);
    if rest.bytes <= CONTEXT + rest.slack {
        return;
    }
    out.push(
        Finding::new("outside-pytorch", contribution(f, rest.bytes), "this process holds memory outside PyTorch's allocator")
            .say(format!(
                "the process holds {}, the allocator {}: {} belong to the CUDA context, NCCL buffers, other frameworks in the process, or kernels with large local memory",
                own.bytes, reserved.bytes, rest.bytes
            ))
            .bytes("outside PyTorch", rest.bytes)
            .act("see what else the process loads: TensorFlow and JAX take most of the device unless told otherwise; an engine in the same process has its own pool")
            .act("NCCL: fewer communicators, NCCL_BUFFSIZE, NCCL_NVLS_ENABLE=0"),
    );
}

fn too_big(log: &Log, failure: &Failure, f: &Figures, out: &mut Vec<Finding>) {
    let mut finding =
        Finding::new("too-big", Weight::Cause, "the run needs more than the device has");
    if let (Some(allocated), Some(capacity)) = (f.allocated, f.capacity) {
        finding = finding
            .say(format!(
                "live tensors hold {} of {} ({} %)",
                allocated.bytes,
                capacity.bytes,
                percent(allocated.bytes, capacity.bytes)
            ))
            .bytes("in tensors", allocated.bytes)
            .bytes("capacity", capacity.bytes);
    }
    if let (Some(missing), Some(requested)) = (f.missing(), f.requested) {
        finding = finding
            .say(format!(
                "{} were asked for and {missing} were missing; more would have been asked for after it, so this is not how much is needed",
                requested.bytes
            ))
            .bytes("missing", missing);
    }
    let phase = failure.place.as_ref().and_then(|p| p.phase);
    for action in actions(log, phase) {
        finding = finding.act(action);
    }
    out.push(finding);
}

/// What to change, least loss first, by what the program did.
fn actions(log: &Log, phase: Option<Phase>) -> Vec<&'static str> {
    let adapter = log.run.settings.contains_key(&Setting::Adapter);
    let checkpointing = log.run.settings.contains_key(&Setting::Checkpointing);
    match log.run.framework {
        Some(Framework::Vllm) => {
            return vec![
                "a smaller --gpu-memory-utilization: what it leaves holds activations, CUDA graphs and libraries beside the KV cache",
                "smaller --max-num-batched-tokens and --max-num-seqs, or --enforce-eager",
                "quantized weights, or more GPUs (--tensor-parallel-size)",
            ];
        }
        Some(Framework::Sglang) => {
            return vec![
                "a smaller --mem-fraction-static: memory that runs out at run time asks for less of it, unlike at the start",
                "smaller --chunked-prefill-size and --cuda-graph-max-bs",
                "quantized weights, or more GPUs (--tp)",
            ];
        }
        _ => {}
    }
    let mut list = match phase {
        Some(Phase::Load) => {
            return vec![
                "load in the type that is computed in (dtype=torch.bfloat16); float32 takes twice as much",
                "load quantized weights (4-bit), or spread layers over GPUs and host (device_map=\"auto\", tensor parallelism)",
            ];
        }
        Some(Phase::Generate) => {
            return vec![
                "run under torch.inference_mode(), which keeps nothing for backward",
                "lower batch or context: the KV cache grows with both",
                "load quantized weights",
            ];
        }
        Some(Phase::Loss) => vec![
            "compute the loss in chunks or fused with the output layer: logits are batch x length x vocabulary in float32",
        ],
        Some(Phase::Optimizer) => vec![
            "states are made at the first step: use an 8-bit or paged optimizer, or shard states (ZeRO-1, FSDP)",
            "switch the optimizer's foreach off: its temporaries are as large as the gradients",
        ],
        _ => Vec::new(),
    };
    list.push("lower the micro-batch and accumulate over more steps: the result stays the same");
    if !checkpointing {
        list.push("switch activation checkpointing on: about a third more time for most of the activations");
    }
    list.push("use mixed precision or bf16, sdpa or flash attention");
    if phase != Some(Phase::Optimizer) {
        list.push("use an 8-bit optimizer, or shard states over GPUs (ZeRO, FSDP)");
    }
    if !adapter {
        list.push("train adapters (LoRA, QLoRA) instead of all parameters");
    }
    list
}

/// What "Tried to allocate" stands for, where it is not the tensor.
fn segment(f: &Figures, out: &mut Vec<Finding>) {
    let (Some(requested), Some((low, high))) = (f.requested, f.tensor) else { return };
    let sentence = if high == Bytes::mib(1) {
        format!(
            "{} is the segment for requests up to 1 MiB: the tensor was at most 1 MiB",
            requested.bytes
        )
    } else if high == LARGE_SEGMENT && low < Bytes::mib(2) {
        format!(
            "{} is the segment for requests between 1 and 10 MiB: the tensor was of that size (or exactly this large)",
            requested.bytes
        )
    } else {
        return;
    };
    out.push(
        Finding::new("segment-size", Weight::Note, "the size asked for is a segment, not a tensor")
            .say(sentence)
            .say("A small last request says that the device was full, not that this tensor was the problem")
            .bytes("asked for", requested.bytes),
    );
}

/// `Allocation on device 0 would exceed allowed memory.`
pub fn asynchronous(log: &Log, failure: &Failure, knowledge: &Knowledge, out: &mut Vec<Finding>) {
    let mut f = Figures::read(failure);
    // This allocator asks the driver for exactly what is needed.
    f.tensor = f.requested.map(|r| (r.low(), r.high()));
    f.reserved = f.allocated;
    f.unallocated = None;
    let before = out.len();
    contradictions(&f, out);
    larger_than_device(&f, out);
    limit(&f, out);
    others(&f, out);
    large_tensor(log, failure, knowledge, &f, out.len() > before, out);
    if !out.iter().skip(before).any(|finding| finding.weight == Weight::Cause) {
        too_big(log, failure, &f, out);
    }
    out.push(
        Finding::new("async-allocator", Weight::Note, "the driver's own pool is in use")
            .say("backend:cudaMallocAsync counts bytes as requested and has no gaps of its own to report; memory snapshots are not available with it"),
    );
}

/// `MPS backend out of memory`
pub fn mps(failure: &Failure, out: &mut Vec<Finding>) {
    let get = |key| figure::printed(&failure.readings, key);
    let (allocated, other, allowed) =
        (get(Key::Allocated), get(Key::OtherAllocations), get(Key::Allowed));
    let requested = get(Key::Requested);
    let mut finding =
        Finding::new("mps-limit", Weight::Cause, "Metal's limit for PyTorch was reached");
    if let (Some(allocated), Some(other), Some(allowed)) = (allocated, other, allowed) {
        let left = allowed.bytes - allocated.bytes - other.bytes;
        finding = finding.say(format!(
            "tensors hold {}, other allocations of the process {}, and {} are allowed: {left} were left",
            allocated.bytes, other.bytes, allowed.bytes
        ));
        if other.bytes > allocated.bytes {
            finding = finding.say("The larger part is not in tensors: compiled graphs of ever-new shapes, or another library on Metal");
        }
        if allocated.high() + other.high() + requested.map_or(Bytes::ZERO, Printed::high)
            < allowed.low()
        {
            out.push(
                Finding::new("mps-arithmetic", Weight::Doubt, "the figures would fit")
                    .say("what is held and what was asked for together are below the limit; memory was freed between the readings"),
            );
        }
    }
    for key in [Key::Requested, Key::Allocated, Key::OtherAllocations, Key::Allowed] {
        finding = push(finding, key, get(key));
    }
    out.push(at(
        finding
            .act("lower batch or length, or load the model in half precision")
            .act("call torch.mps.empty_cache() between phases; keep shapes alike, as every new shape compiles a graph that stays")
            .act("close other programs: GPU and system share the memory")
            .act("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 drops the limit; the system then swaps, and may stop responding"),
        failure,
    ));
}

/// One buffer that no device can give.
pub fn one_buffer(failure: &Failure, out: &mut Vec<Finding>) {
    let requested = figure::printed(&failure.readings, Key::Requested);
    let size = requested.map_or("more than 1 EiB".to_owned(), |r| r.bytes.to_string());
    let finding = Finding::new("larger-than-device", Weight::Cause, "one tensor is larger than any device allows")
        .say(format!("{size} in one piece: a shape is wrong, or attention scores or logits are written out as a whole"));
    out.push(at(
        push(finding, Key::Requested, requested)
            .act("print the shapes at that line")
            .act("use sdpa attention; split the batch"),
        failure,
    ));
}
