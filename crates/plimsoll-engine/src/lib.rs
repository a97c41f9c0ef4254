//! The facade: one versioned request and response behind every face.
