//! How a command prints its result: a table for people, JSON or YAML for programs.
//!
//! - In: a value, and a function that prints it as a table. Out: text on standard output.
//! - Invariants: JSON and YAML have the same fields and are stable. YAML is read as the same values
//!   by readers of YAML 1.1 and of 1.2. Tables may change from version to version.
//! - Callers: the subcommands of `turnstile`, the bench among them.

use clap::ValueEnum;
use serde::Serialize;

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table, which may change from version to version
    #[default]
    Table,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

/// A result cannot be written in the form.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Not as JSON.
    #[error("The result cannot be written as JSON")]
    Json(#[from] serde_json::Error),
    /// Not as YAML.
    #[error("The result cannot be written as YAML")]
    Yaml(#[from] serde_saphyr::ser::Error),
}

impl Output {
    /// The lines of a value, or none for a table.
    ///
    /// # Errors
    /// If the value has no such form, as a map with maps for keys.
    pub fn text<T: Serialize>(self, value: &T) -> Result<Option<String>, OutputError> {
        Ok(match self {
            Self::Table => None,
            Self::Json => Some(serde_json::to_string_pretty(value)? + "\n"),
            Self::Yaml => {
                // A text is one line, however long it is: lines can be searched.
                let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
                Some(serde_saphyr::to_string_with_options(value, options)?)
            }
        })
    }

    /// Prints a value.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn print<T: Serialize>(self, value: &T, table: impl FnOnce(&T)) -> Result<(), OutputError> {
        match self.text(value)? {
            None => table(value),
            Some(text) => print!("{text}"),
        }
        Ok(())
    }
}

/// The option of a command that prints a result.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct OutputArgs {
    /// How the result is shown: JSON and YAML are stable, tables are for people
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
    /// The spelling of version 0.1
    #[arg(long, hide = true, conflicts_with = "output")]
    json: bool,
}

impl OutputArgs {
    /// The form.
    #[must_use]
    pub fn form(self) -> Output {
        if self.json { Output::Json } else { self.output }
    }

    /// Prints a value; a line on standard error names the new spelling of an old one.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn print<T: Serialize>(self, value: &T, table: impl FnOnce(&T)) -> Result<(), OutputError> {
        if self.json {
            eprintln!("turnstile: --json is now -o json; the next release refuses --json");
        }
        self.form().print(value, table)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn yaml(value: &Value) -> String {
        Output::Yaml.text(value).unwrap().unwrap()
    }

    fn read(text: &str) -> Value {
        serde_saphyr::from_str(text).unwrap()
    }

    /// Texts that a reader of YAML 1.1 or 1.2 takes for something else where they stand unquoted.
    const TEXTS: [&str; 24] = [
        "",
        " ",
        "~",
        "null",
        "no",
        "On",
        "y",
        "true",
        "1",
        "0x1f",
        "0o17",
        "1e3",
        ".inf",
        "12:30",
        "2026-11-29",
        "- a",
        "a: b",
        "a #b",
        "&a",
        "*a",
        "!a",
        "%a",
        "a\nb\n",
        "é\u{7}\t\\\"'",
    ];

    #[test]
    fn texts_stay_texts_in_yaml() {
        for text in TEXTS {
            let value = json!({ "text": text, text: [text] });
            assert_eq!(read(&yaml(&value)), value, "{text:?}");
        }
        let line = "word ".repeat(100) + "end";
        assert_eq!(yaml(&json!({ "line": line })).lines().count(), 1);
    }

    #[test]
    fn numbers_keep_all_digits_in_yaml() {
        let value = json!({ "most": u64::MAX, "least": i64::MIN, "part": 0.1, "none": null });
        assert_eq!(read(&yaml(&value)), value);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (-1e9..1e9).prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            "[-0-9:.eExT_~ #]{0,10}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("\\PC{0,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn yaml_has_the_values_of_json(value in values()) {
            prop_assert_eq!(read(&yaml(&value)), value);
        }
    }

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        output: OutputArgs,
    }

    #[test]
    fn the_old_spelling_of_json_is_accepted_and_hidden() {
        let form = |words: &[&str]| Line::try_parse_from(words).map(|line| line.output.form());
        assert_eq!(form(&["x"]).unwrap(), Output::Table);
        for (word, expected) in [("json", Output::Json), ("yaml", Output::Yaml)] {
            assert_eq!(form(&["x", "-o", word]).unwrap(), expected);
            assert_eq!(form(&["x", "--output", word]).unwrap(), expected);
        }
        assert_eq!(form(&["x", "--json"]).unwrap(), Output::Json);
        assert!(form(&["x", "--json", "-o", "yaml"]).is_err());
        let help = <Line as clap::CommandFactory>::command().render_help();
        assert!(!help.to_string().contains("--json"));
    }
}
