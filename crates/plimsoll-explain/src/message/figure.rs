//! The figures that messages print, with what each means and what it does not.

use plimsoll_units::Bytes;

use super::quantity::Printed;

/// A figure of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Which figure.
    pub key: Key,
    /// Its value.
    pub value: Amount,
    /// What it is of, where a message prints the same figure several times: a process id, a buffer, an operator.
    pub of: Option<String>,
}

/// The value of a figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Bytes.
    Size(Printed),
    /// A count.
    Count(u64),
    /// A share or ratio in thousandths.
    Permille(u64),
    /// Words.
    Text(String),
}

impl Amount {
    /// The bytes, where it is a size.
    pub fn bytes(&self) -> Option<Bytes> {
        match self {
            Amount::Size(printed) => Some(printed.bytes),
            _ => None,
        }
    }
}

macro_rules! keys {
    ($($variant:ident $name:literal $meaning:literal;)+) => {
        /// The figures.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Key {
            $(#[doc = $meaning] $variant,)+
        }

        impl Key {
            /// Every figure.
            pub const ALL: &'static [Key] = &[$(Key::$variant,)+];

            /// Its name in words.
            pub const fn name(self) -> &'static str {
                match self { $(Key::$variant => $name,)+ }
            }

            /// What it means, and what it does not.
            pub const fn meaning(self) -> &'static str {
                match self { $(Key::$variant => $meaning,)+ }
            }
        }
    };
}

