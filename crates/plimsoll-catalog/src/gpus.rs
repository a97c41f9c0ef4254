//! The GPUs that people own and rent, with the bytes a framework can use on each. The facts and their sources are
//! in `data/gpus.json` and `data/mig.json`; this file gives them types and finds them by the names that `nvidia-smi`,
//! torch and shops use. It knows nothing of counts, links in use or other processes: that is [`crate::machines`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::OnceLock;

use plimsoll_units::{Bytes, DType};
use serde::{Deserialize, Serialize};

/// What compiles for the device: an NVIDIA compute capability, an AMD gfx name, or another vendor's family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Target {
    /// NVIDIA compute capability, such as 9.0.
    Cuda {
        /// The digit before the point.
        major: u8,
        /// The digit after the point.
        minor: u8,
    },
    /// AMD instruction set, such as `gfx942`.
    Gfx(String),
    /// Any other family, such as `metal`, `gaudi2` or `xe2`.
    Other(String),
}

impl From<String> for Target {
    fn from(text: String) -> Self {
        if let Some(digits) = text.strip_prefix("sm_")
            && digits.is_ascii()
            && digits.len() >= 2
            && let (Ok(major), Ok(minor)) =
                (digits[..digits.len() - 1].parse(), digits[digits.len() - 1..].parse())
        {
            return Target::Cuda { major, minor };
        }
        if text.starts_with("gfx") { Target::Gfx(text) } else { Target::Other(text) }
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        match target {
            Target::Cuda { major, minor } => format!("sm_{major}{minor}"),
            Target::Gfx(name) | Target::Other(name) => name,
        }
    }
}

/// `compute capability 9.0`, `gfx942`, `metal`.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cuda { major, minor } => write!(f, "compute capability {major}.{minor}"),
            Target::Gfx(name) | Target::Other(name) => f.write_str(name),
        }
    }
}

impl Target {
    /// The compute capability as (major, minor), for NVIDIA devices.
    pub fn compute_capability(&self) -> Option<(u8, u8)> {
        match self {
            Target::Cuda { major, minor } => Some((*major, *minor)),
            _ => None,
        }
    }

    /// Whether matrix units multiply in bfloat16. NVIDIA from 8.0 (torch emulates it slowly before).
    pub fn has_bf16(&self) -> bool {
        match self {
            Target::Cuda { major, .. } => *major >= 8,
            Target::Gfx(name) => !name.starts_with("gfx906") && !name.starts_with("gfx10"),
            Target::Other(name) => name != "ascend910",
        }
    }

    /// Whether matrix units multiply in 8-bit floats. NVIDIA from 8.9; AMD gfx942, gfx950 and gfx12; Gaudi2 and 3.
    pub fn has_fp8(&self) -> bool {
        match self {
            Target::Cuda { major, minor } => (*major, *minor) >= (8, 9),
            Target::Gfx(name) => {
                ["gfx942", "gfx95", "gfx12"].iter().any(|family| name.starts_with(family))
            }
            Target::Other(name) => matches!(name.as_str(), "gaudi2" | "gaudi3"),
        }
    }

    /// Whether matrix units multiply in 4-bit floats and microscaled 8-bit ones. NVIDIA from 10.0; AMD gfx950.
    pub fn has_fp4(&self) -> bool {
        match self {
            Target::Cuda { major, .. } => *major >= 10,
            Target::Gfx(name) => name.starts_with("gfx95"),
            Target::Other(_) => false,
        }
    }
}

/// Dense peak rates in GFLOP/s (GOP/s for integers), with FP32 accumulation unless the field says otherwise.
/// Absent means not published, or not in hardware.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Peaks {
    /// Single precision outside the matrix units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f32: Option<u64>,
    /// TensorFloat-32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tf32: Option<u64>,
    /// Half precision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f16: Option<u64>,
    /// Half precision with half-precision accumulation: twice `f16` on GeForce boards, the same elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f16_f16_accumulate: Option<u64>,
    /// bfloat16.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16: Option<u64>,
    /// 8-bit floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp8: Option<u64>,
    /// 8-bit integers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8: Option<u64>,
    /// 4-bit floats.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fp4: Option<u64>,
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Class {
    /// Servers.
    DataCentre,
    /// Professional boards.
    Workstation,
    /// Gaming boards.
    Consumer,
    /// Soldered into laptops.
    Laptop,
    /// The processor and the GPU share one memory.
    Unified,
    /// Not a GPU, but used as one.
    Accelerator,
}

