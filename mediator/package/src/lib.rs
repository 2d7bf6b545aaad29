//! An RPM package of the files that a Debian package has, and [OCI images](image).
//!
//! - In: the folder that `mediator/package/build` fills, with `DEBIAN/control` and
//!   `DEBIAN/conffiles`; the scripts in `mediator/package/rpm`. Out: an RPM package.
//! - Invariants: both packages have the same files, with the same modes, owned by root. Zsh's
//!   completions alone have another folder. The same input makes the same bytes.
//! - Callers: the program of this crate, and tests that list the files of both.
#![deny(unsafe_code)]

mod control;
pub mod image;

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rpm::{BuildConfig, CompressionType, Dependency, FileOptions, PackageBuilder, Timestamp};

use control::Control;
pub use control::ControlError;

/// Why there is no package.
#[derive(Debug, thiserror::Error)]
pub enum RpmError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The control file has not what a package needs.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The package cannot be built or written.
    #[error("The package cannot be made")]
    Rpm(#[from] rpm::Error),
}

/// Where zsh searches for completions in distributions with deb, and with rpm.
const ZSH: (&str, &str) = (
    "/usr/share/zsh/vendor-completions",
    "/usr/share/zsh/site-functions",
);

/// The path that a file of a Debian package has in the RPM package; both begin with a slash.
#[must_use]
pub fn rpm_path(path: &str) -> String {
    path.replacen(ZSH.0, ZSH.1, 1)
}

/// What a package is made of.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The files as they are installed, and `DEBIAN`.
    pub stage: &'a Path,
    /// Scripts: `NAME.post`, `NAME.preun` and `NAME.postun`, where there are such.
    pub scripts: &'a Path,
    /// The version as RPM sorts it.
    pub version: &'a str,
    /// All times in the package, in seconds of Unix time.
    pub epoch_s: u32,
}

/// Writes the package into the folder `out`, and returns its path.
///
/// # Errors
/// If a file cannot be read or written, or the control file lacks a field or names a dependency
/// that has no known name in RPM.
pub fn write(source: &Source<'_>, out: &Path) -> Result<PathBuf, RpmError> {
    let control = Control::parse(&read(&source.stage.join("DEBIAN/control"))?)?;
    let mut builder = PackageBuilder::new(
        &control.name,
        source.version,
        "Apache-2.0",
        control.architecture,
        &control.summary,
    );
    let config = BuildConfig::v4().compression(CompressionType::Gzip);
    builder
        .using_config(config.source_date(Timestamp(source.epoch_s)))
        .build_host("reproducible")
        .url(&control.homepage)
        .vendor(&control.maintainer)
        .description(&control.description);
    for dependency in control.requires {
        builder.requires(dependency);
    }
    for name in control.recommends {
        builder.recommends(Dependency::any(name));
    }
    scripts(source.scripts, &control.name, &mut builder)?;
    let conffiles = source.stage.join("DEBIAN/conffiles");
    let conffiles = match conffiles.exists() {
        true => read(&conffiles)?,
        false => String::new(),
    };
    add(source.stage, "", &conffiles, &mut builder)?;
    let package = builder.build()?;
    let file = format!(
        "{}-{}-1.{}.rpm",
        control.name, source.version, control.architecture
    );
    let file = out.join(file);
    package.write_file(&file)?;
    Ok(file)
}

fn read(path: &Path) -> Result<String, RpmError> {
    fs::read_to_string(path).map_err(|source| RpmError::Read {
        path: path.to_owned(),
        source,
    })
}

fn scripts(folder: &Path, name: &str, builder: &mut PackageBuilder) -> Result<(), RpmError> {
    let script = |when: &str| {
        let path = folder.join(format!("{name}.{when}"));
        path.exists().then(|| read(&path)).transpose()
    };
    if let Some(text) = script("post")? {
        builder.post_install_script(text);
    }
    if let Some(text) = script("preun")? {
        builder.pre_uninstall_script(text);
    }
    if let Some(text) = script("postun")? {
        builder.post_uninstall_script(text);
    }
    Ok(())
}

/// Adds what is below a folder, by name. A folder belongs to the package if nothing is in it, or if
/// its name is the package's own: the others are the system's.
fn add(
    folder: &Path,
    installed: &str,
    conffiles: &str,
    builder: &mut PackageBuilder,
) -> Result<(), RpmError> {
    let unread = |source| RpmError::Read {
        path: folder.to_owned(),
        source,
    };
    let entries = fs::read_dir(folder).map_err(unread)?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(unread)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let name = format!("{installed}/{}", entry.file_name().to_string_lossy());
        if name == "/DEBIAN" {
            continue;
        }
        let metadata = entry.metadata().map_err(unread)?;
        // CAST: the twelve bits of permissions.
        let mode = (metadata.permissions().mode() & 0o7777) as u16;
        if metadata.is_dir() {
            if fs::read_dir(&path).map_err(unread)?.next().is_none() {
                builder.with_dir_entry(FileOptions::dir(name.clone()).permissions(mode))?;
            }
            add(&path, &name, conffiles, builder)?;
            continue;
        }
        let mut options = FileOptions::new(rpm_path(&name)).permissions(mode);
        if conffiles.lines().any(|conffile| conffile == name) {
            options = options.config().noreplace();
        } else if name.starts_with("/usr/share/doc/") {
            options = options.doc();
        }
        builder.with_file(&path, options)?;
    }
    Ok(())
}
