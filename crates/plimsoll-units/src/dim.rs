//! Symbolic sizes. A graph is built once with `B` (batch) and `S` (sequence) left open; [`Bindings`] close them.
//! The algebra is small on purpose: a size is a sum of monomials, or a quotient rounded up, or a minimum.

use std::fmt;
use std::sync::Arc;

use crate::{Bytes, DType};

/// A size that is known only when a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Symbol {
    /// Sequences (or images, or samples) in a micro-batch.
    Batch,
    /// Positions of the main sequence.
    Sequence,
    /// Positions of the second sequence: encoder side, or the whole context in decoding.
    Context,
    /// Image height in pixels.
    Height,
    /// Image width in pixels.
    Width,
}

impl Symbol {
    const COUNT: usize = 5;

    /// The letter that formulas show.
    pub const fn letter(self) -> &'static str {
        match self {
            Symbol::Batch => "b",
            Symbol::Sequence => "s",
            Symbol::Context => "c",
            Symbol::Height => "H",
            Symbol::Width => "W",
        }
    }
}

/// Values of the symbols. An unset symbol is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bindings([u64; Symbol::COUNT]);

impl Bindings {
    /// Batch and sequence; the context equals the sequence.
    pub const fn tokens(batch: u64, sequence: u64) -> Self {
        Bindings([batch, sequence, sequence, 1, 1])
    }

    /// The same with one symbol set.
    #[must_use]
    pub const fn with(mut self, symbol: Symbol, value: u64) -> Self {
        self.0[symbol as usize] = value;
        self
    }

    /// The value of a symbol.
    pub const fn get(&self, symbol: Symbol) -> u64 {
        self.0[symbol as usize]
    }
}

/// A non-negative integer, possibly symbolic. Arithmetic saturates at 2^64 - 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number.
    Const(u64),
    /// A symbol.
    Sym(Symbol),
    /// A product.
    Mul(Arc<[Dim]>),
    /// A sum.
    Add(Arc<[Dim]>),
    /// A quotient, rounded up.
    DivCeil(Arc<Dim>, u64),
    /// The smaller of two.
    Min(Arc<Dim>, Arc<Dim>),
}

impl Dim {
    /// The batch symbol.
    pub const BATCH: Dim = Dim::Sym(Symbol::Batch);
    /// The sequence symbol.
    pub const SEQUENCE: Dim = Dim::Sym(Symbol::Sequence);
    /// The context symbol.
    pub const CONTEXT: Dim = Dim::Sym(Symbol::Context);

    /// The value under `bindings`.
    pub fn eval(&self, bindings: &Bindings) -> u64 {
        match self {
            Dim::Const(n) => *n,
            Dim::Sym(symbol) => bindings.get(*symbol),
            Dim::Mul(parts) => parts.iter().fold(1, |n, d| n.saturating_mul(d.eval(bindings))),
            Dim::Add(parts) => parts.iter().fold(0, |n, d| n.saturating_add(d.eval(bindings))),
            Dim::DivCeil(dim, by) => dim.eval(bindings).div_ceil((*by).max(1)),
            Dim::Min(a, b) => a.eval(bindings).min(b.eval(bindings)),
        }
    }

    /// `self` x `other`, constants folded.
    #[must_use]
    pub fn times(&self, other: impl Into<Dim>) -> Dim {
        match (self, other.into()) {
            (Dim::Const(1), d) => d,
            (d, Dim::Const(1)) => d.clone(),
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_mul(b)),
            (a, b) => Dim::Mul([a.clone(), b].into()),
        }
    }

    /// `self` + `other`, constants folded.
    #[must_use]
    pub fn plus(&self, other: impl Into<Dim>) -> Dim {
        match (self, other.into()) {
            (Dim::Const(0), d) => d,
            (d, Dim::Const(0)) => d.clone(),
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(a.saturating_add(b)),
            (a, b) => Dim::Add([a.clone(), b].into()),
        }
    }

    /// `self` / `by`, rounded up; a zero divisor counts as one.
    #[must_use]
    pub fn div_ceil(&self, by: u64) -> Dim {
        match self {
            d if by <= 1 => d.clone(),
            Dim::Const(n) => Dim::Const(n.div_ceil(by)),
            d => Dim::DivCeil(Arc::new(d.clone()), by),
        }
    }

    /// The smaller of two.
    #[must_use]
    pub fn min(&self, other: impl Into<Dim>) -> Dim {
        match (self, other.into()) {
            (Dim::Const(a), Dim::Const(b)) => Dim::Const(*a.min(&b)),
            (a, b) => Dim::Min(Arc::new(a.clone()), Arc::new(b)),
        }
    }
}

