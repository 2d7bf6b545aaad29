//! The script that makes an OCI image, and what is in the image.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

const PACKAGE: &str = env!("CARGO_BIN_EXE_turnstile-package");
const EPOCH: &str = "1000000000";

fn run(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn success(command: &mut Command) -> String {
    let output = run(command);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A static program that shows its version.
fn program(folder: &Path, name: &str) -> PathBuf {
    let source = folder.join(format!("{name}.rs"));
    fs::write(
        &source,
        format!("fn main() {{ println!(\"{name} 1.2.3\") }}"),
    )
    .unwrap();
    let program = folder.join(name);
    let mut rustc = Command::new("rustc");
    rustc.args(["--target", "x86_64-unknown-linux-musl", "-o"]);
    success(rustc.arg(&program).arg(&source));
    program
}

fn image(folder: &Path, programs: &[&Path]) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("image");
    let mut command = Command::new(script);
    command.env("SOURCE_DATE_EPOCH", EPOCH);
    command.arg(PACKAGE).arg(folder).args(programs);
    command
}

/// Contents and mode by path, of an archive with sorted entries of root and of one time.
fn entries(archive: &[u8]) -> BTreeMap<String, (Vec<u8>, u32)> {
    let mut archive = tar::Archive::new(archive);
    let mut entries = BTreeMap::new();
    let mut last = String::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        assert_eq!(header.mtime().unwrap().to_string(), EPOCH);
        let mode = header.mode().unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        assert!(last < path, "{path} is not sorted after {last}");
        last.clone_from(&path);
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        entries.insert(path, (bytes, mode));
    }
    entries
}

fn digest(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    let digits = digits.iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

/// The files of an image layout.
struct Layout(BTreeMap<String, (Vec<u8>, u32)>);

impl Layout {
    fn json(&self, path: &str) -> Value {
        serde_json::from_slice(&self.0[path].0).unwrap()
    }

    /// Removes the blob that a descriptor names, which it has to fit.
    fn take(&mut self, descriptor: &Value, kind: &str) -> Vec<u8> {
        assert_eq!(
            descriptor["mediaType"],
            format!("application/vnd.oci.image.{kind}")
        );
        let named = descriptor["digest"].as_str().unwrap();
        let path = format!("blobs/{}", named.replace(':', "/"));
        let (bytes, _) = self.0.remove(&path).unwrap_or_else(|| panic!("no {path}"));
        assert_eq!(digest(&bytes), named);
        assert_eq!(descriptor["size"], bytes.len());
        bytes
    }
}

#[test]
fn image_has_the_programs_and_each_digest_and_size_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (
        program(folder.path(), "first"),
        program(folder.path(), "second"),
    );
    let programs = [first.as_path(), second.as_path()];
    let out = folder.path().join("out");
    let path = success(&mut image(&out, &programs));
    assert!(path.ends_with("/first_1.2.3_amd64.oci.tar"), "{path}");
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    success(&mut image(&out, &programs));
    assert!(fs::read(&path).unwrap() == bytes, "the bytes differ");

    let mut layout = Layout(entries(&bytes));
    let version = layout.json("oci-layout");
    assert_eq!(version["imageLayoutVersion"], "1.0.0");
    let index = layout.json("index.json");
    assert_eq!(index["schemaVersion"], 2);
    let [of_manifest] = &index["manifests"].as_array().unwrap()[..] else {
        panic!("{index}");
    };
    let platform = &of_manifest["platform"];
    assert_eq!(
        (&platform["os"], &platform["architecture"]),
        (&"linux".into(), &"amd64".into())
    );
    let tag = "org.opencontainers.image.ref.name";
    assert_eq!(of_manifest["annotations"][tag], "1.2.3");
    let parsed = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
    let manifest = parsed(&layout.take(of_manifest, "manifest.v1+json"));
    assert_eq!(manifest["schemaVersion"], 2);
    let config = parsed(&layout.take(&manifest["config"], "config.v1+json"));
    assert_eq!(config["created"], "2001-09-09T01:46:40Z");
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/first");
    assert_eq!(config["config"]["Env"][0], "PATH=/usr/bin");
    let [of_layer] = &manifest["layers"].as_array().unwrap()[..] else {
        panic!("{manifest}");
    };
    let packed = layout.take(of_layer, "layer.v1.tar+gzip");
    let mut layer = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut layer).unwrap();
    let diffs = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!(diffs[..], [Value::from(digest(&layer))]);
    let rest: Vec<&str> = layout.0.keys().map(String::as_str).collect();
    assert_eq!(
        rest,
        ["blobs/", "blobs/sha256/", "index.json", "oci-layout"]
    );

    let files = entries(&layer);
    let modes: Vec<(&str, u32)> = files
        .iter()
        .map(|(path, (_, mode))| (path.as_str(), *mode))
        .collect();
    let expected = [
        ("usr/", 0o755),
        ("usr/bin/", 0o755),
        ("usr/bin/first", 0o755),
        ("usr/bin/second", 0o755),
        ("usr/share/", 0o755),
        ("usr/share/doc/", 0o755),
        ("usr/share/doc/first/", 0o755),
        ("usr/share/doc/first/copyright", 0o644),
    ];
    assert_eq!(modes, expected);
    // The program of the layer runs without a file beside it.
    let unpacked = folder.path().join("unpacked");
    fs::write(&unpacked, &files["usr/bin/second"].0).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&unpacked, mode).unwrap();
    assert_eq!(success(&mut Command::new(unpacked)), "second 1.2.3");
}

#[test]
fn what_would_not_run_in_the_image_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |program: &Path| {
        let mut package = Command::new(PACKAGE);
        package.args(["image", "1"]).arg(folder.path()).arg(program);
        let output = run(&mut package);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let dynamic = refused(Path::new(PACKAGE));
    assert!(dynamic.contains("needs a loader and shared"), "{dynamic}");
    let script = folder.path().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    let script = refused(&script);
    assert!(script.contains("is no program of Linux"), "{script}");
    let missing = refused(Path::new("/nonexistent/program"));
    assert!(missing.contains("cannot be read"), "{missing}");
    let left = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 1, "an image was left behind");
}
