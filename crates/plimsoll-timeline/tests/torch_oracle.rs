//! Replays what PyTorch's own allocator did (torch 2.11 to 2.15 on a stand-in driver, see `validation/allocator`): every
//! address, every call of the driver, every statistic and the final layout must be the same.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::path::Path;

use plimsoll_timeline::{
    BlockHandle, BlockState, Client, Driver, DriverCall, DriverLog, PendingFrees, PoolId, PoolKind,
    PoolOptions, PoolStatistics, PyTorchAllocator, PyTorchConfig, RoundupDivisions, Statistic,
};
use plimsoll_units::Bytes;

/// Hands out the recorded addresses and refuses what exceeds the capacity.
struct Stand {
    capacity: u64,
    used: u64,
    segments: VecDeque<u64>,
    reservations: VecDeque<u64>,
}

impl Stand {
    fn take(&mut self, size: Bytes) -> bool {
        let fits = self.used + size.get() <= self.capacity;
        self.used += if fits { size.get() } else { 0 };
        fits
    }
}

impl Driver for Stand {
    fn alloc_segment(&mut self, _: Client, size: Bytes) -> Option<u64> {
        self.take(size).then(|| self.segments.pop_front().expect("torch made one more segment"))
    }
    fn free_segment(&mut self, _: Client, _: u64, size: Bytes) {
        self.used -= size.get();
    }
    fn reserve(&mut self, _: Client, _: Bytes, _: Bytes) -> Option<u64> {
        Some(self.reservations.pop_front().expect("torch made one more reservation"))
    }
    fn map(&mut self, _: Client, _: u64, size: Bytes) -> bool {
        self.take(size)
    }
    fn unmap(&mut self, _: Client, _: u64, size: Bytes) {
        self.used -= size.get();
    }
    fn free_bytes(&self) -> Option<Bytes> {
        Some(Bytes::new(self.capacity - self.used))
    }
    fn total_bytes(&self) -> Option<Bytes> {
        Some(Bytes::new(self.capacity))
    }
}

/// What a settings text says: torch 2.15 begins with the defaults, except that expandable segments stay on and the
/// memory limit stays what it was at first.
fn configure(
    version: &PyTorchConfig,
    before: Option<&PyTorchConfig>,
    text: &str,
    capacity: u64,
) -> PyTorchConfig {
    let mut config = version.clone();
    config.expandable_segments = before.is_some_and(|before| before.expandable_segments);
    config.pending_frees = PendingFrees::Synchronize;
    let (mut reject, mut fraction, mut rounding) = (false, 1.0, None);
    for pair in text.split(',').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once(':').unwrap();
        let mib = || Some(Bytes::mib(value.parse().unwrap()));
        match key {
            "max_split_size_mb" => config.max_split_size = mib(),
            "max_non_split_rounding_mb" => rounding = mib(),
            "large_segment_size_mb" => config.large_segment = mib().unwrap(),
            "garbage_collection_threshold" => {
                config.garbage_collection_threshold = Some(value.parse().unwrap());
            }
            "expandable_segments" => config.expandable_segments = value == "True",
            "roundup_power2_divisions" => {
                config.roundup_power2_divisions = RoundupDivisions::uniform(value.parse().unwrap());
            }
            "per_process_memory_fraction" => fraction = value.parse().unwrap(),
            "throw_on_cudamalloc_oom" => reject = value == "True",
            _ => panic!("unknown setting {key}"),
        }
    }
    config.max_non_split_rounding = rounding.unwrap_or(config.large_segment);
    let limit = (fraction * capacity as f64) as u64;
    config.memory_limit = match before {
        Some(before) => before.memory_limit,
        None => (fraction < 1.0).then_some(Bytes::new(limit)),
    };
    config.reject_above = reject.then_some(Bytes::new(limit));
    config
}

type Torch = PyTorchAllocator<DriverLog<Stand>>;

struct Replay {
    torch: Torch,
    version: PyTorchConfig,
    capacity: u64,
    live: HashMap<u64, BlockHandle>,
    /// Pools that requests are routed to, newest last.
    routes: Vec<PoolId>,
}

