//! Pages hold what they promise: lengths, links, sections, and names of code.
//!
//! In: README.md, the pages of `docs` and the source tree. Out: a failure with each offending line.
//! `docs/lab-notebook` keeps history as it was written, so its own links are not checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folder of records that no page and no code may point to.
const NOTEBOOK: &str = "docs/lab-notebook";

/// Most lines of pages that are read from top to bottom.
const LINES_MAX: [(&str, usize); 10] = [
    ("README.md", 110),
    ("docs/ARCHITECTURE.md", 200),
    ("docs/SCHEDULING.md", 200),
    ("docs/GLOSSARY.md", 100),
    ("docs/SPECIFICATION.md", 150),
    ("docs/NVIDIA.md", 220),
    ("docs/nvidia/accounting.md", 120),
    ("docs/nvidia/holding.md", 120),
    ("docs/nvidia/memory.md", 120),
    ("docs/nvidia/signals.md", 120),
];
const DECISIONS_MAX: usize = 15;
const DECISION_LINES_MAX: usize = 40;
const QUESTIONS: usize = 10;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

/// A text file: its path from the root, and its content.
struct Text {
    path: String,
    content: String,
}

/// Files below `folder` with names that end in one of `endings`, by path.
fn texts(folder: &str, endings: &[&str]) -> Vec<Text> {
    fn walk(folder: &Path, endings: &[&str], found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, endings, found);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root().join(folder), endings, &mut found);
    found.sort();
    assert!(!found.is_empty(), "{folder}");
    let text = |path: PathBuf| Text {
        content: fs::read_to_string(&path).unwrap(),
        path: path
            .strip_prefix(root())
            .unwrap()
            .to_string_lossy()
            .into_owned(),
    };
    found.into_iter().map(text).collect()
}

/// README.md and the pages of `docs`, without the lab notebook.
fn pages() -> Vec<Text> {
    let readme = Text {
        path: "README.md".into(),
        content: fs::read_to_string(root().join("README.md")).unwrap(),
    };
    let mut pages = texts("docs", &[".md"]);
    pages.retain(|page| !page.path.starts_with(NOTEBOOK));
    pages.push(readme);
    pages
}

/// Lines outside of fenced code, with their numbers.
fn prose(content: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    let lines = content.lines().enumerate();
    lines.filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        (!fenced && !fence).then_some((index + 1, line))
    })
}

/// What stands between each `open` and the next `close` of a line.
fn between<'a>(line: &'a str, open: &'a str, close: char) -> impl Iterator<Item = &'a str> {
    let parts = line.split(open).skip(1);
    parts.filter_map(move |part| part.split_once(close).map(|(inside, _)| inside))
}

/// The name by which a heading is linked, as GitHub makes it.
fn slug(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c => c.is_alphanumeric().then_some(c),
    });
    kept.collect()
}

/// The names of all headings of a page.
fn sections(page: &Path) -> BTreeSet<String> {
    let content = fs::read_to_string(page).unwrap();
    let headings = prose(&content).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| slug(line)).collect()
}

/// A path without its `..` parts, which need not exist.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            part => normal.push(part),
        }
    }
    normal
}

/// Why the link of a page leads nowhere; none if it does not.
fn dead(page: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, section) = link.split_once('#').unwrap_or((link, ""));
    let own = root().join(page);
    let target = match file {
        "" => own,
        file => normal(&own.parent().unwrap().join(file)),
    };
    if !target.exists() {
        return Some(format!("no file: {link}"));
    }
    let found = section.is_empty() || sections(&target).contains(section);
    (!found).then(|| format!("no section: {link}"))
}

/// Whether `word` stands in a text, and not as a part of a longer name.
fn has_word(text: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + word.len()..].chars().next();
        !part(before) && !part(behind)
    })
}

/// Whether a name of code occurs in the sources: a file, a function, or a path of names that stand
/// in one file.
fn is_known(name: &str, sources: &[Text]) -> bool {
    if name.ends_with(".rs") {
        let ending = format!("/{name}");
        return sources
            .iter()
            .any(|source| source.path == name || source.path.ends_with(&ending));
    }
    if let Some(function) = name.strip_suffix("()") {
        let last = function.rsplit("::").next().unwrap();
        let defined = format!("fn {last}");
        return sources
            .iter()
            .any(|source| has_word(&source.content, &defined));
    }
    let all = |source: &Text| name.split("::").all(|word| has_word(&source.content, word));
    sources.iter().any(all)
}

