//! Models of GPUs: a table of what accounting has to know that each model has its own of.
//!
//! To add one: `turnstile bench share --gpu nvidia` on it; what charges of kernels of 50 us are off by, beside nothing for those of 2 ms, is its launches'
//! (docs/NVIDIA.md).

use turnstile_accounting::Nanos;

use super::identity;
use super::residency::Edges;

/// What one model has its own of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    /// A word of the name that the driver gives it.
    pub(super) name: &'static str,
    /// How long the engine takes for a launch before its first instruction and after its last.
    pub(super) launch: Nanos,
    /// How long a context stands still at the edges of its residency.
    pub(super) edges: Edges,
}

/// SOURCE: measured: of loads that are alone, its counters call 1.73 to 1.96 us of each launch busy beside what kernels execute, for kernels of 10, 12, 50
/// and 200 us that are launched and waited for.
pub(super) const H200: Model = Model {
    name: "H200",
    launch: Nanos(1_950),
    edges: Edges::H200,
};

/// SOURCE: measured: in 55 busy pairs kernels of 50 us were charged 0.86 to 1.07 % too much with an H200's launches, and those of 200 us 0.21 %. Its edges were not
/// measured by themselves: charges of kernels of 2 and 50 ms are right with an H200's.
const H100: Model = Model {
    name: "H100",
    launch: Nanos(2_400),
    edges: Edges::H200,
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
