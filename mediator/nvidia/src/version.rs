//! Driver versions that the privileged calls are known for: those of the generated tables
//! ([`turnstile_nvidia_guest::abi`]). A version without a table is refused.

use std::fs;
use std::io;
use std::path::Path;

use turnstile_nvidia_guest::abi::{self, AbiError};

/// Remedy for a driver version without a table.
pub const REMEDY: &str =
    "Install a driver version that is known, or add a row for this one (docs/NVIDIA.md)";

/// File in which the driver reports its version.
pub(crate) const VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// Numbers of the privileged calls, which a driver version may change. Layouts are those of
/// `sys/abi.rs`: a test compares them with each table.
#[derive(Clone, Copy, Debug)]
pub struct DriverAbi {
    /// The version.
    pub version: &'static str,
    /// NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2: context switches into an event buffer.
    pub bind_events: u32,
    /// NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS.
    pub disable_channels: u32,
    /// NV2080_CTRL_CMD_GPU_EXEC_REG_OPS: reading registers.
    pub read_registers: u32,
}

/// Why a driver's privileged calls are not used.
#[derive(Debug, thiserror::Error)]
pub enum VersionError {
    /// No driver is loaded.
    #[error("No NVIDIA driver is loaded: {VERSION_FILE} cannot be read")]
    NoDriver(#[source] io::Error),
    /// The file names no version.
    #[error("{VERSION_FILE} names no version")]
    Unreadable,
    /// The version has no table.
    #[error(transparent)]
    Unknown(#[from] AbiError),
    /// The version's headers lack a call.
    #[error("NVIDIA driver {version} has no {name}")]
    Lacks {
        /// The version.
        version: &'static str,
        /// The vendor's name of the call.
        name: &'static str,
    },
}

impl VersionError {
    /// What a GPU can do under a version without a table, and what not; none where no driver is
    /// known to be loaded.
    pub fn leaves(&self) -> Option<String> {
        match self {
            Self::NoDriver(_) | Self::Unreadable => None,
            Self::Unknown(_) | Self::Lacks { .. } => Some(format!(
                "{self}. Commands of VMs run, held at doorbells; programs, CUDA in guests and \
                 holding running kernels are refused"
            )),
        }
    }

    /// The same with the remedy.
    pub fn lacks(&self) -> Option<String> {
        Some(format!("{}. {REMEDY}", self.leaves()?))
    }
}

/// The calls of a version.
///
/// # Errors
/// [`VersionError::Unknown`]; [`VersionError::Lacks`].
pub(crate) fn abi_of(version: &str) -> Result<DriverAbi, VersionError> {
    let release = abi::release(version)?;
    let version = release.version.as_str();
    let number = |name| {
        let number = release.numbers.get(name).copied();
        number.ok_or(VersionError::Lacks { version, name })
    };
    Ok(DriverAbi {
        version,
        bind_events: number("NV2080_CTRL_CMD_GR_FECS_BIND_EVTBUF_FOR_UID_V2")?,
        disable_channels: number("NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS")?,
        read_registers: number("NV2080_CTRL_CMD_GPU_EXEC_REG_OPS")?,
    })
}

/// What an operator should know about the table of a version, if anything.
pub fn warning(version: &str) -> Option<String> {
    abi::release(version).ok()?.warning()
}

/// The version in the text of the driver's version file: the first word of two or three numbers on
/// its first line.
pub fn parse(text: &str) -> Option<&str> {
    let numbers = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        (2..=3).contains(&parts.len())
            && parts
                .iter()
                .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    text.lines().next()?.split_whitespace().find(numbers)
}

/// The version of the driver that is loaded, known or not.
///
/// # Errors
/// If no driver is loaded, or the file names no version.
pub fn loaded() -> Result<String, VersionError> {
    let text = fs::read_to_string(Path::new(VERSION_FILE)).map_err(VersionError::NoDriver)?;
    parse(&text)
        .map(str::to_owned)
        .ok_or(VersionError::Unreadable)
}

/// The row of the driver that is loaded.
///
/// # Errors
/// If no driver is loaded, or the table has no row for it.
pub fn detect() -> Result<DriverAbi, VersionError> {
    abi_of(&loaded()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_in_both_forms_of_the_file() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder@host)\n\
                    GCC version:  gcc version 13.3.0";
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.86  Fri Jul  7\n";
        assert_eq!(parse(open), Some("580.159.04"));
        assert_eq!(parse(closed), Some("535.86"));
        assert_eq!(parse(""), None);
        assert_eq!(parse("GCC 13"), None);
    }

    #[test]
    fn an_unknown_version_is_refused_with_those_that_are_known() {
        let refused = abi_of("580.159.05").unwrap_err().to_string();
        assert!(
            refused.contains("580.159.05") && refused.contains("nearest: 580.159.04"),
            "{refused}"
        );
        let lacks = abi_of("580.159.05").unwrap_err().lacks().unwrap();
        assert!(
            lacks.starts_with(&refused) && lacks.ends_with(REMEDY),
            "{lacks}"
        );
        assert!(VersionError::Unreadable.lacks().is_none());
    }

    #[test]
    fn every_table_has_the_privileged_calls() {
        for release in abi::releases() {
            let abi = abi_of(&release.version).unwrap();
            assert_eq!(abi.version, release.version);
            assert_eq!(
                [abi.bind_events, abi.disable_channels, abi.read_registers],
                [0x2080_1238, 0x2080_110b, 0x2080_0122]
            );
        }
        assert!(warning("580.159.04").is_none() && warning("590.48.01").is_some());
    }
}
