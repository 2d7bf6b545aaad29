//! `turnstile-package`: the steps of `mediator/package/build` and `image` that no tool does.
#![deny(unsafe_code)]

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use turnstile_package::image::{self, Image};
use turnstile_package::{Source, write};

/// Make packages that the tools of distributions do not make.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
    /// All times in the package, in seconds of Unix time
    #[arg(long, global = true, default_value_t = 0)]
    epoch: u32,
}

#[derive(Subcommand)]
enum What {
    /// Make an RPM package of what a Debian package has
    Rpm {
        /// The files as they are installed, and DEBIAN
        stage: PathBuf,
        /// Folder of the scripts
        scripts: PathBuf,
        /// The version as RPM sorts it
        version: String,
        /// Folder of the package
        out: PathBuf,
    },
    /// Make an OCI image of static programs, as a tar file with an image layout
    Image {
        /// The version, which is the image's tag
        version: String,
        /// Folder of the image
        out: PathBuf,
        /// Programs; a container runs the first one
        #[arg(required = true)]
        programs: Vec<PathBuf>,
    },
}

fn main() -> anyhow::Result<()> {
    let Args { what, epoch } = Args::parse();
    let file = match what {
        What::Rpm {
            stage,
            scripts,
            version,
            out,
        } => {
            let source = Source {
                stage: &stage,
                scripts: &scripts,
                version: &version,
                epoch_s: epoch,
            };
            write(&source, &out)?
        }
        What::Image {
            version,
            out,
            programs,
        } => {
            let image = Image {
                programs: &programs,
                version: &version,
                epoch_s: epoch,
            };
            image::write(&image, &out)?
        }
    };
    println!("{}", file.display());
    Ok(())
}
