//! The tool's arguments: options with a value each, then parameters.

use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with the arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageError {
    Command(String),
    Value(String),
    Missing(&'static str),
    Number(String),
    Param(String),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command(text) if text.is_empty() => f.write_str("a command is wanted"),
            Self::Command(text) => write!(f, "there is no command {text}"),
            Self::Value(name) => write!(f, "--{name} needs a value"),
            Self::Missing(name) => write!(f, "--{name} is needed"),
            Self::Number(name) => write!(f, "--{name} is no number that fits"),
            Self::Param(text) => write!(f, "{text} is no parameter"),
        }
    }
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Param {
    In,
    Out,
    Words,
    U32(u32),
    U64(u64),
    F32(f32),
}

/// What was given.
#[derive(Debug, Default)]
pub(crate) struct Args {
    options: BTreeMap<String, String>,
    rest: Vec<String>,
}

impl Args {
    pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, UsageError> {
        let mut args = Self::default();
        let mut arguments = arguments;
        while let Some(argument) = arguments.next() {
            match argument.strip_prefix("--") {
                Some(name) => {
                    let value = arguments.next();
                    let value = value.ok_or_else(|| UsageError::Value(name.to_owned()))?;
                    args.options.insert(name.to_owned(), value);
                }
                None => args.rest.push(argument),
            }
        }
        Ok(args)
    }

    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    pub(crate) fn required(&self, name: &'static str) -> Result<&str, UsageError> {
        self.text(name).ok_or(UsageError::Missing(name))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, UsageError> {
        let number = |text: &str| {
            text.parse()
                .map_err(|_| UsageError::Number(name.to_owned()))
        };
        self.text(name).map(number).transpose()
    }

    pub(crate) fn rest(&self) -> &[String] {
        &self.rest
    }

    pub(crate) fn params(&self) -> Result<Vec<Param>, UsageError> {
        self.rest.iter().map(|text| param(text)).collect()
    }
}

fn param(text: &str) -> Result<Param, UsageError> {
    let wrong = || UsageError::Param(text.to_owned());
    match text {
        "in" => return Ok(Param::In),
        "out" => return Ok(Param::Out),
        "words" => return Ok(Param::Words),
        _ => {}
    }
    let (kind, value) = text.split_once(':').ok_or_else(wrong)?;
    match kind {
        "u32" => value.parse().map(Param::U32).map_err(|_| wrong()),
        "u64" => value.parse().map(Param::U64).map_err(|_| wrong()),
        "f32" => value.parse().map(Param::F32).map_err(|_| wrong()),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Args, UsageError> {
        Args::parse(text.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_have_values_and_the_rest_is_parameters() {
        let args = parse("--ptx a.ptx in --grid 4 out words u32:7 f32:1.5 u64:8").unwrap();
        assert_eq!(args.required("ptx"), Ok("a.ptx"));
        assert_eq!(args.number("grid"), Ok(Some(4)));
        assert_eq!(args.number("block"), Ok(None));
        let expected = [
            Param::In,
            Param::Out,
            Param::Words,
            Param::U32(7),
            Param::F32(1.5),
            Param::U64(8),
        ];
        assert_eq!(args.params().unwrap(), expected);
        assert_eq!(args.required("kernel"), Err(UsageError::Missing("kernel")));
        assert!(parse("--grid").is_err());
        assert!(parse("--grid x").unwrap().number("grid").is_err());
        assert!(parse("u32:-1").unwrap().params().is_err());
        assert!(parse("x").unwrap().params().is_err());
    }
}
