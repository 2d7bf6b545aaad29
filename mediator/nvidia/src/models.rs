//! Models of GPUs: a table of values for the meter that differ between models.
//!
//! To add one: run `turnstile bench share --gpu nvidia` on it. The charges of kernels that are
//! preempted in the middle show whether its edges are right (docs/NVIDIA.md).

use turnstile_accounting::Nanos;

use super::identity;

/// How long a context does not run at the edges of its residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edges {
    /// From "active" to its first instruction, after it was preempted in the middle of its work.
    pub(super) resumed: Nanos,
    /// From its last instruction to "saved", when it is preempted in the middle.
    pub(super) stopped: Nanos,
    /// From "active" to its first instruction, after it had left because it was idle.
    pub(super) came: Nanos,
    /// From becoming idle to "saved".
    pub(super) left: Nanos,
}

impl Edges {
    /// For an H200. SOURCE: measured, by the time stamps of kernels that fill it (p10, p50, p90 of
    /// 120 to 640 changes): resumed 36, 44, 50 us; stopped 97, 101, 107; came 4, 4, 4; left 58, 59,
    /// 59.
    pub(super) const H200: Self = Self {
        resumed: Nanos::from_us(44),
        stopped: Nanos::from_us(101),
        came: Nanos::from_us(4),
        left: Nanos::from_us(59),
    };

    /// For an H100. SOURCE: measured, `turnstile bench share --record` (11,600 changes of six
    /// programs): resumed and stopped together 109 to 135 us by program, came and left together 62
    /// to 63.
    pub(super) const H100: Self = Self {
        resumed: Nanos::from_us(36),
        stopped: Nanos::from_us(87),
        ..Self::H200
    };

    /// Limit of the time from the end of the timeslice to "saved". A context that is saved later
    /// was preempted by that end, and one that is saved before had become idle. It is halfway
    /// between the two. On an H100, with a slice of 2.048 ms, 1,100 residencies that ended by
    /// themselves then lasted 2.06 to 2.08 ms; 2,600 that were preempted lasted 2.16 to 2.21 ms.
    pub(super) fn expiry(self) -> Nanos {
        Nanos((self.left.0 + self.stopped.0) / 2)
    }
}

/// Values of one model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// A word of the model's name in the driver.
    pub(super) name: &'static str,
    /// Edges of the model's residencies.
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

/// All known models.
const MODELS: &[Model] = &[H200, H100];

/// The row of the model of this name ("NVIDIA H100 80GB HBM3").
pub(super) fn named(name: &str) -> Option<Model> {
    let mut words = name.split_whitespace();
    words.find_map(|word| MODELS.iter().find(|model| model.name == word).copied())
}

/// The row of GPU `index`. A model without one gets the row of an H200, and a warning is logged.
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