impl Replay {
    /// Does one step and says what torch's trace would.
    fn step(&mut self, line: &str) -> String {
        let torch = &mut self.torch;
        let mut words = line.split_whitespace();
        let op = words.next().unwrap();
        let rest = line[op.len()..].trim();
        let numbers: Vec<u64> = words.map_while(|w| w.parse().ok()).collect();
        let number = |i: usize| numbers.get(i).copied().unwrap_or(0);
        let pool = PoolId(number(0) as u16);
        let mut outcome = String::new();
        match op {
            "a" => {
                let home = self.routes.last().copied().unwrap_or_default();
                let before = torch.statistics().num_oom_rejections;
                match torch.malloc_in(home, Bytes::new(number(1)), number(2) as u16) {
                    Ok(block) => {
                        let at = torch.address(&block);
                        writeln!(outcome, " alloc {at:x} {}", number(1)).unwrap();
                        self.live.insert(number(0), block);
                    }
                    Err(_) if torch.statistics().num_oom_rejections > before => {
                        outcome.push_str(" rejected\n");
                    }
                    Err(error) => {
                        let free = torch.driver().free_bytes().unwrap().get();
                        writeln!(outcome, " oom {free:x} {}", error.rounded.get()).unwrap();
                    }
                }
            }
            "f" => {
                if let Some(block) = self.live.remove(&number(0)) {
                    torch.free(block);
                }
            }
            "r" => {
                if let Some(block) = self.live.get(&number(0)) {
                    torch.record_stream(block, number(1) as u16);
                }
            }
            "done" => torch.finish_streams(),
            "e" => torch.empty_pool_cache(pool),
            "b" => {
                torch.begin_pool(pool);
                self.routes.push(pool);
            }
            "n" => {
                torch.end_pool(pool);
                let at = self.routes.iter().position(|p| *p == pool).unwrap();
                self.routes.remove(at);
            }
            "l" => torch.release_pool(pool),
            "cb" => torch.begin_capture(),
            "ce" => torch.end_capture(),
            "o" => {
                let (use_on_oom, no_split) = (number(1) > 0, number(2) > 0);
                torch.set_pool_options(pool, PoolOptions { use_on_oom, no_split });
            }
            "peaks" => torch.reset_peaks(),
            "conf" => {
                let config = configure(&self.version, Some(torch.config()), rest, self.capacity);
                torch.reconfigure(config);
            }
            _ => panic!("unknown step {line}"),
        }
        let mut said = String::new();
        for event in torch.driver_mut().drain() {
            let name = match event.call {
                DriverCall::SegmentAlloc => "segment_alloc",
                DriverCall::SegmentFree => "segment_free",
                DriverCall::SegmentMap => "segment_map",
                DriverCall::SegmentUnmap => "segment_unmap",
                DriverCall::Refused => continue,
            };
            writeln!(said, " {name} {:x} {}", event.address, event.size.get()).unwrap();
        }
        said + &outcome
    }
}

fn counts(s: &Statistic<u64>) -> String {
    format!(" {}/{}/{}/{}", s.current, s.peak, s.allocated, s.freed())
}

fn signed(s: &Statistic<i64>) -> String {
    format!(" {}/{}/{}/{}", s.current, s.peak, s.allocated, s.freed())
}

fn bytes(s: &Statistic<Bytes>) -> String {
    let [current, peak, allocated, freed] =
        [s.current, s.peak, s.allocated, s.freed()].map(Bytes::get);
    format!(" {current}/{peak}/{allocated}/{freed}")
}

