//! JAX, XLA, TensorFlow and ONNX Runtime: compilers with planned buffers, and best-fit arenas.

use super::super::figure::{Amount, Key, Reading};
use super::super::quantity::{self, Units};
use super::super::table::Framework::{Jax, OnnxRuntime, TensorFlow};
use super::super::table::{Field, Kind, More, Pattern};

pub const COMPILERS: &[Pattern] = &[
    Pattern::new("xla-oom", Jax, Kind::Oom, "ut of memory while trying to allocate ")
        .fields(XLA)
        .special(buffers)
        .more(More::Until { lines: 80, ends: &[] })
        .from(
            "JAX and TensorFlow with XLA, 2019 and later; the plan of buffers from 2021 (jaxlib 0.1.7x)",
            "jax-ml/jax#788, #13428; patrickbryant1/AFProfile#8; google-research/t5x#870",
        ),
    Pattern::new("xla-request", Jax, Kind::Oom, "Failed to allocate request for ")
        .fields(&[
            Field::size(Key::Requested, "(", ") on device ordinal"),
            Field::size(Key::Requested, "Failed to allocate request for ", ""),
        ])
        .from("jaxlib 0.1.6x to 0.4", "kingoflolz/mesh-transformer-jax#66; google-deepmind/jax_privacy#10"),
    Pattern::new("tpu-hbm", Jax, Kind::Oom, "Ran out of memory in memory space ")
        .fields(&[
            Field::size(Key::Total, "Used ", " of "),
            Field::size(Key::Capacity, " of ", ""),
            Field::size(Key::Exceeded, "capacity by ", ""),
            Field::size(Key::ReservedHbm, " reserved ", ""),
            Field::size(Key::Program, " program ", ""),
            Field::size(Key::Parameters, " arguments ", ""),
            Field::size(Key::Temporaries, "HLO temp ", ""),
        ])
        .special(tpu_allocations)
        .more(More::Until { lines: 60, ends: &[] })
        .from("XLA on TPU, 2018 and later", "EnzymeAD/Enzyme-JAX#2422; erfanzar/EasyDeL#166; DifferentiableUniverseInitiative/flowpm#27"),
    Pattern::new("jax-resource", Jax, Kind::Echo, "RESOURCE_EXHAUSTED").from("JAX", "jax-ml/jax#13428"),
    Pattern::new("tf-bfc", TensorFlow, Kind::Oom, " ran out of memory trying to allocate ")
        .only(|line| line.contains("Allocator (") && !line.contains("caller indicates that this is not a failure"))
        .fields(&[Field::size(Key::Requested, "trying to allocate ", "")])
        .special(rounded)
        .from("1.0 and later; XLA's GPU client", "tensorflow/tensorflow#11915, #17092"),
    Pattern::new("tf-bfc-warning", TensorFlow, Kind::NotMemory, "caller indicates that this is not a failure")
        .fields(&[Field::size(Key::Requested, "trying to allocate ", "")])
        .from("1.0 and later", "kerlomz/captcha_trainer#16"),
    Pattern::new("tf-tensor", TensorFlow, Kind::Oom, "OOM when allocating tensor with shape")
        .fields(&[Field::text(Key::Shape, "tensor with shape", "]")])
        .special(tensor)
        .from("1.0 and later", "tensorflow/tensorflow#17669; dBeker/Faster-RCNN-TensorFlow-Python3#16"),
    Pattern::new("tf-stats", TensorFlow, Kind::Usage, "Limit: ")
        .only(|line| line.trim_start().starts_with("Limit:") || line.contains("] Limit:") || line.contains("Stats:"))
        .fields(STATS)
        .more(More::Until { lines: 8, ends: &["MaxAllocSize", "LargestFreeBlock"] })
        .from("1.0 and later", "tensorflow/tensorflow#11915"),
    Pattern::new("tf-chunks", TensorFlow, Kind::Usage, "Sum Total of in-use chunks: ")
        .fields(&[Field::size(Key::InUse, "in-use chunks: ", "")])
        .from("0.9 and later", "tensorflow/tensorflow#5195, #11915"),
    Pattern::new("ort-arena", OnnxRuntime, Kind::Oom, "Failed to allocate memory for requested buffer of size ")
        .fields(&[Field::size(Key::Requested, "requested buffer of size ", "")])
        .special(node)
        .from("1.3 and later", "microsoft/onnxruntime#4062, #20038, #22702"),
    Pattern::new("ort-limit", OnnxRuntime, Kind::Oom, "is smaller than requested bytes of ")
        .fields(&[
            Field::size(Key::ArenaFree, "Available memory of ", ""),
            Field::size(Key::Requested, "requested bytes of ", ""),
        ])
        .special(node)
        .from("1.3 and later, with a memory limit", "microsoft/onnxruntime#23121"),
    Pattern::new("trt-oom", OnnxRuntime, Kind::Oom, "Cuda Runtime (out of memory)")
        .from("TensorRT 8 and later", "recalled"),
];