/// The bytes that a framework can use on one device: `cudaMemGetInfo`'s total, before any context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Usable {
    /// The lowest seen, or the low end of the rule.
    pub low: Bytes,
    /// The commonest under current drivers.
    pub typical: Bytes,
    /// The highest seen, or the high end of the rule.
    pub high: Bytes,
    /// How far to trust it.
    pub basis: Basis,
}

/// Where the usable bytes of a GPU are from, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Basis {
    /// Read on this GPU.
    Measured,
    /// Read on another GPU that prints the same total.
    SameTotal,
    /// General knowledge, not re-read.
    Recalled,
    /// A rule over the printed total, fitted to the measured GPUs.
    Derived,
}

/// Either a rule's id, or three readings with the marks of their sources.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct UsableEntry {
    rule: Option<String>,
    low_mib: u64,
    typical_mib: u64,
    high_mib: u64,
    sources: Vec<String>,
    same_total: bool,
}

impl UsableEntry {
    fn basis(&self) -> Basis {
        match (self.same_total, self.sources.iter().all(|mark| mark == "V")) {
            (true, _) => Basis::SameTotal,
            (false, true) => Basis::Recalled,
            (false, false) => Basis::Measured,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
struct UsableRule {
    id: String,
    reserve_mib: u64,
    reserve_per_10000: u64,
    spread_mib: u64,
    spread_per_10000: u64,
    note: String,
}

impl UsableRule {
    fn usable(&self, printed_mib: u64) -> Usable {
        let part = |per_10000: u64| Bytes::mib(printed_mib).scale(per_10000, 10_000);
        let printed = Bytes::mib(printed_mib);
        let typical = printed - Bytes::mib(self.reserve_mib) - part(self.reserve_per_10000);
        let spread = Bytes::mib(self.spread_mib) + part(self.spread_per_10000);
        Usable {
            low: typical - spread,
            typical,
            high: (typical + spread).min(printed),
            basis: Basis::Derived,
        }
    }
}

#[derive(Deserialize)]
struct GpuEntry {
    id: String,
    name: String,
    aliases: Vec<String>,
    vendor: String,
    class: Class,
    target: Target,
    memory: String,
    printed_mib: u64,
    printed_old_driver_mib: Option<u64>,
    #[serde(default)]
    unified: bool,
    usable: UsableEntry,
    bandwidth_gbps: u64,
    #[serde(default)]
    peak_gflops: Peaks,
    sms: Option<u64>,
    link: String,
    tdp_w: Option<u64>,
    mig: Option<String>,
    sources: Vec<String>,
    note: Option<String>,
}

/// One GPU model, as one device appears to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// The catalogue's own name, such as `h100-80g`.
    pub id: String,
    /// The name that the driver prints, such as `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Other spellings that are understood.
    pub aliases: Vec<String>,
    /// `nvidia`, `amd`, `intel`, `apple`, `huawei`.
    pub vendor: String,
    /// What kind of device it is.
    pub class: Class,
    /// What compiles for it.
    pub target: Target,
    /// `hbm3`, `gddr6x`, `lpddr5`...
    pub memory: String,
    /// The total that the vendor's tool prints: more than a framework can use.
    pub printed: Bytes,
    /// The same under drivers before R510, where it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub printed_old_driver: Option<Bytes>,
    /// Whether the operating system shares this memory.
    pub unified: bool,
    /// What a framework can use of it.
    pub usable: Usable,
    /// The rule, or the marks of the sources, behind `usable`.
    pub usable_basis: String,
    /// Memory bandwidth in GB/s (10^9), as printed by the vendor.
    pub bandwidth_gbps: u64,
    /// Dense peak rates.
    pub peak_gflops: Peaks,
    /// Streaming multiprocessors, compute units or GPU cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sms: Option<u64>,
    /// The fastest way between two of them: an id of the link table ([`crate::links`]).
    pub link: String,
    /// Board power in watts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tdp_w: Option<u64>,
    /// The MIG table that holds its slices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mig: Option<String>,
    /// Marks of the sources; [`source_of`] spells them out.
    pub sources: Vec<String>,
    /// What a reader should know about these figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// A precision that the device's matrix units lack.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{gpu} ({target}) cannot compute in {dtype}: it needs {needs}; use {instead} or another GPU"
)]
pub struct LacksDType {
    /// The GPU's id.
    pub gpu: String,
    /// What it compiles for.
    pub target: Target,
    /// The precision asked for.
    pub dtype: DType,
    /// What would have it.
    pub needs: &'static str,
    /// The nearest precision that this GPU has.
    pub instead: &'static str,
}

impl Gpu {
    /// Whether arithmetic in `dtype` runs in hardware. Stored formats that are unpacked before the
    /// multiplication (GGUF blocks, NF4, GPTQ) run everywhere.
    pub fn computes_in(&self, dtype: DType) -> bool {
        self.check_dtype(dtype).is_ok()
    }

