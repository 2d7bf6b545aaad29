//! The capabilities that the device reports, checked.

use turnstile_abi::physical::{ENGINES_MAX, regs};
use turnstile_gpu::{Capabilities, Suspend};

use super::admin::Admin;
use super::error::StartError;

/// First contract version in which the bits of holds and demand are defined.
const HOLDS_SINCE: u32 = 0x0001_0001;

/// The register ENGINES, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Engines {
    compute: u8,
    copy: u8,
    suspend: Suspend,
    holds: bool,
    demand: bool,
    simulated: bool,
}

impl Engines {
    /// Checks the register of a device with this contract version.
    fn check(word: u32, version: u32) -> Result<Self, StartError> {
        // CAST: fields of 8 bits.
        let (compute, copy) = (word as u8, (word >> 8) as u8);
        let has = |bit: u32| word & bit != 0 && version >= HOLDS_SINCE;
        let suspend = match word >> 16 & 3 {
            0 => Some(Suspend::Drains),
            1 => Some(Suspend::BetweenCommands),
            2 => Some(Suspend::MidKernel),
            _ => None,
        };
        let holds = has(regs::ENGINES_HOLDS);
        let counts = compute > 0 && compute.saturating_add(copy) <= ENGINES_MAX;
        suspend
            .filter(|suspend| counts && !(holds && *suspend == Suspend::Drains))
            .map(|suspend| Self {
                compute,
                copy,
                suspend,
                holds,
                demand: has(regs::ENGINES_DEMAND),
                simulated: word & regs::ENGINES_SIMULATED != 0,
            })
            .ok_or(StartError::Engines { word })
    }
}

/// What a device of this contract version can do.
pub(super) fn capabilities(admin: &Admin, version: u32) -> Result<Capabilities, StartError> {
    let engines = Engines::check(admin.read32(regs::ENGINES)?, version)?;
    Ok(Capabilities {
        compute_engines: engines.compute,
        copy_engines: engines.copy,
        suspend: engines.suspend,
        engine_holds: engines.holds,
        demand: engines.demand,
        time_slices: false,
        worked: true,
        multiprocessors: admin.read32(regs::MULTIPROCESSORS)?,
        shared_bytes_max: admin.read32(regs::SHARED_BYTES_MAX)?,
        memory_bytes: admin.read64(regs::MEMORY_BYTES)?,
        memory_held: false,
        host_pool_bytes: 0,
        move_window_bytes: 0,
        follows_guest_memory: false,
        software: engines.simulated,
        aperture: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDS: u32 = regs::ENGINES_HOLDS | regs::ENGINES_DEMAND;

    #[test]
    fn holds_and_demand_exist_from_version_1_1_on_where_the_device_has_their_bits() {
        let of = |word, version| {
            let engines = Engines::check(word, version).unwrap();
            (engines.holds, engines.demand)
        };
        assert_eq!(of(HOLDS | 0x1_0201, 0x1_0001), (true, true));
        assert_eq!(of(HOLDS | 0x2_0201, 0x1_0007), (true, true));
        assert_eq!(of(regs::ENGINES_DEMAND | 0x0201, 0x1_0001), (false, true));
        assert_eq!(of(HOLDS | 0x1_0201, 0x1_0000), (false, false));
        assert_eq!(of(0x1_0201, 0x1_0001), (false, false));
    }

    #[test]
    fn engines_that_cannot_be_are_refused() {
        // Without compute engine; 17 in all; 510; an unknown way to stop; holds without one.
        for word in [0x0200, 0x1001, 0xffff, 0x3_0201, HOLDS | 0x0201] {
            let refused = Engines::check(word, 0x1_0001);
            assert!(matches!(refused, Err(StartError::Engines { word: w }) if w == word));
        }
        assert!(Engines::check(0x0f01, 0x1_0001).is_ok());
    }
}