impl From<u64> for Dim {
    fn from(n: u64) -> Dim {
        Dim::Const(n)
    }
}

impl From<&Dim> for Dim {
    fn from(dim: &Dim) -> Dim {
        dim.clone()
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, parts: &[Dim], by: &str| {
            for (i, part) in parts.iter().enumerate() {
                if i > 0 {
                    f.write_str(by)?;
                }
                match part {
                    Dim::Add(_) => write!(f, "({part})")?,
                    _ => write!(f, "{part}")?,
                }
            }
            Ok(())
        };
        match self {
            Dim::Const(n) => write!(f, "{n}"),
            Dim::Sym(symbol) => f.write_str(symbol.letter()),
            Dim::Mul(parts) => list(f, parts, "·"),
            Dim::Add(parts) => list(f, parts, " + "),
            Dim::DivCeil(dim, by) => write!(f, "⌈{dim}/{by}⌉"),
            Dim::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

/// The sizes of a tensor, outermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// A shape from its dimensions; none at all is a scalar.
    pub fn new(dims: impl IntoIterator<Item = Dim>) -> Self {
        Shape(dims.into_iter().collect())
    }

    /// The dimensions.
    pub fn dims(&self) -> &[Dim] {
        &self.0
    }

    /// Number of elements, saturating.
    pub fn elements(&self, bindings: &Bindings) -> u64 {
        self.0.iter().fold(1, |n, d| n.saturating_mul(d.eval(bindings)))
    }

    /// Bytes as `dtype`, dense, saturating.
    pub fn bytes(&self, dtype: DType, bindings: &Bindings) -> Bytes {
        dtype.bytes(self.elements(bindings))
    }

    /// The same shape with the last dimension replaced; a scalar becomes one-dimensional.
    #[must_use]
    pub fn with_last(&self, dim: impl Into<Dim>) -> Shape {
        let mut dims = self.0.clone();
        dims.pop();
        dims.push(dim.into());
        Shape(dims)
    }

    /// The last dimension; 1 for a scalar.
    pub fn last(&self) -> Dim {
        self.0.last().cloned().unwrap_or(Dim::Const(1))
    }
}

impl<const N: usize> From<[u64; N]> for Shape {
    fn from(dims: [u64; N]) -> Self {
        Shape(dims.into_iter().map(Dim::Const).collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, dim) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{dim}")?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_evaluate_and_print() {
        let shape = Shape::new([Dim::BATCH, Dim::SEQUENCE, Dim::Const(4096)]);
        let bindings = Bindings::tokens(4, 2048);
        assert_eq!(shape.elements(&bindings), 4 * 2048 * 4096);
        assert_eq!(shape.bytes(DType::Bf16, &bindings), Bytes::mib(64));
        assert_eq!(shape.to_string(), "[b, s, 4096]");
        let window = Dim::SEQUENCE.min(512).times(2);
        assert_eq!(window.to_string(), "min(s, 512)·2");
        assert_eq!(window.eval(&bindings), 1024);
        assert_eq!(Dim::SEQUENCE.plus(1).div_ceil(256).eval(&bindings), 9);
    }

    #[test]
    fn absurd_sizes_saturate() {
        let shape = Shape::from([u64::MAX, 2]);
        assert!(shape.bytes(DType::F32, &Bindings::tokens(1, 1)).is_saturated());
    }
}
