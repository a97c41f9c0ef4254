//! Timelines of allocations, allocator models, replay and footprints.