const XLA: &[Field] = &[
    Field::size(Key::Requested, "while trying to allocate ", ""),
    Field::size(Key::Parameters, "parameter allocation: ", ""),
    Field::size(Key::Constants, "constant allocation: ", ""),
    Field::size(Key::Outputs, "maybe_live_out allocation: ", ""),
    Field::size(Key::Temporaries, "preallocated temp allocation: ", ""),
    Field::size(Key::Total, "total allocation: ", ""),
    Field::size(Key::Fragmentation, "total fragmentation: ", ""),
];

const STATS: &[Field] = &[
    Field::size(Key::Limit, "Limit: ", ""),
    Field::size(Key::InUse, " InUse: ", ""),
    Field::size(Key::MaxInUse, "MaxInUse: ", ""),
    Field::size(Key::LargestAlloc, "MaxAllocSize: ", ""),
    Field::size(Key::LargestFree, "LargestFreeBlock: ", ""),
];

/// Peak buffers that are kept.
const KEPT: usize = 6;

/// `Buffer 1: / Size: 6.00MiB / Operator: op_name="..." / XLA Label: fusion / Shape: f32[4096,128,3]`
fn buffers(text: &str, readings: &mut Vec<Reading>) {
    let Some((_, table)) = text.split_once("Peak buffers:") else { return };
    for entry in table.split("Buffer ").skip(1).take(KEPT) {
        push_buffer(entry, readings);
    }
}

/// `1. Size: 2.00G / Operator: op_name="..." / Shape: f32[32,4096,4096]{...} / Unpadded size: 2.00G`
fn tpu_allocations(text: &str, readings: &mut Vec<Reading>) {
    let Some((_, table)) = text.split_once("Largest program allocations") else { return };
    for entry in table.split(". Size: ").skip(1).take(KEPT) {
        push_buffer(&format!("Size: {entry}"), readings);
    }
}

fn push_buffer(entry: &str, readings: &mut Vec<Reading>) {
    let after = |name: &str| entry.split_once(name).map(|(_, rest)| rest);
    let Some((size, _)) = after("Size: ").and_then(|t| quantity::size(t, Units::Binary)) else {
        return;
    };
    let shape = after("Shape: ").or_else(|| after("Entry Parameter Subshape: "));
    let shape = shape.and_then(|t| t.split_inclusive(']').next()).unwrap_or_default().trim();
    let operator = after("op_name=\"").and_then(|t| t.split('"').next()).unwrap_or_default();
    let kind = if entry.contains("Entry Parameter") { "an argument" } else { operator };
    let of: String =
        [shape, kind].iter().filter(|t| !t.is_empty()).copied().collect::<Vec<_>>().join(" ");
    let of = (!of.is_empty()).then(|| of.chars().take(120).collect());
    readings.push(Reading { key: Key::LargestBuffer, value: Amount::Size(size), of });
}

/// `trying to allocate 538.33MiB (rounded to 564480000)`: the exact bytes win.
fn rounded(text: &str, readings: &mut Vec<Reading>) {
    let exact = text.split_once("(rounded to ").and_then(|(_, t)| quantity::size(t, Units::Binary));
    if let Some((size, _)) = exact {
        readings.retain(|r| r.key != Key::Requested);
        readings.push(Reading { key: Key::Requested, value: Amount::Size(size), of: None });
    }
}

/// `OOM when allocating tensor with shape[25088,4096] and type float on /job:...`
fn tensor(text: &str, readings: &mut Vec<Reading>) {
    let Some((_, rest)) = text.split_once("with shape[") else { return };
    let Some((inside, rest)) = rest.split_once(']') else { return };
    readings.retain(|r| r.key != Key::Shape);
    let kind = rest.strip_prefix(" and type ").and_then(|t| t.split(' ').next()).unwrap_or("");
    let text = format!("[{inside}] {kind}");
    let words = text.trim_end().chars().take(80).collect();
    readings.push(Reading { key: Key::Shape, value: Amount::Text(words), of: None });
    let width = match kind {
        "float" | "int32" | "int" => 4,
        "half" | "bfloat16" => 2,
        "double" | "int64" | "complex64" => 8,
        "bool" | "int8" | "uint8" => 1,
        _ => return,
    };
    let elements = inside.split(',').try_fold(1u64, |n, d| n.checked_mul(d.trim().parse().ok()?));
    if let Some(bytes) = elements.and_then(|n| n.checked_mul(width)) {
        let size = quantity::Printed::exact(plimsoll_units::Bytes::new(bytes));
        readings.push(Reading { key: Key::Requested, value: Amount::Size(size), of: None });
    }
}

/// `while running Conv node. Name:'Conv_3'`
fn node(text: &str, readings: &mut Vec<Reading>) {
    let Some((_, rest)) = text.split_once("while running ") else { return };
    let words: String =
        rest.split(" Status Message").next().unwrap_or_default().chars().take(80).collect();
    readings.push(Reading {
        key: Key::Shape,
        value: Amount::Text(words.trim().to_owned()),
        of: None,
    });
}