/// Statistics and segments as the oracle prints them.
fn report(torch: &Torch) -> String {
    let all = torch.statistics();
    let mut out = String::new();
    let pools = [&all.all, &all.small_pool, &all.large_pool];
    let mut line = |name: &str, show: &dyn Fn(&PoolStatistics) -> String| {
        let shown: String = pools.iter().map(|pool| show(pool)).collect();
        writeln!(out, "stat {name}{shown}").unwrap();
    };
    line("allocation", &|p| counts(&p.allocation));
    line("allocated_bytes", &|p| bytes(&p.allocated_bytes));
    line("active", &|p| counts(&p.active));
    line("active_bytes", &|p| bytes(&p.active_bytes));
    line("requested_bytes", &|p| bytes(&p.requested_bytes));
    line("segment", &|p| counts(&p.segment));
    line("reserved_bytes", &|p| bytes(&p.reserved_bytes));
    line("inactive_split", &|p| counts(&p.inactive_split));
    line("inactive_split_bytes", &|p| bytes(&p.inactive_split_bytes));
    writeln!(out, "stat oversize_allocations{}", signed(&all.oversize_allocations)).unwrap();
    writeln!(out, "stat oversize_segments{}", signed(&all.oversize_segments)).unwrap();
    writeln!(
        out,
        "stat counts {} {} {} {} {} {}",
        all.num_alloc_retries,
        all.num_ooms,
        all.num_oom_rejections,
        all.num_sync_all_streams,
        all.num_device_alloc,
        all.num_device_free
    )
    .unwrap();
    for s in torch.layout().segments {
        let kind = if s.kind == PoolKind::Large { "large" } else { "small" };
        let expandable = u8::from(s.expandable);
        let (size, pool) = (s.size.get(), s.pool.0);
        write!(out, "segment {:x} {size} {kind} {} {pool} {expandable}", s.address, s.stream)
            .unwrap();
        for block in s.blocks {
            let state = match block.state {
                BlockState::Allocated => 'a',
                BlockState::PendingFree => 'p',
                BlockState::Free => 'f',
            };
            write!(out, " {state}{}", block.size.get()).unwrap();
        }
        out.push('\n');
    }
    out
}

/// A step of the script and what torch's trace said; frees are left out, as the final layout shows them.
fn steps(text: &str) -> Vec<(String, String)> {
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if !line.starts_with(' ') {
            steps.push((line.to_owned(), String::new()));
        } else if words[0] == "rejected" {
            steps.last_mut().unwrap().1.push_str(" rejected\n");
        } else if !["free_requested", "free_completed", "reserve", "snapshot"].contains(&words[0]) {
            let said = &mut steps.last_mut().unwrap().1;
            writeln!(said, " {} {} {}", words[0], words[1], words[2]).unwrap();
        }
    }
    steps
}

fn addresses(text: &str, action: &str) -> VecDeque<u64> {
    (text.lines())
        .filter_map(|line| line.strip_prefix(action))
        .map(|rest| u64::from_str_radix(rest.split_whitespace().next().unwrap(), 16).unwrap())
        .collect()
}

fn check(name: &str, text: &str) {
    let setting = |key| {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        line.unwrap_or_default().trim().to_owned()
    };
    let capacity: u64 = setting("capacity").parse().unwrap();
    let number = setting("torch");
    let mut numbers = number.split('.').map(|n| n.parse().unwrap());
    let version = PyTorchConfig::for_torch(numbers.next().unwrap(), numbers.next().unwrap());
    let stand = Stand {
        capacity,
        used: 0,
        segments: addresses(text, " segment_alloc "),
        reservations: addresses(text, " reserve "),
    };
    let config = configure(&version, None, &setting("set"), capacity);
    let torch = PyTorchAllocator::with_driver(config, DriverLog::new(stand));
    let mut replay = Replay { torch, version, capacity, live: HashMap::new(), routes: Vec::new() };
    let (script, end): (Vec<_>, Vec<_>) = steps(text)
        .into_iter()
        .partition(|(line, _)| !line.starts_with("stat") && !line.starts_with("segment"));
    for (i, (line, expected)) in script.iter().enumerate() {
        if ["torch", "capacity", "set"].contains(&line.split(' ').next().unwrap()) {
            continue;
        }
        let said = replay.step(line);
        assert_eq!(&said, expected, "{name}, step {i}: {line}");
    }
    let end: String = end.iter().map(|(line, _)| format!("{line}\n")).collect();
    assert_eq!(report(&replay.torch), end, "{name}, at the end");
}

#[test]
fn replays_are_exact() {
    let folder = std::env::var("PLIMSOLL_ORACLE_RUNS")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torch").to_owned());
    let mut files: Vec<_> = std::fs::read_dir(Path::new(&folder))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt"))
        .collect();
    files.sort();
    let mut failed = Vec::new();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let run = std::panic::catch_unwind(|| check(&name, &text));
        if run.is_err() {
            failed.push(name);
        }
    }
    assert!(!files.is_empty());
    assert!(failed.is_empty(), "{} of {} runs depart: {failed:?}", failed.len(), files.len());
}
