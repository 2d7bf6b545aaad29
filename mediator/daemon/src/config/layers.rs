//! Layers of settings, each with its origin.
//!
//! A layer is taken apart into single settings (`ledger.window_ms` = 30000). Each of them is
//! checked against [`Config`] at once, so that all problems are reported together, each with its
//! line.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Serialize;
use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::{Config, ConfigError, Problem};

/// More than any configuration has.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Problems that are reported at a time.
const PROBLEMS_MAX: usize = 100;

/// Names of variables begin with this.
const PREFIX: &str = "TURNSTILE_";

/// Where a setting comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Not set anywhere.
    Default,
    /// A file.
    File {
        /// Which.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Variable(String),
    /// An option of the command line.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Option(name) => f.write_str(name),
        }
    }
}

/// A key's value.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// What it is; none if it is not set.
    pub value: Option<Value>,
    /// Where it was set.
    pub origin: Origin,
}

/// A configuration, and where each part of it comes from.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// All keys.
    pub settings: BTreeMap<&'static str, Setting>,
    /// Files that were read, in order.
    pub files: Vec<PathBuf>,
}

impl Effective {
    /// A file with the same settings, and with the origin of those that are not defaults.
    pub fn to_toml(&self) -> String {
        let mut keys: Vec<_> = (self.settings.iter())
            .filter_map(|(key, setting)| Some((key.rsplit_once('.')?, setting)))
            .collect();
        // A section's own keys stand before its sub-sections.
        keys.sort_by_key(|((section, key), _)| (*section, *key));
        let (mut text, mut at) = (String::new(), "");
        let alone = self.settings.iter().filter(|(key, _)| !key.contains('.'));
        for (key, setting) in alone {
            if let Some(value) = &setting.value {
                text.push_str(&format!("{key} = {value}"));
            }
            if setting.origin != Origin::Default {
                text.push_str(&format!("  # {}", setting.origin));
            }
            text.push_str("\n\n");
        }
        for ((section, key), setting) in keys {
            if section != at {
                let gap = if at.is_empty() { "" } else { "\n" };
                text.push_str(&format!("{gap}[{section}]\n"));
                at = section;
            }
            match &setting.value {
                Some(value) => text.push_str(&format!("{key} = {value}")),
                None => text.push_str(&format!("# {key} is not set")),
            }
            if setting.origin != Origin::Default {
                text.push_str(&format!("  # {}", setting.origin));
            }
            text.push('\n');
        }
        text
    }
}

/// The defaults as a tree: sections are objects, keys all else.
fn tree() -> &'static Json {
    static TREE: OnceLock<Json> = OnceLock::new();
    // PANIC: a structure of numbers, texts and lists
    TREE.get_or_init(|| serde_json::to_value(Config::default()).expect("defaults are data"))
}

/// Every key with its default, as `section.key`.
pub fn known_keys() -> &'static BTreeMap<String, Option<Value>> {
    static KEYS: OnceLock<BTreeMap<String, Option<Value>>> = OnceLock::new();
    fn walk(prefix: &str, tree: &Json, keys: &mut BTreeMap<String, Option<Value>>) {
        let Json::Object(children) = tree else {
            // Null, which TOML lacks, is a key that is not set.
            keys.insert(prefix.to_owned(), Value::try_from(tree).ok());
            return;
        };
        for (name, child) in children {
            walk(&join(prefix, name), child, keys);
        }
    }
    KEYS.get_or_init(|| {
        let mut keys = BTreeMap::new();
        walk("", tree(), &mut keys);
        keys
    })
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() {
        name.to_owned()
    } else {
        format!("{prefix}.{name}")
    }
}

/// Keys that were renamed, with their names of today: the old ones work for one release.
const RENAMED: [(&str, &str); 1] = [("gpu.usher", "gpu.preemptor")];

/// The key's name of today, as it lives as long as the program.
fn known(key: &str) -> Option<&'static str> {
    let renamed = RENAMED.iter().find(|(old, _)| *old == key);
    let key = renamed.map_or(key, |(_, new)| new);
    known_keys().get_key_value(key).map(|(key, _)| key.as_str())
}

fn is_section(key: &str) -> bool {
    let begin = format!("{key}.");
    known_keys().keys().any(|known| known.starts_with(&begin))
}

/// The variable that sets a key.
fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_uppercase())
}

/// The nearest of `all`, if any is near enough to have been meant.
pub(super) fn nearest<'a>(word: &str, all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // SOURCE: clap's bound for "a similar argument exists".
    const NEAR: f64 = 0.7;
    // Short words with one slip have a low rating.
    let rate = |other| match strsim::osa_distance(word, other) {
        0 | 1 => 1.0,
        _ => strsim::jaro_winkler(word, other),
    };
    let rated = all.map(|other| (rate(other), other));
    let best = rated.max_by(|one, other| one.0.total_cmp(&other.0));
    best.filter(|(near, _)| *near > NEAR).map(|(_, word)| word)
}