    /// As [`Gpu::computes_in`], with the reason and the cure.
    ///
    /// # Errors
    /// [`LacksDType`] where the device has no unit for it.
    pub fn check_dtype(&self, dtype: DType) -> Result<(), LacksDType> {
        let bf16 = self.target.has_bf16();
        let half = if bf16 { "bf16" } else { "f16" };
        let eight = if self.target.has_fp8() { "fp8" } else { half };
        let (has, needs, instead) = match dtype {
            DType::Bf16 => (bf16, "NVIDIA compute capability 8.0 or AMD gfx908", "f16"),
            DType::F8E4M3 | DType::F8E5M2 => {
                (self.target.has_fp8(), "NVIDIA compute capability 8.9 or AMD gfx942", half)
            }
            DType::Mxfp4 | DType::Mxfp8 | DType::Nvfp4 => {
                (self.target.has_fp4(), "NVIDIA compute capability 10.0 or AMD gfx950", eight)
            }
            DType::F64 => (
                self.target != Target::Other("metal".to_owned()),
                "a device with double precision",
                "f32",
            ),
            _ => (true, "", ""),
        };
        if has {
            return Ok(());
        }
        Err(LacksDType { gpu: self.id.clone(), target: self.target.clone(), dtype, needs, instead })
    }

    /// Dense peak in GFLOP/s for arithmetic in `dtype`, where it is known.
    pub fn peak(&self, dtype: DType) -> Option<u64> {
        let peaks = &self.peak_gflops;
        match dtype {
            DType::F32 => peaks.f32,
            DType::F16 => peaks.f16,
            DType::Bf16 => peaks.bf16,
            DType::F8E4M3 | DType::F8E5M2 | DType::Mxfp8 => peaks.fp8,
            DType::I8 | DType::U8 | DType::Int8Row => peaks.int8,
            DType::Mxfp4 | DType::Nvfp4 => peaks.fp4,
            _ => None,
        }
    }

    /// The slices that this GPU can be cut into; empty where it cannot.
    pub fn mig_profiles(&'static self) -> &'static [MigProfile] {
        self.mig
            .as_ref()
            .and_then(|id| mig_tables().get(id))
            .map_or(&[], |table| table.profiles.as_slice())
    }
}

/// One way to cut a GPU: Multi-Instance GPU. Slices cannot reach each other's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MigProfile {
    /// NVIDIA's name, such as `3g.40gb`. The number in it is not the usable memory.
    pub name: String,
    /// Other names of the same slice under other drivers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// How many fit on one GPU.
    pub count: u64,
    /// Compute slices out of 7 (4 on A30 and RTX PRO 6000).
    pub compute_slices: u64,
    /// Memory slices out of 8 (4 on A30 and RTX PRO 6000); the bandwidth share too.
    pub memory_slices: u64,
    /// The lowest memory that a driver printed for it, MiB.
    pub low_mib: u64,
    /// The commonest, MiB.
    pub typical_mib: u64,
    /// Streaming multiprocessors.
    pub sms: u64,
    /// True where no print-out was found and the fraction of the whole GPU was taken.
    #[serde(default)]
    pub derived: bool,
}

#[derive(Deserialize)]
struct MigTable {
    id: String,
    memory_slices: u64,
    profiles: Vec<MigProfile>,
}

#[derive(Deserialize)]
struct MigFile {
    tables: Vec<MigTable>,
}

fn mig_tables() -> &'static BTreeMap<String, MigTable> {
    static TABLES: OnceLock<BTreeMap<String, MigTable>> = OnceLock::new();
    TABLES.get_or_init(|| {
        let file: MigFile = crate::embedded::parse(include_str!("../data/mig.json"), "mig.json");
        file.tables.into_iter().map(|table| (table.id.clone(), table)).collect()
    })
}

