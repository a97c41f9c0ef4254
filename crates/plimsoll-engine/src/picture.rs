//! The picture of a response: memory over one step where the workload has a timeline, else the peak as one bar.

use plimsoll_timeline::{Category, PyTorchConfig, ReplayOptions, replay};
use plimsoll_units::Bytes;

use crate::plot::{self, PlotData, PlotPeak};
use crate::response::Response;

/// Draws a response as SVG text.
pub fn picture(response: &Response) -> String {
    let data = |curve: PlotData| PlotData {
        title: title(response),
        subtitle: subtitle(response),
        capacity: Some(response.capacity),
        machine: response.machine.label.clone(),
        outside: response.peak.device - response.peak.reserved,
        ..curve
    };
    match &response.timeline {
        Some(timeline) => {
            let footprint = match &response.replayed_on {
                Some((choice, memory)) => {
                    choice.replay(timeline, memory, &ReplayOptions::default()).footprint
                }
                None => replay(timeline, &PyTorchConfig::default()),
            };
            plot::figure(&data(PlotData::from_footprint(&footprint)))
        }
        None => {
            plot::peak_bar(&data(PlotData { peak: Some(peak(response)), ..PlotData::default() }))
        }
    }
}

fn title(r: &Response) -> String {
    let name = r.model.as_ref().map_or("Data", |m| m.name.as_str());
    format!("{name}: {}", r.verdict)
}

fn subtitle(r: &Response) -> String {
    match r.request.strategy.as_str() {
        "" => r.request.workload.clone(),
        strategy => format!("{}; {strategy}", r.request.workload),
    }
}

/// The peak without a curve; what lies outside the allocator is drawn by itself.
fn peak(r: &Response) -> PlotPeak {
    let mut by_category = [Bytes::ZERO; Category::ALL.len()];
    for row in r.categories.iter().filter(|row| row.category != Category::Context) {
        by_category[row.category as usize] = row.bytes;
    }
    PlotPeak {
        event: 0,
        phase: r.peak_phase.clone().unwrap_or_default(),
        by_category,
        reserved: r.peak.reserved,
        reserved_peak: r.peak.reserved,
    }
}
