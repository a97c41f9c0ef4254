//! How memory is spent or saved across devices and time.

/// The whole strategy.
#[derive(Clone, Debug, PartialEq)]
pub struct Strategy {
    /// Activation checkpointing.
    pub checkpointing: Checkpointing,
    /// Parallel layout.
    pub sharding: Sharding,
    /// What lives on the host.
    pub offload: OffloadPlan,
}

impl Default for Strategy {
    fn default() -> Self {
        Strategy {
            checkpointing: Checkpointing::None,
            sharding: Sharding::default(),
            offload: OffloadPlan::default(),
        }
    }
}

/// Activation checkpointing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Checkpointing {
    /// Every saved tensor is kept.
    None,
    /// Every layer keeps only its input.
    Full,
    /// Every k-th layer is checkpointed, the others keep everything.
    EveryK {
        /// Period.
        k: u64,
    },
    /// Groups of k layers keep one input per group.
    Groups {
        /// Layers per group.
        k: u64,
    },
    /// Per operator: products and attention outputs are kept (every second product, as torchtitan does), the rest is
    /// recomputed.
    Selective,
    /// Only the attention core is recomputed (Megatron's selective).
    AttentionCore,
}

/// Parallel layout. All degrees are at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Data-parallel ranks.
    pub data: u64,
    /// What data-parallel ranks share.
    pub zero: ZeroStage,
    /// Ranks over which states are sharded, where it is not all of `data` (hybrid sharding); 0 for all.
    pub shard_group: u64,
    /// Tensor-parallel ranks.
    pub tensor: u64,
    /// Sequence parallelism in the norm and dropout regions of tensor parallelism.
    pub sequence: bool,
    /// The loss runs on vocabulary-sharded logits.
    pub loss_parallel: bool,
    /// Context-parallel ranks.
    pub context: u64,
    /// Pipeline stages.
    pub pipeline: u64,
    /// Order of micro-batches.
    pub schedule: PipelineSchedule,
    /// Report this stage only instead of the worst; counted from 0.
    pub stage: Option<u64>,
    /// Expert-parallel ranks.
    pub expert: u64,
    /// Load of the busiest expert rank relative to the mean, in thousandths (1000 is balanced).
    pub expert_imbalance_permille: u64,
    /// FSDP keeps unsharded parameters after forward (`reshard_after_forward=False`, ZeRO-2 style).
    pub keep_unsharded: bool,
    /// FSDP: modules gathered ahead of the running one.
    pub prefetch: u64,
    /// Bytes of an element on the reduce path; the gradient type where absent.
    pub reduce_bytes: Option<u64>,
    /// DDP: gradients are views of the buckets (`gradient_as_bucket_view`).
    pub bucket_view: bool,
}

impl Default for Sharding {
    fn default() -> Self {
        Sharding {
            data: 1,
            zero: ZeroStage::Ddp,
            shard_group: 0,
            tensor: 1,
            sequence: false,
            loss_parallel: false,
            context: 1,
            pipeline: 1,
            schedule: PipelineSchedule::OneFOneB,
            stage: None,
            expert: 1,
            expert_imbalance_permille: 1000,
            keep_unsharded: false,
            prefetch: 1,
            reduce_bytes: None,
            bucket_view: false,
        }
    }
}

/// What data-parallel ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ZeroStage {
    /// Nothing; gradients are reduced in DDP buckets.
    Ddp,
    /// Optimizer states.
    One,
    /// Optimizer states and gradients.
    Two,
    /// Everything, in DeepSpeed's implementation.
    Three,
    /// Everything, FSDP1 (flat parameters per wrapped layer).
    Fsdp1,
    /// Everything, FSDP2 (per-parameter shards).
    Fsdp2,
    /// Optimizer states and master weights, Megatron's distributed optimizer (F32 gradient buffer stays whole).
    DistributedOptimizer,
}

/// Order of micro-batches in a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PipelineSchedule {
    /// All forwards, then all backwards.
    GPipe,
    /// One forward, one backward.
    OneFOneB,
    /// One micro-batch at a time through layers that Accelerate deals to devices by size (`device_map="auto"`).
    DeviceMap,
    /// Several model chunks per rank.
    Interleaved {
        /// Chunks per rank.
        chunks: u64,
    },
}

/// What lives on the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OffloadPlan {
    /// Optimizer states (and the step) on the host.
    pub optimizer: bool,
    /// Parameters on the host, fetched per layer.
    pub parameters: bool,
    /// Gradients on the host.
    pub gradients: bool,
    /// Kept activations (checkpoints) on the host.
    pub activations: bool,
    /// Host-side states go on to NVMe.
    pub nvme: bool,
}