/// Memory slices of the whole GPU whose MIG table is `id`.
pub(crate) fn mig_memory_slices(id: &str) -> Option<u64> {
    mig_tables().get(id).map(|table| table.memory_slices)
}

#[derive(Deserialize)]
struct Ambiguous {
    name: String,
    assume: String,
    others: Vec<String>,
}

#[derive(Deserialize)]
struct GpuFile {
    date: String,
    sources: BTreeMap<String, String>,
    usable_rules: Vec<UsableRule>,
    ambiguous: Vec<Ambiguous>,
    gpus: Vec<GpuEntry>,
}

struct Catalogue {
    date: String,
    sources: BTreeMap<String, String>,
    ambiguous: Vec<Ambiguous>,
    gpus: Vec<Gpu>,
}

fn catalogue() -> &'static Catalogue {
    static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
    CATALOGUE.get_or_init(|| {
        let file: GpuFile = crate::embedded::parse(include_str!("../data/gpus.json"), "gpus.json");
        let rules = file.usable_rules;
        Catalogue {
            date: file.date,
            sources: file.sources,
            ambiguous: file.ambiguous,
            gpus: file.gpus.into_iter().map(|entry| resolve(entry, &rules)).collect(),
        }
    })
}

/// Normalized spellings. Built apart from the table, because an id needs none of them.
struct Spellings {
    /// Of one GPU, as an index into the table.
    names: HashMap<String, usize>,
    /// Of a family: the index that is assumed, and the entry.
    families: HashMap<String, (usize, &'static Ambiguous)>,
}

fn spellings() -> &'static Spellings {
    static SPELLINGS: OnceLock<Spellings> = OnceLock::new();
    SPELLINGS.get_or_init(|| {
        let catalogue = catalogue();
        let mut names = HashMap::with_capacity(catalogue.gpus.len() * 4);
        for (index, gpu) in catalogue.gpus.iter().enumerate() {
            for spelling in gpu.aliases.iter().chain([&gpu.id, &gpu.name]) {
                names.insert(normalize(spelling), index);
            }
        }
        let mut families = HashMap::with_capacity(catalogue.ambiguous.len());
        for family in &catalogue.ambiguous {
            if let Some(index) = catalogue.gpus.iter().position(|gpu| gpu.id == family.assume) {
                families.insert(normalize(&family.name), (index, family));
            }
        }
        Spellings { names, families }
    })
}

fn resolve(entry: GpuEntry, rules: &[UsableRule]) -> Gpu {
    let readings = entry.usable;
    let (usable, usable_basis) = match &readings.rule {
        Some(id) => match rules.iter().find(|rule| rule.id == *id) {
            Some(rule) => {
                (rule.usable(entry.printed_mib), format!("rule {}: {}", rule.id, rule.note))
            }
            // A test checks that every rule named in the data exists.
            None => (UsableRule::whole().usable(entry.printed_mib), "the printed total".to_owned()),
        },
        None => (
            Usable {
                low: Bytes::mib(readings.low_mib),
                typical: Bytes::mib(readings.typical_mib),
                high: Bytes::mib(readings.high_mib),
                basis: readings.basis(),
            },
            readings.sources.join(", "),
        ),
    };
    Gpu {
        id: entry.id,
        name: entry.name,
        aliases: entry.aliases,
        vendor: entry.vendor,
        class: entry.class,
        target: entry.target,
        memory: entry.memory,
        printed: Bytes::mib(entry.printed_mib),
        printed_old_driver: entry.printed_old_driver_mib.map(Bytes::mib),
        unified: entry.unified,
        usable,
        usable_basis,
        bandwidth_gbps: entry.bandwidth_gbps,
        peak_gflops: entry.peak_gflops,
        sms: entry.sms,
        link: entry.link,
        tdp_w: entry.tdp_w,
        mig: entry.mig,
        sources: entry.sources,
        note: entry.note,
    }
}

