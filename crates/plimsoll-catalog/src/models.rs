//! Published model configurations by their Hugging Face name: the keys of `config.json` that decide shapes and memory,
//! and the exact number of parameters. The facts are in `data/models/`, one file for each family; the build turns them
//! into tables, so nothing is parsed here. What a configuration means for memory is the model crate's business.

use std::collections::BTreeMap;

/// One published model. All text is compiled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// The repository name, such as `meta-llama/Llama-3.1-8B`.
    pub name: &'static str,
    /// Other repositories of the same shapes (instruction-tuned versions, mirrors) and short names.
    pub aliases: &'static [&'static str],
    /// The parameters of the published checkpoint before any quantization, tied embeddings counted once.
    pub parameters: u64,
    /// Where the configuration comes from and how the parameters were counted.
    pub source: &'static str,
    /// The month of publication, as `2024-07`.
    pub date: &'static str,
    /// The configuration as a JSON object under its upstream key names. `tie_word_embeddings` is written out where the
    /// upstream file leaves it to the default of its class.
    pub config: &'static str,
}

include!(concat!(env!("OUT_DIR"), "/models.rs"));

/// Every model, family by family, in an order that does not change between runs.
pub fn models() -> impl ExactSizeIterator<Item = &'static ModelEntry> {
    ENTRIES.iter()
}

/// The model called `query`: its name or an alias, with or without the part before the slash, in any case.
///
/// ```
/// use plimsoll_catalog::models;
///
/// let model = models::find("llama-3.1-8b").unwrap();
/// assert_eq!(model.name, "meta-llama/Llama-3.1-8B");
/// assert_eq!(model.parameters, 8_030_261_248);
/// ```
pub fn find(query: &str) -> Result<&'static ModelEntry, UnknownModel> {
    let wanted = query.trim().to_ascii_lowercase();
    match SPELLINGS.binary_search_by(|(spelling, _)| (*spelling).cmp(&wanted)) {
        Ok(place) => Ok(&ENTRIES[usize::from(SPELLINGS[place].1)]),
        Err(_) => Err(UnknownModel { query: query.to_owned(), nearest: nearest(&wanted) }),
    }
}

/// No model in the catalogue has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model `{}` is not in the catalogue{}", .query.escape_debug(), suggestion(.nearest))]
#[non_exhaustive]
pub struct UnknownModel {
    /// What was asked for.
    pub query: String,
    /// Names of the models with the closest spellings, closest first; empty when nothing is close.
    pub nearest: Vec<&'static str>,
}

fn suggestion(nearest: &[&str]) -> String {
    match nearest {
        [] => String::new(),
        names => format!("; the nearest names are {}", names.join(", ")),
    }
}

/// How many names an error offers.
const OFFERED: usize = 5;

/// A longer query is not a misspelt name, and comparing it would only take time.
const LONGEST_COMPARED: usize = 96;

/// The names of the models with a spelling at most a third of `wanted` away, by distance and then in catalogue order.
fn nearest(wanted: &str) -> Vec<&'static str> {
    if wanted.len() > LONGEST_COMPARED {
        return Vec::new();
    }
    // Every spelling is ASCII, so any other character counts as one wrong character.
    let wanted: String =
        wanted.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect();
    let limit = (wanted.len() / 3).max(1);
    let mut candidates: Vec<(usize, &str, u16)> = SPELLINGS
        .iter()
        .filter(|(spelling, _)| spelling.len().abs_diff(wanted.len()) <= limit)
        .map(|(spelling, index)| (least_distance(&wanted, spelling), *spelling, *index))
        .filter(|(bound, ..)| *bound <= limit)
        .collect();
    candidates.sort_unstable();
    let mut closest: BTreeMap<u16, usize> = BTreeMap::new();
    for (bound, spelling, index) in candidates {
        // The bounds only grow, so once enough models are at most this far, the rest are no nearer.
        if closest.values().filter(|distance| **distance < bound).count() >= OFFERED {
            break;
        }
        let distance = strsim::osa_distance(&wanted, spelling);
        if distance <= limit {
            let known = closest.entry(index).or_insert(distance);
            *known = distance.min(*known);
        }
    }
    let mut ranked: Vec<(usize, u16)> =
        closest.into_iter().map(|(index, distance)| (distance, index)).collect();
    ranked.sort_unstable();
    ranked.iter().take(OFFERED).map(|(_, index)| ENTRIES[usize::from(*index)].name).collect()
}

/// A lower bound of the edit distance that is quick to compute: the characters that one has and the other lacks, where
/// an insertion, a deletion or a replacement mends one of either kind and a swap mends none.
fn least_distance(one: &str, other: &str) -> usize {
    let mut surplus = [0_i16; 128];
    for letter in one.bytes() {
        surplus[usize::from(letter & 127)] += 1;
    }
    for letter in other.bytes() {
        surplus[usize::from(letter & 127)] -= 1;
    }
    let (mut more, mut less) = (0, 0);
    for count in surplus {
        if count > 0 {
            more += usize::from(count.unsigned_abs());
        } else {
            less += usize::from(count.unsigned_abs());
        }
    }
    more.max(less)
}

#[cfg(test)]
#[path = "models_tests.rs"]
mod tests;
