//! Model, workload and strategy in; timeline and estimate out.
