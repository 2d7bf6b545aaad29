//! A GPU's identity and model, read from the driver's files.

use std::fs;
use std::io;

/// Folder in which the driver describes each GPU. SOURCE: NVIDIA driver README, "/proc interface".
const FOLDER: &str = "/proc/driver/nvidia/gpus";

/// Identity of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `GPU-` and a UUID.
    pub uuid: String,
    /// Product name of the model.
    pub model: String,
    /// PCI address.
    pub address: String,
}

impl Identity {
    /// The bytes of the UUID.
    pub(crate) fn bytes(&self) -> Option<[u8; 16]> {
        let digits: String = self.uuid.strip_prefix("GPU-")?.split('-').collect();
        let number = u128::from_str_radix(&digits, 16).ok()?;
        (digits.len() == 32).then(|| number.to_be_bytes())
    }
}

/// The identity of the GPU with device file number `index`. None if the driver does not report it.
///
/// # Errors
/// If the driver's files cannot be read.
pub fn of(index: u32) -> io::Result<Option<Identity>> {
    let mut all = all()?.into_iter();
    Ok(all.find(|(minor, _)| *minor == index).map(|(_, own)| own))
}

/// Device file number and identity of each GPU that the driver reports.
///
/// # Errors
/// If the driver's files cannot be read.
pub fn all() -> io::Result<Vec<(u32, Identity)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(FOLDER)? {
        let text = fs::read_to_string(entry?.path().join("information"))?;
        all.extend(parse(&text));
    }
    Ok(all)
}

/// Device number and identity out of one `information` file.
fn parse(text: &str) -> Option<(u32, Identity)> {
    let field = |name: &str| {
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    };
    let identity = Identity {
        uuid: field("GPU UUID")?,
        model: field("Model")?,
        address: field("Bus Location")?,
    };
    Some((field("Device Minor")?.parse().ok()?, identity))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_file_is_read() {
        let text = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 77\nGPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\n\
                    Bus Location: \t 0000:01:00.0\nDevice Minor: \t 3\n";
        let (minor, identity) = parse(text).unwrap();
        assert_eq!((minor, identity.model.as_str()), (3, "NVIDIA H200"));
        assert_eq!(identity.uuid, "GPU-11111111-2222-3333-4444-555555555555");
        assert_eq!(identity.address, "0000:01:00.0");
        let bytes = identity.bytes().unwrap();
        assert_eq!((bytes[0], bytes[4], bytes[15]), (0x11, 0x22, 0x55));
        assert_eq!(parse("Model: H200\n"), None);
    }
}
