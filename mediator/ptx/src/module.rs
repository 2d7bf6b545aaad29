//! A validated module: entries, parameters, variables.

use super::code::Code;
use super::lexer::{Literal, Token};
use super::lower::{Builder, Scope};
use super::parse::{Parser, Variable};
use super::types::{Space, Type};
use std::collections::HashMap;
use thiserror::Error;

/// What a text may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text.
    pub text_bytes: usize,
    /// Entries of the module.
    pub entries: usize,
    /// Instructions of the module (those that helpers add are counted).
    pub instructions: usize,
    /// Registers of an entry, predicates included.
    pub registers: u32,
    /// Bytes of static shared memory of an entry; at launch, of static and dynamic together.
    pub shared_bytes: u32,
    /// Bytes of local memory of a thread.
    pub local_bytes: u32,
    /// Bytes of global and constant variables.
    pub global_bytes: u64,
    /// Bytes of an entry's parameters (PTX ISA 5.1.6: 4352, or 32764 from sm_70 on).
    pub param_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            text_bytes: 4 << 20,
            entries: 1024,
            instructions: 1 << 20,
            registers: 4096,
            shared_bytes: 96 << 10,
            local_bytes: 64 << 10,
            global_bytes: 16 << 20,
            param_bytes: 4352,
        }
    }
}

/// Why a text was refused. Each carries its line, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    /// The text is not PTX.
    #[error("Line {line}: {what}")]
    Syntax {
        /// Line.
        line: u32,
        /// What was expected and found.
        what: String,
    },
    /// PTX that this machine does not execute.
    #[error("Line {line}: {what} is not supported")]
    Unsupported {
        /// Line.
        line: u32,
        /// The instruction or directive.
        what: String,
    },
    /// Operands that do not fit the instruction.
    #[error("Line {line}: {what}")]
    Operand {
        /// Line.
        line: u32,
        /// Which operand and why.
        what: String,
    },
    /// More than [`Limits`] allow.
    #[error("Line {line}: more than {limit} {what}")]
    Limit {
        /// Line.
        line: u32,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
}

impl LoadError {
    /// The line at fault.
    pub fn line(&self) -> u32 {
        match self {
            LoadError::Syntax { line, .. }
            | LoadError::Unsupported { line, .. }
            | LoadError::Operand { line, .. }
            | LoadError::Limit { line, .. } => *line,
        }
    }

    pub(super) fn syntax(line: u32, what: &str) -> LoadError {
        let what = shorten(what);
        LoadError::Syntax { line, what }
    }

    pub(super) fn unsupported(line: u32, what: String) -> LoadError {
        let what = shorten(&what);
        LoadError::Unsupported { line, what }
    }

    pub(super) fn operand(line: u32, what: &str) -> LoadError {
        let what = shorten(what);
        LoadError::Operand { line, what }
    }
}

/// The guest chooses names; a message carries at most 160 characters of them.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(160) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// A parameter of an entry, in bytes of its parameter block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name in the text.
    pub name: String,
    /// Offset in the block.
    pub offset: u32,
    /// Size.
    pub size: u32,
    /// Alignment.
    pub align: u32,
}

/// A global or constant variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol {
    /// Bytes from the module's base.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A kernel.
#[derive(Debug)]
pub struct Entry {
    /// Name in the text.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Bytes of the parameter block.
    pub param_bytes: u32,
    /// Bytes of shared memory with a fixed size, rounded up to where dynamic shared memory begins.
    pub static_shared_bytes: u32,
    /// Bytes of local memory of each thread.
    pub local_bytes: u32,
    /// Registers declared, predicates included.
    pub registers: u32,
    /// Most threads of a block (`.maxntid`, `.reqntid`), if the text declares it.
    pub max_threads: Option<u32>,
    /// Instructions after lowering.
    pub instructions: usize,
    pub(super) shared_limit: u32,
    pub(super) code: Code,
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    entries: Vec<Entry>,
    image: Vec<u8>,
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
        self.image.len() as u64
    }

    /// What those bytes are before the first launch.
    pub fn global_image(&self) -> &[u8] {
        &self.image
    }

    /// A global or constant variable.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.symbols.get(name).copied()
    }
}

/// Lays variables out one after another.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Layout {
    pub(super) bytes: u64,
}

impl Layout {
    /// The offset of a variable of `size` bytes.
    pub(super) fn place(
        &mut self,
        line: u32,
        (size, align): (u64, u32),
        (limit, what): (u64, &'static str),
    ) -> Result<u64, LoadError> {
        let offset = self.bytes.next_multiple_of(u64::from(align));
        match offset.checked_add(size) {
            Some(end) if end <= limit => {
                self.bytes = end;
                Ok(offset)
            }
            _ => Err(LoadError::Limit { line, what, limit }),
        }
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