fn none(found: Vec<String>) {
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn pages_are_short_enough_to_be_read() {
    let lines = |path: &str| {
        let content = fs::read_to_string(root().join(path)).unwrap();
        content.lines().count()
    };
    let mut found = Vec::new();
    let decisions = texts("docs/decisions", &[".md"]);
    let decision = |text: &Text| (text.path.clone(), DECISION_LINES_MAX);
    let pages = LINES_MAX.map(|(path, max)| (path.to_owned(), max));
    for (path, max) in pages.into_iter().chain(decisions.iter().map(decision)) {
        let lines = lines(&path);
        if lines > max {
            found.push(format!("{path}: {lines} lines, at most {max}"));
        }
    }
    if decisions.len() > DECISIONS_MAX {
        let count = decisions.len();
        found.push(format!("{count} decisions, at most {DECISIONS_MAX}"));
    }
    none(found);
}

#[test]
fn links_of_pages_lead_somewhere() {
    let mut found = Vec::new();
    for Text { path, content } in pages() {
        for (number, line) in prose(&content) {
            let links = between(line, "](", ')').chain(between(line, "src=\"", '"'));
            let links = links.chain(between(line, "srcset=\"", '"'));
            for why in links.filter_map(|link| dead(&path, link)) {
                found.push(format!("{path}:{number}: {why}"));
            }
        }
    }
    none(found);
}

#[test]
fn each_question_is_answered_by_one_section() {
    let page = "docs/questions.md";
    let content = fs::read_to_string(root().join(page)).unwrap();
    let rows = content.lines().filter(|line| line.contains("?"));
    let answers: Vec<&str> = rows.flat_map(|row| between(row, "](", ')')).collect();
    assert_eq!(answers.len(), QUESTIONS, "{answers:#?}");
    let mut found: Vec<String> = answers
        .iter()
        .filter_map(|answer| dead(page, answer))
        .collect();
    let whole = answers.iter().filter(|answer| !answer.contains('#'));
    found.extend(whole.map(|answer| format!("no section is named: {answer}")));
    none(found);
}

#[test]
fn names_of_code_in_the_architecture_exist() {
    let page = "docs/ARCHITECTURE.md";
    let content = fs::read_to_string(root().join(page)).unwrap();
    let mut sources = texts("", &[".rs"]);
    sources.retain(|source| !file!().ends_with(&source.path));
    let is_code = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (index, line) in content.lines().enumerate() {
        let quoted = line.split('`').skip(1).step_by(2);
        let quoted = quoted
            .filter(|name| !name.contains(' ') && (name.ends_with(".rs") || name.ends_with("()")));
        // Drawings have no quotes.
        let paths = line
            .split(|c| !is_code(c))
            .map(|name| name.trim_matches(':'));
        let paths = paths.filter(|name| name.contains("::"));
        for name in quoted.chain(paths) {
            if !is_known(name, &sources) {
                found.push(format!("{page}:{}: {name}", index + 1));
            }
        }
    }
    none(found);
}

#[test]
fn paths_of_code_in_pages_exist() {
    let mut found = Vec::new();
    for Text { path, content } in pages() {
        for (number, line) in prose(&content) {
            let quoted = line.split('`').skip(1).step_by(2);
            let is_path = |name: &&str| name.contains("/src/") && !name.contains([' ', '{', '*']);
            let missing = quoted
                .filter(is_path)
                .filter(|name| !root().join(name).exists());
            found.extend(missing.map(|name| format!("{path}:{number}: {name}")));
        }
    }
    none(found);
}

#[test]
fn the_notebook_is_reached_by_its_index_alone() {
    let index = fs::read_to_string(root().join(NOTEBOOK).join("README.md")).unwrap();
    let records = texts(NOTEBOOK, &[".md"]);
    let names = records
        .iter()
        .map(|record| record.path.rsplit('/').next().unwrap());
    let missing = names
        .filter(|name| *name != "README.md" && !index.contains(&format!("({name})")))
        .map(|name| format!("not in the index: {name}"));
    let mut found: Vec<String> = missing.collect();
    let folder = NOTEBOOK.trim_start_matches("docs/");
    for source in texts("", &[".rs", ".md", ".toml", ".sh", ".py", ".cu"]) {
        let own = source.path.starts_with(NOTEBOOK) || file!().ends_with(&source.path);
        let lines = source.content.lines().enumerate();
        let pointing = lines.filter(|(_, line)| !own && line.contains(folder));
        found.extend(pointing.map(|(index, _)| format!("{}:{}", source.path, index + 1)));
    }
    none(found);
}
