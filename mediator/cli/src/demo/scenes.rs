//! The VMs of the demo: scenes, and how a VM is named on the command line.

use std::str::FromStr;

use turnstile_policies::Weight;

/// A choice of VMs.
pub(super) struct Scene {
    pub(super) name: &'static str,
    /// What its VMs do.
    pub(super) what: &'static str,
    pub(super) vms: &'static [&'static str],
}

/// The first is the default.
pub(super) const SCENES: &[Scene] = &[
    Scene {
        name: "saturating",
        what: "each VM keeps its queue full",
        vms: &["batch:100:2000", "interactive:100:200", "render:200:300"],
    },
    Scene {
        name: "launch-and-wait",
        what: "each VM launches one kernel, waits for it and pauses until it launches the next",
        vms: &["a:100:2000:1", "b:100:200:1"],
    },
    Scene {
        name: "copies",
        what: "one VM copies 8 MiB at a time to the GPU without a pause, the others keep kernels queued",
        vms: &["copier:100:copies", "batch:100:2000", "interactive:100:200"],
    },
];

/// Work of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Launches kernels of this length, in microseconds.
    Kernels { us: u64 },
    /// Copies from guest memory to the GPU.
    Copies,
}

/// KiB of a copy.
pub(super) const COPY_KIB: u64 = 8 << 10;

/// One VM of the demo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VmSpec {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) work: Work,
    pub(super) depth: u32,
}

impl VmSpec {
    /// Length of its kernels; 0 where it launches none.
    pub(super) fn kernel_us(&self) -> u64 {
        match self.work {
            Work::Kernels { us } => us,
            Work::Copies => 0,
        }
    }

    /// Its weight on the compute engine; 0 where it has no work for it.
    pub(super) fn compute_weight(&self) -> u64 {
        match self.work {
            Work::Kernels { .. } => self.weight.get().into(),
            Work::Copies => 0,
        }
    }
}

impl FromStr for VmSpec {
    type Err = String;

    fn from_str(spec: &str) -> Result<Self, String> {
        let form = "NAME:WEIGHT:KERNEL_US[:DEPTH], as in batch:100:2000, or copies for KERNEL_US";
        let mut parts = spec.split(':');
        let name = parts.next().filter(|name| !name.is_empty()).ok_or(form)?;
        let number = |text: Option<&str>, what: &str, max: u64| -> Result<Option<u64>, String> {
            text.map(|text| match text.parse::<u64>() {
                Ok(number) if (1..=max).contains(&number) => Ok(number),
                _ => Err(format!("{what} {text:?} is not within 1 and {max}; {form}")),
            })
            .transpose()
        };
        let weight = number(parts.next(), "weight", 10_000)?.ok_or(form)?;
        let (work, depth, depth_max) = match parts.next() {
            Some("copies") => (Work::Copies, 4, 64),
            text => {
                let us = number(text, "kernel length", 1_000_000)?.ok_or(form)?;
                // Deep enough to ride out the guest's wake-ups, which take milliseconds on a host
                // with more vCPUs than cores.
                (Work::Kernels { us }, (8_000 / us).clamp(4, 64), 256)
            }
        };
        let depth = number(parts.next(), "depth", depth_max)?.unwrap_or(depth);
        if parts.next().is_some() {
            return Err(form.into());
        }
        // CAST: both were bounded above
        let weight = Weight::new(weight as u32).map_err(|error| error.to_string())?;
        Ok(Self {
            name: name.to_owned(),
            weight,
            work,
            depth: depth as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_is_named_weighed_and_given_a_depth() {
        let spec: VmSpec = "batch:100:2000".parse().unwrap();
        assert_eq!(
            (spec.name.as_str(), spec.kernel_us(), spec.depth),
            ("batch", 2000, 4)
        );
        assert_eq!("a:1:100:7".parse::<VmSpec>().unwrap().depth, 7);
        let copier: VmSpec = "c:100:copies".parse().unwrap();
        assert_eq!((copier.work, copier.depth), (Work::Copies, 4));
        assert_eq!(
            copier.compute_weight(),
            0,
            "it has no work for the compute engine"
        );
        for bad in [
            "",
            "a",
            "a:0:1",
            "a:1:0",
            "a:1:1:0",
            "a:1:1:1:1",
            "a:x:1",
            ":1:1",
            "a:1:copies:65",
        ] {
            assert!(bad.parse::<VmSpec>().is_err(), "{bad:?}");
        }
    }
}
