//! The body for fuzzers: any bytes may come in, no panic may come of it, and what comes out keeps its promises.

use super::judge::{self, Knowledge, ModelFacts};
use super::{Log, Reader};

/// Reads the bytes as a log and judges it.
pub fn fuzz_log(data: &[u8]) {
    let mut reader = Reader::new();
    reader.source("a");
    let (first, second) = data.split_at(data.len() / 2);
    reader.feed(first);
    reader.feed(second);
    reader.source("b");
    reader.feed(data);
    let log = reader.finish();
    check(&log);
    let model = ModelFacts { name: "m".to_owned(), vocabulary: 32_000, parameters: 1 };
    for knowledge in [Knowledge::default(), Knowledge { model: Some(model) }] {
        for finding in judge::findings(&log, &knowledge) {
            assert!(!finding.code.is_empty() && !finding.title.is_empty());
        }
    }
    let main = judge::main_failure(&log);
    let _ = judge::division(&log, main);
    if let Some(main) = main {
        let _ = judge::foreign(main);
    }
}

fn check(log: &Log) {
    let lines = log.sources.iter().map(|s| s.lines).max().unwrap_or(0);
    for failure in &log.failures {
        assert!(failure.line >= 1 && failure.line <= lines && failure.prints >= 1);
    }
    assert!(log.failure_prints >= log.failures.iter().map(|f| f.prints).sum::<u64>());
    for series in log.series.values() {
        assert!(series.points.len() <= 65 && series.count >= series.points.len() as u64);
    }
}
