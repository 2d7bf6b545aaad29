//! The RPM package beside a Debian one.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../package/rpm");

/// The RPM package has the files of the Debian one, with the same modes and owners.
pub(crate) fn has_the_same(deb: &Path, listing: &str, version: &str) {
    let folder = tempfile::tempdir().unwrap();
    let stage = folder.path().join("stage");
    let mut extract = Command::new("dpkg-deb");
    let extract = extract.arg("--raw-extract").arg(deb).arg(&stage);
    assert!(extract.status().unwrap().success());
    let made = |out: &str| {
        let out = folder.path().join(out);
        fs::create_dir(&out).unwrap();
        let source = turnstile_package::Source {
            stage: &stage,
            scripts: Path::new(SCRIPTS),
            version,
            epoch_s: 1_795_179_600,
        };
        turnstile_package::write(&source, &out).unwrap()
    };
    let file = made("rpm");
    assert_eq!(fs::read(&file).unwrap(), fs::read(made("again")).unwrap());
    let package = rpm::Package::open(&file).unwrap();
    let entries = package.metadata.get_file_entries().unwrap();
    let of_rpm: BTreeSet<(String, u16)> = entries
        .iter()
        .map(|entry| {
            assert_eq!((entry.user(), entry.group()), ("root", "root"));
            (
                entry.path().display().to_string(),
                entry.mode().permissions(),
            )
        })
        .collect();
    let bits = |mode: &str, read: usize| {
        let bit = |at: usize| u16::from(mode.as_bytes()[read + at] != b'-');
        bit(0) << 2 | bit(1) << 1 | bit(2)
    };
    let lines = listing.lines().filter(|line| !line.starts_with('d'));
    let of_deb: BTreeSet<(String, u16)> = lines
        .map(|line| {
            let mode = line.split_whitespace().next().unwrap();
            let path = line.split_whitespace().next_back().unwrap();
            let path = turnstile_package::rpm_path(path.trim_start_matches('.'));
            (
                path,
                bits(mode, 1) << 6 | bits(mode, 4) << 3 | bits(mode, 7),
            )
        })
        .collect();
    let empty = ("/etc/turnstile/conf.d".to_owned(), 0o755);
    let of_deb: BTreeSet<_> = of_deb.into_iter().chain([empty]).collect();
    assert!(of_deb.len() > 50, "{of_deb:?}");
    assert_eq!(of_rpm, of_deb);
    let config = "/etc/turnstile/turnstile.toml";
    let config = entries
        .iter()
        .find(|entry| entry.path() == Path::new(config));
    let flags = config.unwrap().flags();
    assert!(flags.contains(rpm::FileFlags::CONFIG | rpm::FileFlags::NOREPLACE));
    let script = package.metadata.get_post_install_script().unwrap();
    assert!(script.script.contains("systemd-sysusers"));
    package.verify_digests().unwrap();
}
