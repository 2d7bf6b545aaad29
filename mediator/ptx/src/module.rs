//! A validated module: entries, parameters, variables.

use super::entry::{Entry, Layout, Limits};
use super::error::LoadError;
use super::lexer::{Literal, Token};
use super::lower::{Builder, Scope};
use super::parse::{Parser, Variable};
use super::types::{Space, Type};
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
    image: Vec<u8>,
    /// Length of the image, which outlives it.
    global_bytes: u64,
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
            shared: Layout::default(),
            module: Module {
                entries: Vec::new(),
                image: Vec::new(),
                global_bytes: 0,
                symbols: HashMap::new(),
            },
            instructions: 0,
        };
        loader.header()?;
        while loader.parser.peek() != Token::End {
            loader.top_level()?;
        }
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

    /// What those bytes are before the first launch.
    pub fn global_image(&self) -> &[u8] {
        &self.image
    }

    /// Takes those bytes, so that they are not kept once they are placed.
    pub fn take_image(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.image)
    }

    /// A global or constant variable.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }
}

/// State of reading a module.
struct Loader<'a, 'l> {
    parser: Parser<'a>,
    limits: &'l Limits,
    globals: Scope<'a>,
    shared: Layout,
    module: Module,
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
                ".func" => return self.skip_function(),
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

    /// Functions are not called (`call` is refused), so their bodies do not matter.
    fn skip_function(&mut self) -> Result<(), LoadError> {
        loop {
            match self.parser.advance()? {
                Token::Punct(b'{') => return self.parser.skip_braces(),
                Token::Punct(b';') => return Ok(()),
                Token::End => return Err(self.parser.error("a function body")),
                _ => {}
            }
        }
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
        self.globals
            .declare_symbol(line, variable.name, space, offset)
    }

    /// `= 1`, `= {1, 2}`, `= {{1, 2}, {3}}`: rows are flattened, missing elements are zero (PTX ISA
    /// 5.4.4).
    fn initialiser(
        &mut self,
        variable: &Variable<'a>,
        offset: usize,
        size: usize,
    ) -> Result<(), LoadError> {
        let width = variable.ty.bytes() as usize;
        let mut at = 0;
        let mut depth = 0u32;
        loop {
            let line = self.parser.line();
            match self.parser.peek() {
                Token::Punct(b'{') => {
                    depth += 1;
                    self.parser.advance()?;
                    continue;
                }
                Token::Punct(b'}') if depth > 0 => {}
                Token::Word(name) => {
                    let what = format!("address `{name}` in an initialiser");
                    return Err(LoadError::unsupported(line, what));
                }
                _ => {
                    let value = element(self.parser.number()?, variable.ty, line)?;
                    let bytes = value.to_le_bytes();
                    let target = offset + at..offset + at + width;
                    let slot = self.module.image.get_mut(target);
                    match (slot, bytes.get(..width)) {
                        (Some(slot), Some(bytes)) if at + width <= size => {
                            slot.copy_from_slice(bytes);
                        }
                        _ => return Err(LoadError::syntax(line, "initialiser is too long")),
                    }
                    at += width;
                }
            }
            while depth > 0 && self.parser.accept(b'}')? {
                depth -= 1;
            }
            if depth == 0 {
                return Ok(());
            }
            self.parser.expect(b',')?;
        }
    }

    fn entry(&mut self) -> Result<(), LoadError> {
        let line = self.parser.line();
        if self.module.entries.len() == self.limits.entries {
            return Err(LoadError::Limit {
                line,
                what: "entries",
                limit: self.limits.entries as u64,
            });
        }
        let budget = self.limits.instructions.saturating_sub(self.instructions);
        let builder = Builder::new(self.limits, budget, &self.globals, self.shared);
        let entry = builder.entry(&mut self.parser)?;
        self.instructions += entry.instructions;
        if self.module.entry(&entry.name).is_some() {
            let what = format!("entry `{}` stands twice", entry.name);
            return Err(LoadError::syntax(line, &what));
        }
        self.module.entries.push(entry);
        Ok(())
    }
}

/// The bits of an initialiser's element.
fn element(value: Literal, ty: Type, line: u32) -> Result<u64, LoadError> {
    match value {
        Literal::Int(v) if !ty.float() => Ok(v),
        Literal::Single(v) if ty.float() && ty.bits == 32 => Ok(u64::from(v)),
        Literal::Double(v) if ty.float() && ty.bits == 64 => Ok(v),
        Literal::Double(v) if ty.float() && ty.bits == 32 => {
            Ok(u64::from((f64::from_bits(v) as f32).to_bits()))
        }
        _ => Err(LoadError::syntax(line, "literal does not fit the type")),
    }
}