keys! {
    Requested "asked for" "the allocation that failed";
    Capacity "capacity" "all memory of the device that programs can use, a little less than the product's name says";
    Free "free" "what the driver had left for any process when the message was made, after the allocator had given back its unused segments";
    ProcessUse "this process" "everything that this process holds on the device: tensors, the allocator's unused memory, CUDA context, libraries";
    OtherUse "process" "what a process holds on the device; in a container this may be the process itself under its number outside";
    Allowed "allowed" "the limit that this process set itself (set_per_process_memory_fraction); memory beyond it may be free";
    Allocated "in tensors" "held by live tensors, with what stays in private pools";
    PeakAllocated "peak in tensors" "the most that live tensors held since the counter was reset";
    PrivatePools "in private pools" "held for CUDA graphs or other private pools, which nothing outside them can use";
    Unallocated "reserved but unallocated" "held by PyTorch's allocator in segments but by no tensor; it serves only requests that fit one of its gaps";
    Reserved "reserved" "held by the framework's allocator, in use or not";
    PeakReserved "peak reserved" "the most that the allocator held since the counter was reset";
    OtherAllocations "other allocations" "held by Metal outside PyTorch's allocator: compiled graphs, other frameworks, the window server";
    Weights "weights" "the model's parameters on this device";
    NonTorch "outside PyTorch" "CUDA context, NCCL and libraries, seen by the driver but not by PyTorch's allocator";
    Activations "activation peak" "the most that intermediate tensors took in the trial run with the largest batch";
    PeakMemory "peak of the trial run" "the most that PyTorch held in the trial run with the largest batch, weights included";
    KvCache "KV cache" "memory left for keys and values of running sequences";
    KvNeeded "KV cache needed" "what one sequence of the full length would take";
    KvTokens "KV tokens" "tokens that the KV cache holds over all sequences";
    KvBlocks "KV blocks" "blocks of the KV cache";
    TokensWanted "tokens wanted" "places in the KV pool that the batch asked for";
    TokensFree "tokens free" "places in the KV pool that were free or could be given up";
    MaxLen "longest sequence" "the length that the engine promises to serve";
    MaxLenFits "length that fits" "the engine's own estimate of the longest sequence that its KV cache holds";
    Concurrency "sequences at full length" "KV tokens divided by the longest sequence; below one, the engine cannot serve it";
    Budget "budget" "what the engine allows itself: capacity times the utilization";
    Utilization "utilization" "the share of the whole device that the engine takes, whatever others hold";
    GraphMemory "CUDA graphs" "taken by the capture of CUDA graphs";
    AvailableNow "available" "free on the device at that moment";
    UsedNow "in use" "used on the device at that moment";
    Buffer "buffer" "one buffer of the engine on one device";
    Layers "layers of the model" "layers, the output counting as one";
    LayersOnGpu "layers on the GPU" "layers that the engine placed on GPUs";
    RequiredFull "needed for all layers" "the engine's estimate with every layer on GPUs";
    RequiredPartial "needed as placed" "the engine's estimate with the layers that it placed on GPUs";
    RequiredKv "of it KV cache" "the engine's estimate of the KV cache";
    RequiredGraph "of it compute buffers" "the engine's estimate of intermediate results";
    SystemNeeded "host memory needed" "what would stay in host memory";
    SystemFree "host memory free" "host memory that was available";
    Parameters "arguments" "inputs of the compiled program: parameters, optimizer states, the batch";
    Constants "constants" "values built into the compiled program";
    Outputs "outputs" "results of the compiled program that are not written over its inputs";
    Temporaries "temporaries" "one block for all intermediate results of the compiled program, planned by the compiler";
    Total "total of the program" "arguments, constants, outputs and temporaries together";
    Fragmentation "gaps in the plan" "bytes that the compiler's plan leaves unused";
    Program "program" "what the compiled program needs besides its arguments";
    ReservedHbm "reserved by the system" "kept by the runtime";
    Exceeded "too much" "how far the program exceeds the device";
    LargestBuffer "large buffer" "one of the largest values alive at the program's peak";
    Shape "shape" "the tensor that was asked for";
    Limit "limit of the allocator" "the most that the framework's allocator may take of the device";
    InUse "in use" "held by live tensors in the framework's allocator";
    MaxInUse "peak in use" "the most that was in use: what the run needs, unlike what nvidia-smi shows";
    LargestAlloc "largest allocation" "the largest single allocation so far";
    LargestFree "largest free block" "the largest gap; a request must fit into one";
    ArenaFree "left in the arena" "what the arena may still take under its limit";
    HostUsed "host memory used" "memory of the whole host, caches not counted";
    HostShare "share of host memory" "share of the host's memory";
    ResidentSet "resident" "host memory that the killed process held";
    VirtualSize "address space" "addresses that the process reserved; mostly not memory";
    EstimateCpu "host memory" "DeepSpeed's estimate for parameters, gradients and optimizer states";
    EstimateGpu "GPU memory" "DeepSpeed's estimate for parameters, gradients and optimizer states; activations are not in it";
    SharedNeeded "shared memory needed" "on-chip memory that one block of a kernel needs";
    SharedLimit "shared memory limit" "on-chip memory that one block may have";
    Step "step" "progress when memory ran out";
    GpuName "GPU" "the driver's name";
}

/// The first reading of a figure.
pub fn find(readings: &[Reading], key: Key) -> Option<&Reading> {
    readings.iter().find(|r| r.key == key)
}

/// The size of a figure.
pub fn printed(readings: &[Reading], key: Key) -> Option<Printed> {
    readings.iter().find_map(|r| match r.value {
        Amount::Size(printed) if r.key == key => Some(printed),
        _ => None,
    })
}

/// The bytes of a figure.
pub fn bytes(readings: &[Reading], key: Key) -> Option<Bytes> {
    printed(readings, key).map(|p| p.bytes)
}

/// The count of a figure.
pub fn count(readings: &[Reading], key: Key) -> Option<u64> {
    readings.iter().find_map(|r| match r.value {
        Amount::Count(n) if r.key == key => Some(n),
        _ => None,
    })
}

/// The share of a figure in thousandths.
pub fn permille(readings: &[Reading], key: Key) -> Option<u64> {
    readings.iter().find_map(|r| match r.value {
        Amount::Permille(n) if r.key == key => Some(n),
        _ => None,
    })
}
