//! Parts that this build lacks: one form of error for all of them.

/// The error of a command, option or key of a part that this build lacks.
pub(crate) fn absent(what: &str, feature: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{what}: this turnstile was built without `{feature}`; add `--features {feature}` to the build"
    )
}

/// Arguments of a command that this build lacks.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    _all: Vec<std::ffi::OsString>,
}

/// A command in builds without it.
macro_rules! command {
    ($name:ident, $feature:literal) => {
        #[cfg(not(feature = $feature))]
        pub(crate) mod $name {
            pub(crate) use super::Args;

            pub(crate) fn run(_: impl std::borrow::Borrow<Args>) -> anyhow::Result<()> {
                let name = concat!("turnstile ", stringify!($name));
                Err(super::absent(name, $feature))
            }
        }
    };
}

command!(bench, "nvidia");
command!(cuda_vm, "nvidia");
command!(run, "nvidia");
command!(ui, "dashboard");