impl UsableRule {
    fn whole() -> Self {
        UsableRule {
            id: "whole".to_owned(),
            reserve_mib: 0,
            reserve_per_10000: 0,
            spread_mib: 0,
            spread_per_10000: 0,
            note: String::new(),
        }
    }
}

/// Every GPU, in the order of the data file: data centre, consumer and workstation, unified, other vendors, Apple.
pub fn gpus() -> std::slice::Iter<'static, Gpu> {
    catalogue().gpus.iter()
}

/// The day on which the GPU table was last checked, `YYYY-MM-DD`.
pub fn gpus_date() -> &'static str {
    &catalogue().date
}

/// What a source mark of [`Gpu::sources`] stands for.
pub fn source_of(mark: &str) -> Option<&'static str> {
    catalogue().sources.get(mark).map(String::as_str)
}

/// A name that no GPU has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{query}` is not a known GPU{}; `plimsoll gpus` lists them all, and a capacity such as 24GiB works for any other", did_you_mean(.nearest))]
pub struct UnknownGpu {
    /// What was asked for.
    pub query: String,
    /// The ids of the nearest names, best first; empty when nothing is near.
    pub nearest: Vec<String>,
}

fn did_you_mean(nearest: &[String]) -> String {
    match nearest {
        [] => String::new(),
        [one] => format!("; did you mean {one}?"),
        [most @ .., last] => format!("; did you mean {} or {last}?", most.join(", ")),
    }
}

/// A GPU that was found, and what had to be assumed to find it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The GPU.
    pub gpu: &'static Gpu,
    /// One sentence where the name left a choice open.
    pub assumption: Option<String>,
}

/// Finds a GPU by id, driver name or common spelling. Case, spaces, dashes and the vendor's brand words do not
/// matter. `A100`, `V100` and other families with several memory sizes give the smallest; [`resolve_gpu`] says so.
///
/// ```
/// use plimsoll_catalog::gpus::find_gpu;
/// assert_eq!(find_gpu("NVIDIA A100-SXM4-80GB").unwrap().id, "a100-80g");
/// assert_eq!(find_gpu("3090").unwrap().id, "rtx-3090");
/// assert!(find_gpu("rtx-4900").unwrap_err().to_string().contains("rtx-4090"));
/// ```
///
/// # Errors
/// [`UnknownGpu`] with the nearest names.
pub fn find_gpu(query: &str) -> Result<&'static Gpu, UnknownGpu> {
    resolve_gpu(query).map(|found| found.gpu)
}

/// As [`find_gpu`], keeping what was assumed. A remark in brackets is dropped when the whole is not a name, and of
/// alternatives (`V100-16GB/32GB`) the first known one is taken.
///
/// # Errors
/// [`UnknownGpu`] with the nearest names.
pub fn resolve_gpu(query: &str) -> Result<Found, UnknownGpu> {
    recognize(query).ok_or_else(|| UnknownGpu::new(query))
}

/// [`resolve_gpu`] without the search for near names, which costs more than everything else here.
pub(crate) fn recognize(query: &str) -> Option<Found> {
    if query.len() > MAX_QUERY {
        return None;
    }
    let before_bracket = || query.split_once('(').and_then(|(before, _)| lookup(before));
    lookup(query).or_else(before_bracket).or_else(|| {
        if !query.contains('/') {
            return None;
        }
        let found = query.split('/').find_map(lookup)?;
        let say = format!("`{}` names alternatives; {} is assumed", query.trim(), found.gpu.id);
        Some(Found { assumption: Some(say), ..found })
    })
}

impl UnknownGpu {
    pub(crate) fn new(query: &str) -> Self {
        UnknownGpu { query: clip(query), nearest: nearest(query) }
    }
}

/// Longer texts are not names; nothing is searched for them.
const MAX_QUERY: usize = 200;

