//! The host's memory: the kernel's killer, containers, shared memory, Python.

use super::super::figure::Key;
use super::super::table::Framework::Host;
use super::super::table::{Field, Kind, Pattern};

pub const HOST: &[Pattern] = &[
    Pattern::new("kernel-killed", Host, Kind::Host, "ut of memory: Killed process ")
        .fields(KILLED)
        .from(
            "Linux 5.0 and later; also 'Memory cgroup out of memory'",
            "0jc1/py-autovod#7; reportportal/kubernetes#203",
        ),
    Pattern::new("kernel-kill", Host, Kind::Host, "ut of memory: Kill process ")
        .from("Linux before 5.0", "linux-test-project/ltp#1080"),
    Pattern::new("kernel-killed-old", Host, Kind::Host, "Killed process ")
        .only(|line| line.contains("anon-rss:") && !line.contains("ut of memory: "))
        .fields(KILLED)
        .from("Linux before 5.0", "linux-test-project/ltp#1080; openbmc/openbmc#1887"),
    Pattern::new("kernel-oom-kill", Host, Kind::Host, "oom-kill:constraint=")
        .from("Linux 4.19 and later", "0jc1/py-autovod#7"),
    Pattern::new("kernel-invoked", Host, Kind::Host, " invoked oom-killer")
        .from("every Linux", "reportportal/kubernetes#203"),
    Pattern::new("killed", Host, Kind::Perhaps, "Killed")
        .only(|line| {
            let line = line.trim();
            line == "Killed"
                || line.split_once(" Killed  ").is_some_and(|(head, _)| head.contains("line "))
        })
        .from("bash, when a program ends by SIGKILL", "0jc1/py-autovod#7"),
    Pattern::new("exit-137", Host, Kind::Perhaps, "code 137")
        .only(|line| line.contains("xit"))
        .from(
            "shells, Docker: exit code 137, exited with code 137; 128 + SIGKILL",
            "cBio/cbio-cluster#232; moby/moby#22211",
        ),
    Pattern::new("exit-137-field", Host, Kind::Perhaps, "code: 137")
        .only(|line| line.contains("xit"))
        .from(
            "Kubernetes: exit code: 137; 128 + SIGKILL",
            "cBio/cbio-cluster#232; moby/moby#22211",
        ),
    Pattern::new("exit-137-status", Host, Kind::Perhaps, "status 137")
        .only(|line| line.contains("xit"))
        .from("shells and job systems; 128 + SIGKILL", "cBio/cbio-cluster#232; moby/moby#22211"),
    Pattern::new("oomkilled", Host, Kind::Host, "OOMKilled").from("Kubernetes, Docker", "recalled"),
    Pattern::new("torchrun-sigkill", Host, Kind::Perhaps, "Signal 9 (SIGKILL)")
        .from("torchrun", "recalled"),
    Pattern::new("exitcode-9", Host, Kind::Perhaps, "exitcode: -9").from("torchrun", "recalled"),
    Pattern::new("slurm-oom", Host, Kind::Host, "oom_kill event")
        .from("Slurm 20.11 and later", "recalled"),
    Pattern::new("slurm-oom-old", Host, Kind::Host, "oom-kill event")
        .from("Slurm before 20.11", "recalled"),
    Pattern::new("loader-bus", Host, Kind::Host, "is killed by signal: Bus error")
        .from("PyTorch 0.4 and later: shared memory ran out", "pytorch/pytorch#108861, #25730"),
    Pattern::new("loader-bus-old", Host, Kind::Host, "Unexpected bus error encountered in worker")
        .from("PyTorch 0.3 and later: shared memory ran out", "facebookresearch/mmf#441"),
    Pattern::new("loader-killed", Host, Kind::Host, "is killed by signal: Killed")
        .from("PyTorch 0.4 and later", "recalled"),
    Pattern::new("shm-file", Host, Kind::Host, "unable to write to file </torch_")
        .from("PyTorch: shared memory ran out", "recalled"),
    Pattern::new("numpy-oom", Host, Kind::Host, "Unable to allocate ")
        .only(|line| line.contains(" for an array with shape "))
        .fields(&[
            Field::size(Key::Requested, "Unable to allocate ", ""),
            Field::text(Key::Shape, "with shape ", " and data type"),
        ])
        .from("NumPy 1.17 and later", "recalled"),
    Pattern::new("python-oom", Host, Kind::Host, "MemoryError")
        .only(|line| line.trim_start().starts_with("MemoryError"))
        .from("Python", "recalled"),
    Pattern::new("cpp-oom", Host, Kind::Host, "std::bad_alloc").from("C++ programs", "recalled"),
    Pattern::new("ray-oom", Host, Kind::Host, "due to the node running low on memory")
        .from("Ray 2.2 and later", "recalled"),
];

const KILLED: &[Field] = &[
    Field::size(Key::VirtualSize, "total-vm:", ""),
    Field::size(Key::ResidentSet, "anon-rss:", ""),
];