fn not_known(key: &str) -> String {
    match meant(key) {
        Some(meant) => format!("{key} is not known; did you mean {meant}?"),
        None => format!("{key} is not known; `turnstile config show` prints all keys"),
    }
}

/// The message of a value that was refused, with the permitted word that was probably meant.
fn with_meant(message: &str) -> String {
    let mut words = message.split('`').skip(1).step_by(2);
    let wrong = message
        .starts_with("unknown ")
        .then(|| words.next())
        .flatten();
    match wrong.and_then(|wrong| nearest(wrong, words)) {
        Some(meant) => format!("{message}; did you mean {meant}?"),
        None => message.to_owned(),
    }
}

/// A suggestion: a key of that name elsewhere, a similar name in its section, or a similar section.
fn meant(key: &str) -> Option<String> {
    let parts = || known_keys().keys().filter_map(|key| key.rsplit_once('.'));
    let (section, name) = key.rsplit_once('.').unwrap_or((key, ""));
    let mut same = parts().filter(|(_, other)| *other == name);
    if let (Some((section, name)), None) = (same.next(), same.next()) {
        return Some(format!("{section}.{name}"));
    }
    if is_section(section) {
        let own = parts().filter(|(other, _)| *other == section);
        let name = nearest(name, own.map(|(_, name)| name))?;
        return Some(format!("{section}.{name}"));
    }
    nearest(section, parts().map(|(section, _)| section)).map(str::to_owned)
}

/// The configuration that has nothing but this setting.
fn alone(key: &str, value: &Value) -> Table {
    let mut table = Table::new();
    put(&mut table, key, value.clone());
    table
}

