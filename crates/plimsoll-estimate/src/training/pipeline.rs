//! Which stages a pipeline rank runs, and how many micro-batches it holds.

use plimsoll_model::Graph;
use plimsoll_model::graph::{Stage, StageKind};

use crate::request::{PipelineSchedule, Strategy, Training};

/// The work of one pipeline rank.
pub(super) struct Place {
    pub chunks: Vec<Vec<usize>>,
    pub in_flight: u64,
    pub micro_batches: u64,
}

/// Ranks that can hold the most: all of a short pipeline, the ends and the second of a long one (middle ranks hold
/// fewer micro-batches than the second and neither embedding nor head).
pub(super) fn candidates(strategy: &Strategy) -> Vec<u64> {
    let p = strategy.sharding.pipeline.max(1);
    match strategy.sharding.stage {
        Some(stage) => vec![stage.min(p - 1)],
        None if p <= 4 => (0..p).collect(),
        None => vec![0, 1, p - 1],
    }
}

/// Layers are dealt evenly, earlier ranks taking what is left over; embeddings run with the first layer, heads with
/// the last.
pub(super) fn place(graph: &Graph, training: &Training, strategy: &Strategy, rank: u64) -> Place {
    let p = strategy.sharding.pipeline.max(1);
    let v = match strategy.sharding.schedule {
        PipelineSchedule::Interleaved { chunks } if p > 1 => chunks.max(1),
        _ => 1,
    };
    let micro_batches = training.accumulation.max(1);
    let layers = graph.stages.iter().filter(|s| s.kind == StageKind::Layer).count() as u64;
    let pieces = p.saturating_mul(v);
    // Piece of the n-th layer when `layers` are dealt to `pieces`.
    let bounds: Vec<u64> = (0..=pieces).map(|i| (layers * i).div_ceil(pieces)).collect();
    let piece_of = |layer: u64| bounds.iter().rposition(|b| *b <= layer).unwrap_or(0) as u64;
    let mut chunks = vec![Vec::new(); v as usize];
    if strategy.sharding.schedule == PipelineSchedule::DeviceMap && p > 1 {
        let devices = device_map(graph, p);
        chunks[0] = (0..graph.stages.len()).filter(|stage| devices[*stage] == rank).collect();
        return Place { chunks, in_flight: 1, micro_batches };
    }
    let mut seen = 0u64;
    for (index, stage) in graph.stages.iter().enumerate() {
        let piece = match stage.kind {
            StageKind::Layer => {
                seen += 1;
                piece_of(seen - 1)
            }
            StageKind::Embedding => piece_of(seen.min(layers.saturating_sub(1))),
            StageKind::Head => piece_of(seen.saturating_sub(1)),
        }
        .min(pieces - 1);
        let piece = if stage.kind == StageKind::Embedding && seen == 0 { 0 } else { piece };
        let piece =
            if stage.kind == StageKind::Head && seen == layers { pieces - 1 } else { piece };
        if piece % p == rank {
            chunks[(piece / p) as usize].push(index);
        }
    }
    let in_flight = match strategy.sharding.schedule {
        _ if p == 1 => 1,
        PipelineSchedule::DeviceMap => 1,
        PipelineSchedule::GPipe => micro_batches,
        PipelineSchedule::OneFOneB => micro_batches.min(p - rank),
        // Warm-up of the interleaved schedule, in chunk units, and one more.
        PipelineSchedule::Interleaved { .. } => {
            let all = micro_batches.saturating_mul(v);
            all.min((v - 1) * p + 2 * (p - 1 - rank) + 1)
        }
    };
    Place { chunks, in_flight: in_flight.max(1), micro_batches }
}

/// The device of each stage as Accelerate's `get_balanced_memory` and `infer_auto_device_map` choose it: every device but
/// the last takes an even share and a quarter more than a layer, the first less what its largest module needs.
fn device_map(graph: &Graph, devices: u64) -> Vec<u64> {
    let size = |stage: &Stage| -> u64 {
        let own = graph.block(stage).params.iter().filter(|p| !p.tied);
        own.map(|p| p.bytes.get()).fold(0, u64::saturating_add)
    };
    let sizes: Vec<u64> = graph.stages.iter().map(size).collect();
    let total = sizes.iter().copied().fold(0, u64::saturating_add);
    let of_kind = graph.stages.iter().zip(&sizes);
    let layer = of_kind.filter(|(s, _)| s.kind == StageKind::Layer).map(|(_, n)| *n).max();
    let layer = layer.unwrap_or(0);
    let largest = sizes.iter().copied().max().unwrap_or(0);
    let share = (total / devices).saturating_add(layer).saturating_add(layer / 4);
    let (mut device, mut used) = (0, 0u64);
    let mut map = Vec::with_capacity(sizes.len());
    for n in sizes {
        let limit = if device == 0 { share.saturating_sub(largest) } else { share };
        if used.saturating_add(n) > limit && used > 0 && device + 1 < devices {
            (device, used) = (device + 1, 0);
        }
        used = used.saturating_add(n);
        map.push(device);
    }
    map
}
