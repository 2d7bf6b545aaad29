//! Driver versions: a table of deltas.
//!
//! A row is a function that starts from the preceding row in the vendor's history and changes what
//! its version changed. A version without a row is refused for the privileged calls. To add one:
//! compare the headers that `sys/abi.rs` names, add a row here, and run `turnstile doctor` and
//! `turnstile bench share --gpu nvidia` on it (docs/NVIDIA.md).

use std::fs;
use std::io;
use std::path::Path;

/// File in which the driver reports its version.
pub(crate) const VERSION_FILE: &str = "/proc/driver/nvidia/version";

/// Numbers of the privileged calls, which a driver version may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverAbi {
    /// The version of this row.
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
    /// The version is not in the table.
    #[error("NVIDIA driver {0} is not known, its privileged calls are not used; known: {known}", known = known())]
    Unknown(String),
}

/// A version and the function that makes its row.
type Row = (&'static str, fn() -> DriverAbi);

/// Every version that is known.
const ROWS: &[Row] = &[("580.159.04", v580_159_04)];

/// SOURCE: measured on an H200; `ctrl/ctrl2080/ctrl2080gr.h`, `ctrl2080fifo.h`, `ctrl2080gpu.h` of
/// that version.
const fn v580_159_04() -> DriverAbi {
    DriverAbi {
        version: "580.159.04",
        bind_events: 0x2080_1238,
        disable_channels: 0x2080_110b,
        read_registers: 0x2080_0122,
    }
}

/// The versions of the table, as text.
pub fn known() -> String {
    let names: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    names.join(", ")
}

/// The row of a version.
///
/// # Errors
/// [`VersionError::Unknown`].
pub(crate) fn abi_of(version: &str) -> Result<DriverAbi, VersionError> {
    ROWS.iter()
        .find(|row| row.0 == version)
        .map(|row| row.1())
        .ok_or_else(|| VersionError::Unknown(version.to_owned()))
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
            refused.contains("580.159.05") && refused.contains("580.159.04"),
            "{refused}"
        );
    }

    #[test]
    fn every_row_is_of_the_version_it_stands_for() {
        for (version, row) in ROWS {
            assert_eq!(row().version, *version);
        }
    }
}