fn put(table: &mut Table, key: &str, value: Value) {
    match key.split_once('.') {
        None => drop(table.insert(key.to_owned(), value)),
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Table::new().into());
            if let Value::Table(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

/// Collects layers; a later one wins.
#[derive(Debug, Default)]
pub struct Layers {
    settings: BTreeMap<&'static str, Setting>,
    problems: Vec<Problem>,
    files: Vec<PathBuf>,
}

impl Layers {
    /// Nothing yet: all as it is by default.
    pub fn new() -> Self {
        Self::default()
    }

    fn problem(&mut self, origin: Origin, text: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(Problem { origin, text });
        }
    }

    /// Sets one key.
    pub fn set(&mut self, key: &str, value: Value, origin: Origin) {
        let Some(key) = known(key) else {
            self.problem(origin, not_known(key));
            return;
        };
        match alone(key, &value).try_into::<Config>() {
            Ok(_) => {
                let value = Some(value);
                self.settings.insert(key, Setting { value, origin });
            }
            Err(error) => {
                let text = format!("{key} = {value}: {}", with_meant(error.message()));
                self.problem(origin, text);
            }
        }
    }

    /// Sets one key to a text's value: a TOML value, or a plain text.
    fn set_text(&mut self, key: &str, text: &str, origin: Origin) {
        let parsed = toml::from_str::<Table>(&format!("value = {text}"));
        let value = parsed.ok().and_then(|mut table| table.remove("value"));
        let fits = |value: &Value| {
            known(key).is_none_or(|key| alone(key, value).try_into::<Config>().is_ok())
        };
        let plain = Value::String(text.to_owned());
        self.set(key, value.filter(fits).unwrap_or(plain), origin);
    }

    /// Sets a key if an option was given.
    pub fn option<T: Serialize>(&mut self, option: &str, key: &str, value: Option<T>) {
        let Some(value) = value else { return };
        let origin = Origin::Option(option.to_owned());
        match Value::try_from(value) {
            Ok(value) => self.set(key, value, origin),
            Err(error) => self.problem(origin, error.to_string()),
        }
    }

    /// Takes `section.key=value`, as `--set` has it.
    pub fn assignment(&mut self, text: &str) {
        let origin = Origin::Option(format!("--set {text}"));
        match text.split_once('=') {
            Some((key, value)) => self.set_text(key.trim(), value.trim(), origin),
            None => self.problem(origin, "SECTION.KEY=VALUE is wanted".to_owned()),
        }
    }

    /// Takes variables of the environment named `TURNSTILE_SECTION_KEY`. Others with this prefix
    /// belong to other programs (tests, builds), unless they name a section.
    pub fn variables(&mut self, variables: impl Iterator<Item = (String, String)>) {
        let keys: BTreeMap<String, &str> = known_keys()
            .keys()
            .map(String::as_str)
            .chain(RENAMED.map(|(old, _)| old))
            .map(|key| (variable(key), key))
            .collect();
        let sections: BTreeSet<String> = keys
            .values()
            .filter_map(|key| key.split('.').next())
            .map(|section| format!("{}_", variable(section)))
            .collect();
        for (name, text) in variables {
            if let Some(key) = keys.get(&name) {
                self.set_text(key, &text, Origin::Variable(name));
            } else if sections.iter().any(|section| name.starts_with(section)) {
                let text = match nearest(&name, keys.keys().map(String::as_str)) {
                    Some(meant) => format!("no such key; did you mean {meant}?"),
                    None => "no such key".to_owned(),
                };
                self.problem(Origin::Variable(name), text);
            }
        }
    }

    /// Reads a file and the drop-ins beside it, `conf.d/*.toml` by name. A missing main file is a
    /// problem if `must_be`. [`Self::finish`] reports all problems.
    pub fn files(&mut self, main: &Path, must_be: bool) {
        if must_be || main.symlink_metadata().is_ok() {
            self.file(main);
        }
        let folder = main.parent().unwrap_or(Path::new("")).join("conf.d");
        let drop_ins = match drop_ins(&folder) {
            Ok(drop_ins) => drop_ins,
            Err(error) => return self.unreadable(&folder, &error.to_string()),
        };
        for path in drop_ins {
            self.file(&path);
        }
    }

    fn file(&mut self, path: &Path) {
        match read(path) {
            Ok(text) => self.text(path, &text),
            Err(why) => self.unreadable(path, &why),
        }
    }

    fn unreadable(&mut self, path: &Path, why: &str) {
        let path = path.to_owned();
        let text = format!("cannot be read: {why}; correct it, or name another file by --config");
        self.problem(Origin::File { path, line: 1 }, text);
    }

    /// Takes the text of a file.
    pub fn text(&mut self, path: &Path, text: &str) {
        self.files.push(path.to_owned());
        let origin = |at: usize| Origin::File {
            path: path.to_owned(),
            line: 1 + text
                .as_bytes()
                .iter()
                .take(at)
                .filter(|c| **c == b'\n')
                .count(),
        };
        let before = self.problems.len();
        match DeTable::parse(text) {
            Ok(table) => {
                self.table("", table.get_ref(), &origin);
                // Tables come by name.
                self.problems[before..].sort_by_key(|problem| match problem.origin {
                    Origin::File { line, .. } => line,
                    _ => 0,
                });
            }
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                self.problem(origin(at), error.message().to_owned());
            }
        }
    }

    fn table(&mut self, prefix: &str, table: &DeTable<'_>, origin: &dyn Fn(usize) -> Origin) {
        for (name, value) in table {
            let (at, key) = (name.span().start, join(prefix, name.get_ref()));
            match (value.get_ref(), is_section(&key)) {
                (DeValue::Table(inner), true) => self.table(&key, inner, origin),
                (_, true) => self.problem(origin(at), format!("{key} is a section, not a key")),
                (_, false) => match plain(value) {
                    Ok(value) => self.set(&key, value, origin(at)),
                    Err(error) => self.problem(origin(at), error.message().to_owned()),
                },
            }
        }
    }

    /// The configuration that the layers make.
    ///
    /// # Errors
    /// With everything that is wrong in any of them, or with all of them together. Beside wrong
    /// settings, those that are set are checked too.
    pub fn finish(mut self) -> Result<Effective, ConfigError> {
        let mut table = Table::new();
        for (key, setting) in &self.settings {
            if let Some(value) = &setting.value {
                put(&mut table, key, value.clone());
            }
        }
        let config = match table.try_into::<Config>() {
            Ok(config) => config,
            Err(error) => {
                self.problem(Origin::Default, error.message().to_owned());
                return Err(ConfigError(self.problems));
            }
        };
        let whole = self.problems.is_empty();
        for (key, text) in config.problems() {
            match self.settings.get(key).map(|setting| setting.origin.clone()) {
                Some(origin) => self.problem(origin, format!("{key}: {text}")),
                // What a wrong setting leaves at its default may be at odds with the others.
                None if whole => self.problem(Origin::Default, format!("{key}: {text}")),
                None => {}
            }
        }
        if !self.problems.is_empty() {
            let files = self.files;
            self.problems.sort_by_key(|problem| match &problem.origin {
                Origin::File { path, line } => {
                    let read = files.iter().position(|file| file == path);
                    (read.unwrap_or(files.len()), *line)
                }
                _ => (files.len() + 1, 0),
            });
            return Err(ConfigError(self.problems));
        }
        for (key, value) in known_keys() {
            self.settings.entry(key).or_insert_with(|| Setting {
                value: value.clone(),
                origin: Origin::Default,
            });
        }
        Ok(Effective {
            config,
            settings: self.settings,
            files: self.files,
        })
    }
}

/// A value without its place in the text.
fn plain(value: &Spanned<DeValue<'_>>) -> Result<Value, toml::de::Error> {
    use serde::Deserialize;
    Value::deserialize(toml::de::ValueDeserializer::from(value.clone()))
}

/// Drop-ins of a folder by name; none where it does not exist.
fn drop_ins(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let found = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        found => found?,
    };
    let mut drop_ins = Vec::new();
    for entry in found {
        drop_ins.push(entry?.path());
    }
    drop_ins.retain(|path| {
        let hidden = (path.file_name()).is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        path.extension().is_some_and(|ending| ending == "toml") && !hidden
    });
    drop_ins.sort();
    Ok(drop_ins)
}

fn read(path: &Path) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let mut limited = file.take(FILE_BYTES_MAX + 1);
    limited
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    // CAST: usize is 64 bits here.
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}
