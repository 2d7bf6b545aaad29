//! An OCI image of programs, made without a container daemon.
//!
//! - In: programs that need no other file. Out: a tar file with an image layout: one layer that has
//!   the programs and their licence, a configuration, a manifest and the index.
//! - Invariants: nothing is below the programs, so each must be static. Entries are sorted, root
//!   owns them, and they have one time: the same programs make the same bytes.
//! - Callers: the program of this crate.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use elf::ElfBytes;
use elf::abi::{EM_AARCH64, EM_X86_64, PT_INTERP};
use elf::endian::AnyEndian;
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// SOURCE: OCI image specification 1.1, image-layout.md.
const LAYOUT_VERSION: &str = "1.0.0";
/// SOURCE: the same, annotations.md.
const TAG: &str = "org.opencontainers.image.ref.name";
const BLOBS: &str = "blobs/sha256";
/// Folder of the programs in the image.
const PROGRAMS: &str = "usr/bin";
const LICENCE: &str = include_str!("../copyright");

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There is nothing to run.
    #[error("An image has one program at least")]
    Empty,
    /// A program cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is no program.
    #[error("{} is no program of Linux", path.display())]
    Program {
        /// The file.
        path: PathBuf,
        /// Why.
        source: elf::ParseError,
    },
    /// A program of another architecture.
    #[error("{} is of an architecture that has no name here, or of another one than the first", .0.display())]
    Architecture(PathBuf),
    /// A program needs files that the image does not have.
    #[error("{} needs a loader and shared libraries; build it with --target x86_64-unknown-linux-musl", .0.display())]
    Dynamic(PathBuf),
    /// The image cannot be written.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The image.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What an image is made of.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// Programs; a container runs the first one.
    pub programs: &'a [PathBuf],
    /// The version, which is the image's tag.
    pub version: &'a str,
    /// All times in the image, in seconds of Unix time.
    pub epoch_s: u32,
}

/// Writes the image into the folder `out`, and returns its path.
///
/// # Errors
/// If a program cannot be read, needs shared libraries, or is of another architecture than the
/// first; if the image cannot be written.
pub fn write(image: &Image<'_>, out: &Path) -> Result<PathBuf, ImageError> {
    let mut files = BTreeMap::new();
    let mut of_first = None;
    for path in image.programs {
        let read = fs::read(path);
        let bytes = read.map_err(|source| ImageError::Read {
            path: path.clone(),
            source,
        })?;
        let architecture = architecture(path, &bytes)?;
        let (_, first) = of_first.get_or_insert((name(path), architecture));
        if *first != architecture {
            return Err(ImageError::Architecture(path.clone()));
        }
        files.insert(format!("{PROGRAMS}/{}", name(path)), (bytes, 0o755));
    }
    let (name, architecture) = of_first.ok_or(ImageError::Empty)?;
    let licence = format!("usr/share/doc/{name}/copyright");
    files.insert(licence, (LICENCE.as_bytes().to_vec(), 0o644));

    let path = out.join(format!("{name}_{}_{architecture}.oci.tar", image.version));
    let failed = |source| ImageError::Write {
        path: path.clone(),
        source,
    };
    let layer = archive(files, image.epoch_s).map_err(failed)?;
    let layout = layout(image, &name, architecture, &layer);
    let bytes = archive(layout, image.epoch_s).map_err(failed)?;
    fs::write(&path, bytes).map_err(failed)?;
    Ok(path)
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The architecture of a program without a loader, by Go's name for it.
fn architecture(path: &Path, bytes: &[u8]) -> Result<&'static str, ImageError> {
    let program = || {
        let file = ElfBytes::<AnyEndian>::minimal_parse(bytes)?;
        let segments = file.segments();
        let has_loader = segments.is_some_and(|all| all.iter().any(|one| one.p_type == PT_INTERP));
        Ok((file.ehdr.e_machine, has_loader))
    };
    let (machine, has_loader) = program().map_err(|source| ImageError::Program {
        path: path.to_owned(),
        source,
    })?;
    if has_loader {
        return Err(ImageError::Dynamic(path.to_owned()));
    }
    match machine {
        EM_X86_64 => Ok("amd64"),
        EM_AARCH64 => Ok("arm64"),
        _ => Err(ImageError::Architecture(path.to_owned())),
    }
}

/// Contents and mode by path.
type Files = BTreeMap<String, (Vec<u8>, u32)>;

/// A tar archive of files, and of the folders that they are in.
fn archive(files: Files, epoch_s: u32) -> io::Result<Vec<u8>> {
    let mut builder = Builder::new(Vec::new());
    let mut add = |kind: EntryType, path: &str, mode: u32, bytes: &[u8]| {
        let mut header = Header::new_ustar();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(epoch_s.into());
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, path, bytes)
    };
    let mut last = String::new();
    for (path, (bytes, mode)) in files {
        let slashes = path.match_indices('/').map(|(at, _)| at + 1);
        // The files are sorted: a folder that the last one is in is there.
        for folder in slashes
            .map(|end| &path[..end])
            .filter(|folder| !last.starts_with(*folder))
        {
            add(EntryType::Directory, folder, 0o755, &[])?;
        }
        add(EntryType::Regular, &path, mode, &bytes)?;
        last = path;
    }
    builder.into_inner()
}

fn hex(bytes: &[u8]) -> String {
    let digits = Sha256::digest(bytes);
    digits.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The files of an image layout.
fn layout(image: &Image<'_>, name: &str, architecture: &str, layer: &[u8]) -> Files {
    let created = OffsetDateTime::from_unix_timestamp(image.epoch_s.into());
    // PANIC: 32 bits of seconds end in 2106.
    let created = created.expect("a time that has a date");
    let created = created.format(&Rfc3339).expect("a year of four digits");
    let configuration = json!({
        "created": created,
        "architecture": architecture,
        "os": "linux",
        "config": {
            "Entrypoint": [format!("/{PROGRAMS}/{name}")],
            "Env": [format!("PATH=/{PROGRAMS}")],
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(layer))] },
    });
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    let packed = gzip.write_all(layer).and_then(|()| gzip.finish());
    // PANIC: only a file or socket refuses bytes.
    let packed = packed.expect("memory takes all");

    let mut files = Files::new();
    let configuration = add(&mut files, "config.v1+json", text(&configuration));
    let layer = add(&mut files, "layer.v1.tar+gzip", packed);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type("manifest.v1+json"),
        "config": configuration,
        "layers": [layer],
    });
    let mut manifest = add(&mut files, "manifest.v1+json", text(&manifest));
    manifest["platform"] = json!({ "architecture": architecture, "os": "linux" });
    manifest["annotations"] = json!({ TAG: image.version });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": media_type("index.v1+json"),
        "manifests": [manifest],
    });
    let version = json!({ "imageLayoutVersion": LAYOUT_VERSION });
    files.insert("index.json".into(), (text(&index), 0o644));
    files.insert("oci-layout".into(), (text(&version), 0o644));
    files
}

/// SOURCE: OCI image specification 1.1, media-types.md.
fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

/// Adds a blob, and returns its descriptor.
fn add(files: &mut Files, kind: &str, bytes: Vec<u8>) -> Value {
    let hex = hex(&bytes);
    let descriptor = json!({
        "mediaType": media_type(kind),
        "digest": format!("sha256:{hex}"),
        "size": bytes.len(),
    });
    files.insert(format!("{BLOBS}/{hex}"), (bytes, 0o644));
    descriptor
}

fn text(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}
