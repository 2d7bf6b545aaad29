//! The ResourceSlice of a node: its GPUs as devices with capacities.
//!
//! In: the daemon's GPUs. Out: the slice's specification. A GPU that is closed or silent is not in
//! it, so that no further claim is placed there; claims that are there stay.

use serde_json::{Value, json};

use super::daemon::Gpu;
use super::names::{
    DRIVER, MEMORY, MEMORY_STEP_BYTES, SHARE, SHARE_DEFAULT, SHARE_MIN, SHARE_WHOLE, device_name,
};
use super::quantity::bytes;

/// Most devices of a slice. SOURCE: resource.k8s.io/v1, ResourceSliceMaxDevices.
const DEVICES_MAX: usize = 128;
/// Longest text of an attribute. SOURCE: resource.k8s.io/v1, DeviceAttributeMaxValueLength.
const TEXT_LETTERS_MAX: usize = 64;

/// Name of the slice of a node.
pub fn name(node: &str) -> String {
    format!("{node}-{DRIVER}")
}

/// The GPUs that are devices, by name, also while they are closed or silent. Of two with the same
/// name the first is taken.
pub(crate) fn named(gpus: &[Gpu]) -> Vec<(String, &Gpu)> {
    let mut named: Vec<(String, &Gpu)> = Vec::new();
    for gpu in gpus.iter().take(DEVICES_MAX) {
        let name = device_name(&gpu.id);
        if !name.is_empty() && named.iter().all(|(taken, _)| *taken != name) {
            named.push((name, gpu));
        }
    }
    named
}

/// The devices of these GPUs, without those that are closed or silent.
pub(crate) fn devices(gpus: &[Gpu]) -> Vec<Value> {
    let is_open = |gpu: &Gpu| !gpu.cordoned && gpu.silent.is_none();
    let open = named(gpus).into_iter().filter(|(_, gpu)| is_open(gpu));
    open.filter_map(|(name, gpu)| device(gpu, &name)).collect()
}

/// A device; none if the GPU has no memory to divide.
fn device(gpu: &Gpu, name: &str) -> Option<Value> {
    let step = |bytes: u64| bytes / MEMORY_STEP_BYTES * MEMORY_STEP_BYTES;
    let memory = step(gpu.memory_bytes);
    let memory_default = step(memory / SHARE_WHOLE * SHARE_DEFAULT).max(MEMORY_STEP_BYTES);
    let text = |text: &str| -> String { text.chars().take(TEXT_LETTERS_MAX).collect() };
    let capacity = |numbers: [u64; 3], text: fn(u64) -> String| {
        let [whole, default, min] = numbers.map(text);
        json!({
            "value": whole,
            "requestPolicy": {
                "default": default,
                "validRange": {
                    "min": min, "max": whole, "step": min,
                },
            },
        })
    };
    (memory > 0).then(|| {
        json!({
            "name": name,
            "allowMultipleAllocations": true,
            "attributes": {
                "uuid": { "string": text(&gpu.id) },
                "model": { "string": text(&gpu.model) },
                "software": { "bool": gpu.software },
            },
            "capacity": {
                SHARE: capacity([SHARE_WHOLE, SHARE_DEFAULT, SHARE_MIN], |number| number.to_string()),
                MEMORY: capacity([memory, memory_default, MEMORY_STEP_BYTES], bytes),
            },
        })
    })
}

/// The specification of a node's slice.
pub(crate) fn specification(node: &str, generation: i64, devices: &[Value]) -> Value {
    json!({
        "driver": DRIVER,
        "nodeName": node,
        "pool": { "name": node, "generation": generation, "resourceSliceCount": 1 },
        "devices": devices,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantity::whole;

    fn gpu(id: &str, memory_bytes: u64) -> Gpu {
        Gpu {
            id: id.into(),
            model: "m".repeat(100),
            software: false,
            memory_bytes,
            cordoned: false,
            silent: None,
        }
    }

    #[test]
    fn gpu_that_is_closed_or_silent_is_no_device() {
        let mut gpus = ["GPU-A1", "0000:01:00.0", "b", "c"].map(|id| gpu(id, 1 << 30));
        gpus[2].cordoned = true;
        gpus[3].silent = Some("it fell off the bus".into());
        let devices = devices(&gpus);
        let names: Vec<&str> = devices
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["gpu-a1", "0000-01-00-0"]);
        assert_eq!(devices[0]["attributes"]["model"]["string"], "m".repeat(64));
    }

    #[test]
    fn capacities_obey_the_rules_of_request_policies() {
        // SOURCE: KEP-5075: (default - min) and (max - min) are multiples of the step.
        for bytes in [2 << 20, (1 << 30) + 1, 85_520_809_984, 141 << 30] {
            let devices = devices(&[gpu("g", bytes)]);
            for of in [SHARE, MEMORY] {
                let capacity = &devices[0]["capacity"][of];
                let number = |value: &Value| whole(value.as_str().unwrap()).unwrap();
                let policy = &capacity["requestPolicy"];
                let range = &policy["validRange"];
                let (min, max) = (number(&range["min"]), number(&range["max"]));
                let (step, default) = (number(&range["step"]), number(&policy["default"]));
                assert!(min <= default && default <= max && max <= number(&capacity["value"]));
                assert!((default - min).is_multiple_of(step) && (max - min).is_multiple_of(step));
            }
        }
        assert!(devices(&[gpu("g", 1)]).is_empty());
    }

    #[test]
    fn two_gpus_of_one_name_are_one_device() {
        assert_eq!(
            devices(&[gpu("g:1", 1 << 30), gpu("g.1", 1 << 30)]).len(),
            1
        );
        assert_eq!(device_name(&"x".repeat(100)).len(), 63);
    }
}
