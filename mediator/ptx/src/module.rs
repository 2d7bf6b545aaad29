//! A validated module: entries, parameters, variables.

use super::entry::{Entry, Layout, Limits};
use super::error::LoadError;
use super::function::{self, Function, Functions};
use super::lexer::Token;
use super::lower::{Builder, Scope, Variables};
use super::parse::Parser;
use super::relocation::Relocation;
use super::types::Space;
use std::collections::HashMap;

/// A global or constant variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Bytes from the module's base.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    entries: Vec<Entry>,
    pub(super) image: Vec<u8>,
    /// Length of the image, which outlives it.
    global_bytes: u64,
    /// Places of the image that hold addresses of the module's own variables.
    pub(super) relocations: Vec<Relocation>,
    symbols: HashMap<String, Symbol>,
}

impl Module {
    /// Reads, checks and lowers a text.
    ///
    /// # Errors
    /// The text is not PTX, uses what is not supported, or is over a limit.
    pub fn load(text: &str, limits: &Limits) -> Result<Module, LoadError> {
        if text.len() > limits.text_bytes {
            let limit = limits.text_bytes as u64;
            let what = "bytes of text";
            return Err(LoadError::Limit {
                line: 1,
                what,
                limit,
            });
        }
        // Cubins end in NUL, and so do texts from C; the driver accepts both.
        let text = text.trim_end_matches('\0');
        let mut loader = Loader {
            parser: Parser::new(text)?,
            limits,
            globals: Scope::default(),
            functions: Functions::default(),
            entries: Vec::new(),
            shared: Layout::default(),
            module: Module {
                entries: Vec::new(),
                image: Vec::new(),
                global_bytes: 0,
                relocations: Vec::new(),
                symbols: HashMap::new(),
            },
            instructions: 0,
        };
        loader.header()?;
        while loader.parser.peek() != Token::End {
            loader.top_level()?;
        }
        loader.lower()?;
        Ok(loader.module)
    }

    /// The kernels in the order of the text.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// A kernel by name, with its index.
    pub fn entry(&self, name: &str) -> Option<(usize, &Entry)> {
        let found = self.entries.iter().enumerate();
        found.into_iter().find(|(_, e)| e.name == name)
    }

    /// A kernel by index.
    pub fn entry_at(&self, index: usize) -> Option<&Entry> {
        self.entries.get(index)
    }

    /// Bytes that the module's variables occupy in device memory; place them aligned to 256.
    pub fn global_bytes(&self) -> u64 {
        self.global_bytes
    }

    /// What those bytes are before the first launch, if they are placed at `base`.
    pub fn global_image(&self, base: u64) -> Vec<u8> {
        self.placed(self.image.clone(), base)
    }

    /// Takes those bytes, so that they are not kept once they are placed.
    pub fn take_image(&mut self, base: u64) -> Vec<u8> {
        let image = std::mem::take(&mut self.image);
        self.placed(image, base)
    }

    fn placed(&self, mut image: Vec<u8>, base: u64) -> Vec<u8> {
        for relocation in &self.relocations {
            relocation.apply(&mut image, base);
        }
        image
    }

    /// A global or constant variable.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }
}

/// State of reading a module.
pub(super) struct Loader<'a, 'l> {
    pub(super) parser: Parser<'a>,
    limits: &'l Limits,
    pub(super) globals: Scope<'a>,
    pub(super) functions: Functions<'a>,
    /// Each entry's reader after `.entry`, and its line.
    entries: Vec<(Parser<'a>, u32)>,
    shared: Layout,
    pub(super) module: Module,
    instructions: usize,
}

impl<'a> Loader<'a, '_> {
    /// `.version`, `.target`, `.address_size` (PTX ISA 11.1).
    fn header(&mut self) -> Result<(), LoadError> {
        if !self.parser.accept_word(".version")? {
            return Err(self.parser.error("`.version`"));
        }
        let line = self.parser.line();
        let Token::Number(version) = self.parser.advance()? else {
            return Err(LoadError::syntax(line, "expected a version"));
        };
        let major = version
            .split('.')
            .next()
            .and_then(|v| v.parse::<u32>().ok());
        if !major.is_some_and(|m| (3..=9).contains(&m)) {
            return Err(LoadError::unsupported(line, format!("PTX {version}")));
        }
        if !self.parser.accept_word(".target")? {
            return Err(self.parser.error("`.target`"));
        }
        loop {
            self.parser.word("a target")?;
            if !self.parser.accept(b',')? {
                break;
            }
        }
        if self.parser.accept_word(".address_size")? {
            let line = self.parser.line();
            if self.parser.size(64)? != 64 {
                let what = "an address size other than 64".to_owned();
                return Err(LoadError::unsupported(line, what));
            }
        }
        Ok(())
    }

