//! The host's memory.

use super::super::figure::{self, Key};
use super::super::table::Kind;
use super::super::{Failure, Log};
use super::{at, push};
use crate::finding::{Finding, Weight};

const SHM: [&str; 3] = ["loader-bus", "loader-bus-old", "shm-file"];

/// A process was killed, or shared memory ran out.
pub fn killed(log: &Log, failure: &Failure, out: &mut Vec<Finding>) {
    if SHM.contains(&failure.pattern.key) {
        out.push(
            Finding::new("shared-memory", Weight::Cause, "shared memory of the host ran out, not the GPU's")
                .say("workers of the DataLoader pass batches through /dev/shm, which containers limit to 64 MiB unless told otherwise")
                .act("give the container more: docker run --shm-size=16g (or --ipc=host); in Kubernetes an emptyDir of medium Memory at /dev/shm")
                .act("lower num_workers or prefetch_factor")
                .act("torch.multiprocessing.set_sharing_strategy(\"file_system\") passes batches through files"),
        );
        return;
    }
    let sure = failure.pattern.kind == Kind::Host;
    let title = if sure {
        "the process took more than the machine or container has"
    } else {
        "the process was killed from outside"
    };
    let mut finding = Finding::new("host-memory", Weight::Cause, title);
    finding = match sure {
        true => finding.say("this is the memory of the machine or container, not of the GPU"),
        false => finding.say("SIGKILL (exit code 137 = 128 + 9) is what the kernel sends when the host runs out of memory, but a scheduler or a user may send it too; dmesg or the container's OOMKilled flag tells"),
    };
    for key in [Key::ResidentSet, Key::VirtualSize] {
        finding = push(finding, key, figure::printed(&failure.readings, key));
    }
    if let Some(resident) = figure::bytes(&failure.readings, Key::ResidentSet) {
        finding = finding.say(format!("The process held {resident} of host memory"));
    }
    if let Some(line) = log.before.iter().rev().find(|u| u.pattern == "deepspeed-host") {
        let used = figure::printed(&line.readings, Key::HostUsed);
        let share = figure::permille(&line.readings, Key::HostShare);
        if let (Some(used), Some(share)) = (used, share) {
            finding = finding.say(format!(
                "Before it {} ({} %) of the host were in use",
                used.bytes,
                share / 10
            ));
        }
        finding = push(finding, Key::HostUsed, used);
    }
    out.push(at(host_actions(finding), failure));
}

fn host_actions(finding: Finding) -> Finding {
    finding
        .act("while loading: safetensors with low_cpu_mem_usage, and one process per host reading the weights (fsdp_cpu_ram_efficient_loading); every rank that loads the whole model takes it again")
        .act("with offload: the host holds what the GPU does not; the estimate prints \"host memory\"")
        .act("lower num_workers of DataLoaders: each worker holds its own copy of what the data set keeps in Python objects")
        .act("raise the container's or job's limit (docker --memory, Kubernetes limits.memory, Slurm --mem)")
}

/// A program asked for host memory and got none.
pub fn allocation(failure: &Failure, out: &mut Vec<Finding>) {
    let mut finding = Finding::new("host-allocation", Weight::Cause, "the host refused memory")
        .say("the allocation was in the machine's own memory, not the GPU's");
    if let Some(requested) = figure::bytes(&failure.readings, Key::Requested) {
        finding = finding.say(format!("{requested} were asked for in one piece"));
    }
    finding = push(finding, Key::Requested, figure::printed(&failure.readings, Key::Requested));
    if let Some(figure::Reading { value: figure::Amount::Text(shape), .. }) =
        figure::find(&failure.readings, Key::Shape)
    {
        finding = finding.say(format!("for shape {}", shape.trim()));
    }
    out.push(at(host_actions(finding), failure));
}
