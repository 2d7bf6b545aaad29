//! Several GPUs of one daemon: what each has of its own. All else is as in `[gpu]`.

use serde::{Deserialize, Serialize};

use super::{Config, ConfigError, Effective, GpuKind, Origin, Problem};

/// One of several GPUs; what is unset is as `[gpu]` has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CardSection {
    /// What kind of GPU it is.
    pub kind: Option<GpuKind>,
    /// Which of the host's NVIDIA GPUs, or the number of a software GPU; unset: its place among the
    /// cards.
    pub index: Option<u32>,
    /// Which GPU, as `gpu.device`.
    pub device: Option<String>,
    /// Memory of a software GPU, in MiB.
    pub memory_mib: Option<u64>,
}

/// An NVIDIA GPU that the host has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostGpu {
    /// Number of its device file.
    pub index: u32,
    /// Its UUID, with `GPU-` before it.
    pub uuid: String,
    /// Its PCI address.
    pub address: String,
}

impl HostGpu {
    /// The GPU with this number, UUID or PCI address.
    fn named<'a>(gpus: &'a [Self], name: &str) -> Result<&'a Self, String> {
        let is = |gpu: &&Self| {
            gpu.index.to_string() == name
                || gpu.uuid.eq_ignore_ascii_case(name)
                || gpu.address.eq_ignore_ascii_case(name)
        };
        gpus.iter().find(is).ok_or_else(|| {
            let all: Vec<String> = (gpus.iter())
                .map(|gpu| format!("{} ({}, {})", gpu.index, gpu.uuid, gpu.address))
                .collect();
            let all = if all.is_empty() {
                "none".into()
            } else {
                all.join(", ")
            };
            format!("this host has no NVIDIA GPU {name}. It has: {all}")
        })
    }
}

impl Effective {
    /// The configuration on a host with these NVIDIA GPUs: each is a card where the configuration
    /// names none, and each that has `device` gets its number.
    ///
    /// # Errors
    /// For a GPU that the host does not have, and for one that is named twice.
    pub fn on_host(&self, gpus: &[HostGpu]) -> Result<Config, ConfigError> {
        let mut config = self.config.clone();
        let named = self.origin("gpu.index") != Origin::Default;
        let mut problems = Vec::new();
        let mut number = |key, device: &Option<String>, index: &mut Option<u32>| match device
            .as_ref()
            .map(|name| HostGpu::named(gpus, name))
        {
            Some(Ok(gpu)) => *index = Some(gpu.index),
            Some(Err(text)) => problems.push((key, text)),
            None => {}
        };
        if config.card.is_empty() && config.gpu.kind == GpuKind::Nvidia {
            let mut index = named.then_some(config.gpu.index);
            number("gpu.device", &config.gpu.device, &mut index);
            match (index, gpus) {
                (Some(index), _) => config.gpu.index = index,
                (None, _) if config.gpu.device.is_some() => {}
                (None, [only]) => config.gpu.index = only.index,
                (None, gpus) => {
                    let card = |gpu: &HostGpu| CardSection {
                        index: Some(gpu.index),
                        ..CardSection::default()
                    };
                    config.card = gpus.iter().map(card).collect();
                }
            }
        }
        let kind = config.gpu.kind;
        for card in &mut config.card {
            if card.kind.unwrap_or(kind) == GpuKind::Nvidia {
                number("card", &card.device, &mut card.index);
            }
        }
        problems.extend(
            config
                .card_problems()
                .into_iter()
                .map(|text| ("card", text)),
        );
        let problem = |(key, text): (&str, String)| Problem {
            origin: self.origin(key),
            text: format!("{key}: {text}"),
        };
        match problems.is_empty() {
            true => Ok(config),
            false => Err(ConfigError(problems.into_iter().map(problem).collect())),
        }
    }

    fn origin(&self, key: &str) -> Origin {
        let setting = self.settings.get(key);
        setting.map_or(Origin::Default, |setting| setting.origin.clone())
    }
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
