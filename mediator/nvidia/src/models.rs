//! Models of GPUs: a table of what the meter has to know that each model has its own of.
//!
//! To add one: `turnstile bench share --gpu nvidia` on it. The charges of kernels that are stopped
//! in the middle show whether its edges are right (docs/NVIDIA.md).

use turnstile_accounting::Nanos;

use super::identity;

/// How long a context stands still at the edges of its residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edges {
    /// From "active" to its first instruction, after it was stopped in the middle of its work.
    pub(super) resumed: Nanos,
    /// From its last instruction to "saved", when it is stopped in the middle.
    pub(super) stopped: Nanos,
    /// From "active" to the first instruction, after it had left because it had nothing to do.
    pub(super) came: Nanos,
    /// From having nothing to do to "saved".
    pub(super) left: Nanos,
}

impl Edges {
    /// Of an H200. SOURCE: measured, by the time stamps of kernels that fill it (p10, p50, p90 of 120 to 640 changes): resumed
    /// 36, 44, 50 us; stopped 97, 101, 107; came 4, 4, 4; left 58, 59, 59.
    pub(super) const H200: Self = Self {
        resumed: Nanos::from_us(44),
        stopped: Nanos::from_us(101),
        came: Nanos::from_us(4),
        left: Nanos::from_us(59),
    };

    /// Of an H100. SOURCE: measured, `turnstile bench share --record` (11,600 changes of six programs): resumed and stopped
    /// together 109 to 135 us by program, came and left together 62 to 63.
    pub(super) const H100: Self = Self {
        resumed: Nanos::from_us(36),
        stopped: Nanos::from_us(87),
        ..Self::H200
    };

    /// A context that is saved later than this after its slice ended was stopped by that: one that
    /// had nothing to do by then was saved before. Halfway between the two: 1,100 residencies of an
    /// H100 that ended by themselves at the end of their slice lasted 2.06 to 2.08 ms of 2.048,
    /// and 2,600 that were stopped 2.16 to 2.21 ms.
    pub(super) fn expiry(self) -> Nanos {
        Nanos((self.left.0 + self.stopped.0) / 2)
    }
}

/// What one model has its own of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// A word of the name that the driver gives it.
    pub(super) name: &'static str,
    /// How long a context stands still at the edges of its residency.
    pub(super) edges: Edges,
}

pub(super) const H200: Model = Model {
    name: "H200",
    edges: Edges::H200,
};

const H100: Model = Model {
    name: "H100",
    edges: Edges::H100,
};

/// Every model that is known.
const MODELS: &[Model] = &[H200, H100];

/// The row of the model of this name ("NVIDIA H100 80GB HBM3").
pub(super) fn named(name: &str) -> Option<Model> {
    let mut words = name.split_whitespace();
    words.find_map(|word| MODELS.iter().find(|model| model.name == word).copied())
}

/// The row of GPU `index`; that of an H200 for a model that has none, which is said.
pub(super) fn of(index: u32) -> Model {
    let identity = identity::of(index).ok().flatten();
    let name = identity.map_or_else(String::new, |identity| identity.model);
    named(&name).unwrap_or_else(|| {
        log::warn!(
            "GPU {index} is of a model that was not measured ({name:?}): it is charged as an H200, short kernels up to some percent off"
        );
        H200
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_found_by_a_word_of_its_name() {
        assert_eq!(named("NVIDIA H100 80GB HBM3"), Some(H100));
        assert_eq!(named("NVIDIA H200"), Some(H200));
        assert_eq!(named("NVIDIA H1000"), None);
        assert_eq!(named(""), None);
    }
}