    fn top_level(&mut self) -> Result<(), LoadError> {
        let line = self.parser.line();
        let mut external = false;
        loop {
            let word = self.parser.word("a directive")?;
            match word {
                ".visible" | ".weak" | ".common" => {}
                ".extern" => external = true,
                ".entry" => return self.entry(),
                ".func" => return self.function(),
                ".alias" => {
                    let name = self.parser.word("a function")?;
                    self.parser.expect(b',')?;
                    let of = self.parser.word("a function")?;
                    self.functions.alias(line, name, of)?;
                    return self.parser.expect(b';');
                }
                ".global" => return self.variable(Space::Global, external),
                ".const" => return self.variable(Space::Const, external),
                ".shared" => return self.variable(Space::Shared, external),
                ".pragma" => return self.parser.skip_statement(),
                ".file" | ".loc" => return self.parser.skip_line(),
                ".section" => {
                    while !self.parser.accept(b'{')? {
                        self.parser.word("a section")?;
                    }
                    return self.parser.skip_braces();
                }
                other => {
                    return Err(LoadError::unsupported(line, format!("directive `{other}`")));
                }
            }
        }
    }

    /// A function's signature; its body is read when an entry calls it.
    fn function(&mut self) -> Result<(), LoadError> {
        let line = self.parser.line();
        let (name, signature) = function::signature(&mut self.parser, self.limits)?;
        function::directives(&mut self.parser)?;
        let mut body = None;
        if !self.parser.accept(b';')? {
            self.parser.expect(b'{')?;
            body = Some(self.parser.clone());
            self.parser.skip_braces()?;
        }
        let function = Function {
            name,
            signature,
            body,
        };
        self.functions.add(line, function, self.limits)
    }

    fn variable(&mut self, space: Space, external: bool) -> Result<(), LoadError> {
        let variable = self.parser.variable()?;
        if space == Space::Shared {
            self.parser.expect(b';')?;
            let limit = u64::from(self.limits.shared_bytes);
            return self
                .globals
                .declare_shared(&variable, &mut self.shared, limit);
        }
        let line = variable.line;
        let Some(size) = variable.size.filter(|_| !external) else {
            return Err(LoadError::unsupported(
                line,
                format!("`{}` without a size or from another module", variable.name),
            ));
        };
        let mut layout = Layout {
            bytes: self.module.image.len() as u64,
        };
        let limit = (self.limits.global_bytes, "bytes of variables");
        let offset = layout.place(line, (size, variable.align), limit)?;
        // CAST: the limit was checked; an image is far below the address space.
        self.module.image.resize(layout.bytes as usize, 0);
        self.module.global_bytes = layout.bytes;
        if self.parser.accept(b'=')? {
            self.initialiser(&variable, offset as usize, size as usize)?;
        }
        self.parser.expect(b';')?;
        let name = variable.name.to_owned();
        self.module.symbols.insert(name, Symbol { offset, size });
        let place = Variables::At(space, offset);
        self.globals.declare(line, variable.name, place)
    }

    /// Remembers where an entry begins: what it calls may follow it.
    fn entry(&mut self) -> Result<(), LoadError> {
        let line = self.parser.line();
        if self.entries.len() == self.limits.entries {
            return Err(LoadError::Limit {
                line,
                what: "entries",
                limit: self.limits.entries as u64,
            });
        }
        let begin = self.parser.clone();
        loop {
            match self.parser.advance()? {
                Token::Punct(b'{') => break self.parser.skip_braces()?,
                Token::Punct(b';') => return Ok(()),
                Token::End => return Err(self.parser.error("an entry's body")),
                _ => {}
            }
        }
        self.entries.push((begin, line));
        Ok(())
    }

    fn lower(&mut self) -> Result<(), LoadError> {
        let mut text_bytes = self.limits.function_text_bytes;
        for (mut parser, line) in std::mem::take(&mut self.entries) {
            let budget = self.limits.instructions.saturating_sub(self.instructions);
            let builder = Builder::new(
                self.limits,
                (budget, &mut text_bytes),
                &self.globals,
                &self.functions,
                self.shared,
            );
            let entry = builder.entry(&mut parser)?;
            self.instructions += entry.instructions;
            if self.module.entry(&entry.name).is_some() {
                let what = format!("entry `{}` stands twice", entry.name);
                return Err(LoadError::syntax(line, &what));
            }
            self.module.entries.push(entry);
        }
        Ok(())
    }
}
