//! Hash maps keyed by addresses. A recording looks up one address per event, so the hash is one multiplication;
//! nothing iterates over these maps in an order that reaches a result.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from addresses.
pub(crate) type AddressMap<V> = HashMap<u64, V, BuildHasherDefault<AddressHasher>>;

/// Multiplies by an odd constant and folds the high half into the low one, which the table indexes by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, n: u64) {
        // 2^64 divided by the golden ratio, made odd.
        let wide = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = wide ^ (wide >> 32);
    }
}
