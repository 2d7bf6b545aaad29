//! The programs, as part of this binary: `images/programs`.

use std::fs;
use std::io;
use std::path::Path;

macro_rules! files {
    ($($name:literal),*) => {
        /// Files by their names.
        const FILES: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../images/programs/", $name)))),*
        ];
    };
}

files!(
    "copy_heavy.py",
    "decode.py",
    "decoder.py",
    "graph.py",
    "harness.py",
    "infer.py",
    "kernels.py",
    "loader.py",
    "memory.py",
    "small.py",
    "train.py",
    "training.py"
);

/// Writes all of them into a folder.
///
/// # Errors
/// As of writing files.
pub(super) fn write(folder: &Path) -> io::Result<()> {
    let write = |(name, text): &(&str, &str)| fs::write(folder.join(name), text);
    FILES.iter().try_for_each(write)
}

#[cfg(test)]
mod tests {
    use super::super::rows::{PROGRAMS, Program};
    use super::*;

    #[test]
    fn every_program_is_written_with_what_it_imports() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let names = PROGRAMS.into_iter().chain(["kernels-50-1"]);
        for program in names.map(|name| name.parse::<Program>().unwrap()) {
            let text = fs::read_to_string(folder.path().join(program.words().0)).unwrap();
            let imported = text.lines().filter_map(|line| line.strip_prefix("import "));
            let own = ["harness", "decoder", "training"];
            for module in imported.filter(|module| own.contains(module)) {
                assert!(folder.path().join(format!("{module}.py")).exists());
            }
        }
    }
}
