//! Several GPUs of one daemon: what each has of its own. All else is as in `[gpu]`.

use serde::{Deserialize, Serialize};

use super::{Config, GpuKind};

/// One of several GPUs; what is unset is as `[gpu]` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CardSection {
    /// What kind of GPU it is.
    pub kind: Option<GpuKind>,
    /// Which of the host's NVIDIA GPUs, or the number of a software GPU; unset: its place among the
    /// cards.
    pub index: Option<u32>,
    /// Which PCI GPU.
    pub device: Option<String>,
    /// Memory of a software GPU, in MiB.
    pub memory_mib: Option<u64>,
}

impl Config {
    /// A configuration for each GPU: this one, or one for each card.
    pub fn cards(&self) -> Vec<Self> {
        if self.card.is_empty() {
            return vec![self.clone()];
        }
        let of = |(place, card): (u32, &CardSection)| {
            let mut config = Self {
                card: Vec::new(),
                ..self.clone()
            };
            let gpu = &mut config.gpu;
            gpu.kind = card.kind.unwrap_or(gpu.kind);
            gpu.index = card.index.unwrap_or(place);
            gpu.device = card.device.clone().or(gpu.device.take());
            gpu.soft.memory_mib = card.memory_mib.unwrap_or(gpu.soft.memory_mib);
            config
        };
        (0..).zip(&self.card).map(of).collect()
    }

    /// What does not go together among the cards.
    pub(super) fn card_problems(&self) -> Vec<String> {
        let cards = self.cards();
        let own = |config: &Self| match config.gpu.kind {
            GpuKind::Vfio | GpuKind::VfioUser => config.gpu.device.clone().unwrap_or_default(),
            _ => config.gpu.index.to_string(),
        };
        let mut found = Vec::new();
        for (place, card) in cards.iter().enumerate() {
            let name = |other: &Self| (other.gpu.kind.name(), own(other));
            if cards[..place].iter().any(|other| name(other) == name(card)) {
                let (kind, own) = name(card);
                found.push(format!("the {kind} GPU {own} is named twice"));
            }
        }
        found
    }
}
