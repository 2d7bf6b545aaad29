//! The end of what a process wrote to its standard error.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of it that are shown.
const TAIL_BYTES: u64 = 2_000;

/// The end of a file of messages; empty if it cannot be read.
pub(super) fn tail(file: &Path) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_bounded_and_needs_no_whole_characters() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("messages");
        assert_eq!(tail(&file), "", "there is no such file");
        std::fs::write(&file, format!("{}the end\n", "é".repeat(4_000))).unwrap();
        let tail = tail(&file);
        assert!(tail.ends_with("the end") && tail.len() < 2_010, "{tail}");
    }
}