/// The first part of a long text, for messages.
pub(crate) fn clip(text: &str) -> String {
    const SHOWN: usize = 60;
    if text.chars().count() <= SHOWN {
        return text.to_owned();
    }
    text.chars().take(SHOWN).chain("...".chars()).collect()
}

fn lookup(query: &str) -> Option<Found> {
    let gpus = &catalogue().gpus;
    if let Some(gpu) = gpus.iter().find(|gpu| gpu.id == query) {
        return Some(Found { gpu, assumption: None });
    }
    let spellings = spellings();
    let key = normalize(query);
    if let Some(&index) = spellings.names.get(&key) {
        return Some(Found { gpu: gpus.get(index)?, assumption: None });
    }
    let (index, family) = spellings.families.get(&key)?;
    let say = format!(
        "`{}` names several devices; {} is assumed, the smallest (others: {})",
        family.name,
        family.assume,
        family.others.join(", ")
    );
    Some(Found { gpu: gpus.get(*index)?, assumption: Some(say) })
}

/// Lower case, without brand words, separators and a final `GPU`; `80 GB` and `80GiB` become `80g`.
fn normalize(text: &str) -> String {
    const BRANDS: [&str; 6] = ["nvidia", "geforce", "tesla", "amd", "instinct", "radeon"];
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(brand) = BRANDS.iter().find(|brand| starts_with(rest, brand)) {
            rest = &rest[brand.len()..];
            continue;
        }
        let unit = ["gib", "gb"].into_iter().find(|unit| starts_with(rest, unit));
        if let Some(unit) = unit
            && out.ends_with(|c: char| c.is_ascii_digit())
        {
            out.push('g');
            rest = &rest[unit.len()..];
            continue;
        }
        if !c.is_whitespace() && !matches!(c, '-' | '_' | '/' | '(' | ')' | '+' | ',' | '.') {
            out.push(c.to_ascii_lowercase());
        }
        rest = &rest[c.len_utf8()..];
    }
    if out.ends_with("gpu") {
        out.truncate(out.len() - "gpu".len());
    }
    out
}

/// Whether `text` begins with the lower-case word `word`, in any case.
fn starts_with(text: &str, word: &str) -> bool {
    text.as_bytes().get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word.as_bytes()))
}

/// Up to three ids whose spellings resemble the query.
fn nearest(query: &str) -> Vec<String> {
    if query.len() > MAX_QUERY {
        return Vec::new();
    }
    let key = normalize(query);
    if key.is_empty() {
        return Vec::new();
    }
    let spellings = spellings();
    let mut scored: Vec<(u32, usize)> = spellings
        .names
        .iter()
        .map(|(name, &index)| (similarity(&key, name), index))
        .chain(spellings.families.iter().map(|(name, (index, _))| (similarity(&key, name), *index)))
        .filter(|(score, _)| *score >= 650)
        .collect();
    // Best first, then catalogue order, so that the hash map's order never shows.
    scored.sort_by_key(|&(score, index)| (std::cmp::Reverse(score), index));
    let mut ids: Vec<String> = Vec::new();
    for (_, index) in scored {
        let Some(Gpu { id, .. }) = catalogue().gpus.get(index) else { continue };
        if !ids.contains(id) {
            ids.push(id.clone());
        }
        if ids.len() == 3 {
            break;
        }
    }
    ids
}

/// Per mille: 1000 minus the edit distance (transpositions count once) over the longer length; at least 900 where
/// one begins with the other and 800 where the query holds the name.
fn similarity(query: &str, name: &str) -> u32 {
    let (a, b) = (query, name);
    let longer = a.chars().count().max(b.chars().count());
    let distance = strsim::damerau_levenshtein(a, b);
    let edit = 1000 - (distance * 1000).checked_div(longer).unwrap_or(0);
    let part = if a.len() >= 3 && (b.starts_with(a) || a.starts_with(b) && b.len() >= 3) {
        900
    } else if b.len() >= 4 && a.contains(b) {
        800
    } else {
        0
    };
    u32::try_from(edit.max(part)).unwrap_or(0)
}

#[cfg(test)]
#[path = "gpus_tests.rs"]
mod tests;
