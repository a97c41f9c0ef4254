//! What a tensor may be, judged by its size or shape: logits, attention scores.

use plimsoll_units::Bytes;

use super::super::Log;
use super::super::settings::Setting;
use super::super::trace::Phase;
use super::Knowledge;

/// Says whether `low..=high` bytes are logits of the run's model: tokens x vocabulary in float32 or half precision.
pub fn logits(
    log: &Log,
    knowledge: &Knowledge,
    phase: Option<Phase>,
    low: Bytes,
    high: Bytes,
) -> Option<String> {
    let model = knowledge.model.as_ref().filter(|m| m.vocabulary >= 1000)?;
    // Smaller ones are no reason to run out.
    if high < Bytes::mib(128) {
        return None;
    }
    let batch = log.run.number(Setting::MicroBatch);
    let length =
        log.run.number(Setting::SequenceLength).or_else(|| log.run.number(Setting::MaxLen));
    for (width, name) in [(4u64, "float32"), (2, "bf16 or fp16")] {
        let row = model.vocabulary.checked_mul(width)?;
        let (least, most) = (low.get().div_ceil(row), high.get() / row);
        if most == 0 || least > most {
            continue;
        }
        let words = |tokens: String| {
            format!(
                "That is the size of logits in {name}: {tokens} x vocabulary {} of {}",
                model.vocabulary, model.name
            )
        };
        if let (Some(batch), Some(length)) = (batch, length) {
            // Losses shift labels by one token; some code drops the last logit instead.
            for length in [length, length.saturating_sub(1)] {
                if batch.checked_mul(length).is_some_and(|n| (least..=most).contains(&n)) {
                    return Some(words(format!("batch {batch} x {length} tokens")));
                }
            }
        }
        let tokens = if least == most { least.to_string() } else { format!("{least} to {most}") };
        if phase == Some(Phase::Loss) {
            return Some(words(format!("{tokens} tokens")));
        }
        // A round number of tokens in a narrow range hardly comes by chance.
        let round = most / 512 * 512;
        if round >= least && round > 0 && most - least < 64 {
            return Some(words(format!("{round} tokens")));
        }
    }
    None
}

/// What a shape such as `f32[32,12,4096,4096]` or `[64,1024,50257] float` is, where its last dimensions tell.
pub fn of_shape(text: &str, knowledge: &Knowledge) -> Option<&'static str> {
    let inside = text.split_once('[')?.1.split_once(']')?.0;
    let mut dims = inside.split(',').rev().map(|d| d.trim().parse::<u64>().unwrap_or(0));
    let (last, before) = (dims.next()?, dims.next()?);
    let vocabulary = knowledge.model.as_ref().map(|m| m.vocabulary);
    if vocabulary == Some(last) || (vocabulary.is_none() && last >= 30_000 && before < 30_000) {
        return Some("logits over the vocabulary, by its last dimension");
    }
    if last == before && last >= 512 {
        return Some("attention scores, length x length, by its last dimensions");
    }
    None
}
