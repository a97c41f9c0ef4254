//! Whether the engine would start, in its own words, and what would make it start.

use plimsoll_units::Bytes;

use super::Rank;
use super::settings::Settings;
use crate::{Device, Diagnostic, Severity};

/// Reasons why the engine would refuse to start; empty where it starts.
pub fn judge(settings: &Settings, device: &Device, rank: &Rank) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    if let Some(free) = device.free.filter(|free| *free < rank.budget) {
        let most = free.get().saturating_mul(1000) / device.usable.get().max(1);
        found.push(Diagnostic {
            severity: Severity::Warning,
            code: "startup-refused".into(),
            message: format!(
                "free memory on device ({}/{}) on startup is less than desired GPU memory utilization (0.{:03}, {})",
                gib(free),
                gib(device.usable),
                settings.utilization_permille,
                gib(rank.budget)
            ),
            cure: format!(
                "lower --gpu-memory-utilization to 0.{most:03} or stop what else runs on the device"
            ),
        });
    }
    let Some(pool) = &rank.pool else { return found };
    let bytes = rank.pool_size();
    let needed = Bytes::new(pool.request_bytes(settings.length));
    if needed <= bytes {
        return found;
    }
    let longest = pool.longest(bytes.get(), settings.length);
    let mut cures = Vec::new();
    if longest > 0 {
        cures.push(format!("lower --max-model-len to {longest}"));
    }
    if let Some(permille) = enough_utilization(settings, device, rank, needed) {
        cures.push(format!("raise --gpu-memory-utilization to 0.{permille:03}"));
    }
    if settings.sequences > 64 {
        cures.push(format!("lower --max-num-seqs from {} to 64", settings.sequences));
    }
    if settings.cache.bytes(2).get() == 4 {
        cures.push("store keys and values in fp8 (--kv-cache-dtype fp8)".into());
    }
    cures.push(format!("use more ranks than {}", settings.tensor));
    let message = if rank.pool_bytes <= 0 {
        format!(
            "no available memory for the cache blocks: weights {}, profile {} and library memory {} exceed the budget of {} by {}",
            gib(rank.loaded()),
            gib(rank.activations()),
            gib(rank.non_torch),
            gib(rank.budget),
            gib(Bytes::new(u64::try_from(-rank.pool_bytes).unwrap_or(u64::MAX)))
        )
    } else {
        format!(
            "to serve at least one request with the model's max seq len ({}), {} KV cache is needed, which is larger than the available KV cache memory ({}); the estimated maximum model length is {longest}",
            settings.length,
            gib(needed),
            gib(bytes)
        )
    };
    found.push(Diagnostic {
        severity: Severity::Warning,
        code: "kv-below-one-request".into(),
        message,
        cure: cures.join(", or "),
    });
    found
}

/// The least utilization, in thousandths, at which the pool holds `needed`; none below the free memory.
fn enough_utilization(
    settings: &Settings,
    device: &Device,
    rank: &Rank,
    needed: Bytes,
) -> Option<u64> {
    let missing = i128::from(needed.get()) - rank.pool_bytes;
    let target = i128::from(rank.budget.get()) + missing;
    let permille = target * 1000 / i128::from(device.usable.get().max(1)) + 1;
    let permille = u64::try_from(permille).ok()?;
    let free = device.free.unwrap_or(device.usable.saturating_sub(device.context.typical));
    let ceiling = (free.get().saturating_mul(1000) / device.usable.get().max(1)).min(990);
    (permille > settings.utilization_permille && permille <= ceiling).then_some(permille)
}

fn gib(bytes: Bytes) -> String {
    let hundredths = u128::from(bytes.get()) * 100 / (1 << 30);
    format!("{}.{:02} GiB", hundredths / 100, hundredths % 100)
}
