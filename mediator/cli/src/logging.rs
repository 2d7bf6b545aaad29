//! Lines of the log on standard error.

use env_logger::Builder;
use turnstile_daemon::config::LogSection;

/// Lines of a command: warnings, in the form of its errors. `RUST_LOG` wins.
pub(crate) fn begin() {
    Builder::new()
        .parse_filters("warn")
        .parse_default_env()
        .init();
}

/// Lines of a daemon, as its configuration has them. `RUST_LOG` wins.
pub(crate) fn begin_daemon(section: &LogSection) {
    let mut builder = Builder::new();
    builder.parse_filters(&filter(section)).parse_default_env();
    if section.timestamps {
        builder.format_timestamp_millis();
    } else {
        builder.format_timestamp(None);
    }
    builder.init();
}

fn filter(section: &LogSection) -> String {
    let level = section.level.name();
    let others = match level {
        "error" => "error",
        _ => "warn",
    };
    format!("{others},turnstile={level}")
}

#[cfg(test)]
mod tests {
    use turnstile_daemon::config::LogLevel;

    use super::*;

    #[test]
    fn level_is_that_of_the_daemons_own_crates() {
        let of = |level| {
            filter(&LogSection {
                level,
                ..LogSection::default()
            })
        };
        assert_eq!(of(LogLevel::Info), "warn,turnstile=info");
        assert_eq!(of(LogLevel::Trace), "warn,turnstile=trace");
        assert_eq!(of(LogLevel::Error), "error,turnstile=error");
    }
}
