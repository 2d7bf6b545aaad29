//! Statements to code: names to slots, labels to targets, opcodes to kernels.

mod alu;
mod carry;
mod control;
mod convert;
mod memory;
mod operand;
mod scope;

pub(super) use scope::Scope;

use super::code::{Code, Dst, Inst, Op, Pred, Src};
use super::entry::{Entry, Layout, Limits, Param};
use super::error::LoadError;
use super::kernels::Lanewise;
use super::lexer::Token;
use super::parse::{Parser, Statement};
use super::types::{Kind, Modifiers, Space};
use scope::Register;
use std::collections::HashMap;

/// Nested `{ }` blocks of a body.
const MAX_SCOPES: usize = 32;

/// A branch with a label that is not resolved yet: instruction, label, line.
type Fixup<'a> = (usize, &'a str, u32);

/// Names and labels of one `{ }`.
#[derive(Debug, Default)]
struct Block<'a> {
    names: Scope<'a>,
    labels: HashMap<&'a str, u32>,
    fixups: Vec<Fixup<'a>>,
}

/// Builds one entry.
#[derive(Debug)]
pub(super) struct Builder<'a, 'l> {
    limits: &'l Limits,
    budget: usize,
    globals: &'l Scope<'a>,
    blocks: Vec<Block<'a>>,
    code: Code,
    registers: u32,
    shared: Layout,
    local: Layout,
    params: Vec<Param>,
    param_layout: Layout,
    max_threads: Option<u32>,
    /// Helper registers, taken anew by each statement.
    temp_words: Vec<u16>,
    temp_doubles: Vec<u16>,
    temps_used: (usize, usize),
    /// Pool entries to which the size of static shared memory is added at the end.
    dynamic_shared: Vec<usize>,
    /// Of the statement that is being lowered.
    line: u32,
    guard: Pred,
}

impl<'a, 'l> Builder<'a, 'l> {
    /// `budget` is the number of instructions that the module may still have, `shared` the layout
    /// of its module-level shared variables.
    pub(super) fn new(
        limits: &'l Limits,
        budget: usize,
        globals: &'l Scope<'a>,
        shared: Layout,
    ) -> Self {
        Builder {
            limits,
            budget,
            globals,
            blocks: vec![Block::default()],
            code: Code::default(),
            registers: 0,
            shared,
            local: Layout::default(),
            params: Vec::new(),
            param_layout: Layout::default(),
            max_threads: None,
            temp_words: Vec::new(),
            temp_doubles: Vec::new(),
            temps_used: (0, 0),
            dynamic_shared: Vec::new(),
            line: 0,
            guard: Pred::Always,
        }
    }

    /// Reads an entry from after `.entry` to its closing brace.
    pub(super) fn entry(mut self, parser: &mut Parser<'a>) -> Result<Entry, LoadError> {
        let name = parser.word("an entry name")?.to_owned();
        if parser.accept(b'(')? && !parser.accept(b')')? {
            loop {
                self.param(parser)?;
                if !parser.accept(b',')? {
                    break;
                }
            }
            parser.expect(b')')?;
        }
        self.directives(parser)?;
        parser.expect(b'{')?;
        self.body(parser)?;
        self.line = parser.line();
        self.guard = Pred::Always;
        self.emit(Op::Exit)?;
        // 16 is the strictest alignment of a shared access (v4.b32).
        let shared = self.shared.bytes.next_multiple_of(16);
        for at in self.dynamic_shared {
            if let Some(value) = self.code.pool.get_mut(at) {
                *value = value.wrapping_add(shared);
            }
        }
        // CAST: layouts were checked against 32-bit limits.
        Ok(Entry {
            name,
            params: self.params,
            param_bytes: self.param_layout.bytes as u32,
            static_shared_bytes: shared as u32,
            local_bytes: self.local.bytes.next_multiple_of(16) as u32,
            registers: self.registers,
            max_threads: self.max_threads,
            instructions: self.code.insts.len(),
            shared_limit: self.limits.shared_bytes,
            code: self.code,
        })
    }

    fn param(&mut self, parser: &mut Parser<'a>) -> Result<(), LoadError> {
        if !parser.accept_word(".param")? {
            return Err(parser.error("`.param`"));
        }
        let variable = parser.variable()?;
        let size = variable
            .size
            .ok_or_else(|| LoadError::syntax(variable.line, "parameter without a size"))?;
        let limit = (u64::from(self.limits.param_bytes), "bytes of parameters");
        let place = (size, variable.align);
        let offset = self.param_layout.place(variable.line, place, limit)?;
        self.params.push(Param {
            name: variable.name.to_owned(),
            offset: offset as u32,
            size: size as u32,
            align: variable.align,
        });
        self.top()
            .names
            .declare_symbol(variable.line, variable.name, Space::Param, offset)
    }

    /// Performance directives (PTX ISA 11.4).
    fn directives(&mut self, parser: &mut Parser<'a>) -> Result<(), LoadError> {
        while let Token::Word(word) = parser.peek() {
            let line = parser.line();
            parser.advance()?;
            match word {
                ".maxntid" | ".reqntid" => {
                    let mut threads = parser.size(1 << 20)?;
                    while parser.accept(b',')? {
                        threads = threads.saturating_mul(parser.size(1 << 20)?);
                    }
                    self.max_threads = Some(u32::try_from(threads).unwrap_or(u32::MAX));
                }
                ".minnctapersm" | ".maxnreg" => {
                    parser.size(1 << 20)?;
                }
                ".noreturn" => {}
                ".pragma" => parser.skip_statement()?,
                other => {
                    return Err(LoadError::unsupported(line, format!("directive `{other}`")));
                }
            }
        }
        Ok(())
    }

    /// Statements up to the brace that closes the entry; nested blocks are a stack, not recursion.
    fn body(&mut self, parser: &mut Parser<'a>) -> Result<(), LoadError> {
        loop {
            let line = parser.line();
            self.line = line;
            match parser.peek() {
                Token::Punct(b'{') => {
                    parser.advance()?;
                    if self.blocks.len() == MAX_SCOPES {
                        let limit = MAX_SCOPES as u64;
                        let what = "nested blocks";
                        return Err(LoadError::Limit { line, what, limit });
                    }
                    self.blocks.push(Block::default());
                }
                Token::Punct(b'}') => {
                    parser.advance()?;
                    self.close_block()?;
                    if self.blocks.is_empty() {
                        return Ok(());
                    }
                }
                Token::Punct(b';') => {
                    parser.advance()?;
                }
                Token::Punct(b'@') => {
                    parser.advance()?;
                    let not = parser.accept(b'!')?;
                    let predicate = parser.word("a predicate")?;
                    let opcode = parser.word("an instruction")?;
                    let statement = parser.instruction(line, Some((predicate, not)), opcode)?;
                    self.statement(&statement)?;
                }
                Token::Word(word) if word.starts_with('.') => {
                    parser.advance()?;
                    self.declaration(parser, line, word)?;
                }
                Token::Word(word) => {
                    parser.advance()?;
                    if parser.accept(b':')? {
                        self.label(line, word)?;
                    } else {
                        let statement = parser.instruction(line, None, word)?;
                        self.statement(&statement)?;
                    }
                }
                _ => return Err(parser.error("a statement")),
            }
        }
    }

    fn declaration(
        &mut self,
        parser: &mut Parser<'a>,
        line: u32,
        word: &str,
    ) -> Result<(), LoadError> {
        match word {
            ".loc" | ".file" => return parser.skip_line(),
            ".pragma" => return parser.skip_statement(),
            ".reg" | ".shared" | ".local" => {}
            other => return Err(LoadError::unsupported(line, format!("directive `{other}`"))),
        }
        let mut variable = parser.variable()?;
        if word == ".reg" {
            loop {
                self.register(&variable)?;
                if !parser.accept(b',')? {
                    break;
                }
                variable.name = parser.word("a register")?;
                variable.count = None;
                if parser.accept(b'<')? {
                    variable.count = u32::try_from(parser.size(1 << 20)?).ok();
                    parser.expect(b'>')?;
                }
            }
        } else if word == ".shared" {
            let limit = u64::from(self.limits.shared_bytes);
            let mut layout = self.shared;
            self.top()
                .names
                .declare_shared(&variable, &mut layout, limit)?;
            self.shared = layout;
        } else {
            let size = variable
                .size
                .ok_or_else(|| LoadError::syntax(line, "array without a length"))?;
            let limit = (u64::from(self.limits.local_bytes), "bytes of local memory");
            let offset = self.local.place(line, (size, variable.align), limit)?;
            self.top()
                .names
                .declare_symbol(line, variable.name, Space::Local, offset)?;
        }
        parser.expect(b';')
    }

    fn register(&mut self, variable: &super::parse::Variable<'a>) -> Result<(), LoadError> {
        let line = variable.line;
        let count = variable.count.unwrap_or(1);
        self.registers = self.registers.saturating_add(count);
        if self.registers > self.limits.registers {
            return Err(LoadError::Limit {
                line,
                what: "registers",
                limit: u64::from(self.limits.registers),
            });
        }
        let bits = variable.ty.bits;
        let file = match (variable.ty.kind, bits) {
            (Kind::Pred, _) => &mut self.code.preds,
            (_, 16 | 32) => &mut self.code.words,
            (_, 64) => &mut self.code.doubles,
            _ => {
                let what = format!("a register of {bits} bits");
                return Err(LoadError::unsupported(line, what));
            }
        };
        let first = *file;
        // Cannot pass 65535: the limit is at most that, see `slots`.
        *file = u16::try_from(count)
            .ok()
            .and_then(|count| file.checked_add(count))
            .ok_or(LoadError::Limit {
                line,
                what: "registers",
                limit: u64::from(u16::MAX),
            })?;
        let register = Register {
            first,
            bits,
            count: variable.count,
        };
        self.top()
            .names
            .declare_register(line, variable.name, register)
    }

    /// The innermost block.
    fn top(&mut self) -> &mut Block<'a> {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }

    /// Resolves the block's branches; those to labels further out move there.
    fn close_block(&mut self) -> Result<(), LoadError> {
        let Some(block) = self.blocks.pop() else {
            return Ok(());
        };
        for (at, label, line) in block.fixups {
            if let Some(&target) = block.labels.get(label) {
                if let Some(inst) = self.code.insts.get_mut(at) {
                    inst.op = Op::Branch { target };
                }
            } else if let Some(outer) = self.blocks.last_mut() {
                outer.fixups.push((at, label, line));
            } else {
                let what = format!("label `{label}` does not exist");
                return Err(LoadError::operand(line, &what));
            }
        }
        Ok(())
    }

    fn label(&mut self, line: u32, name: &'a str) -> Result<(), LoadError> {
        // CAST: instructions are limited to far less.
        let here = self.code.insts.len() as u32;
        if self.top().labels.insert(name, here).is_some() {
            let what = format!("label `{name}` stands twice");
            return Err(LoadError::syntax(line, &what));
        }
        Ok(())
    }

    /// Lowers one instruction.
    fn statement(&mut self, statement: &Statement<'a>) -> Result<(), LoadError> {
        self.line = statement.line;
        self.guard = Pred::Always;
        self.temps_used = (0, 0);
        if let Some((name, not)) = statement.guard {
            let slot = self.predicate_register(name)?;
            self.guard = Pred::Reg { slot, not };
        }
        let start = self.code.insts.len();
        let (head, modifiers) = Modifiers::split(statement.opcode, statement.line);
        let operands = &statement.operands;
        match head {
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                self.memory(head, modifiers, operands)?;
            }
            "bra" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier" | "membar" | "fence"
            | "nanosleep" | "shfl" | "vote" | "activemask" => {
                self.control(head, modifiers, operands)?;
            }
            _ => self.alu(head, modifiers, operands)?,
        }
        if let Some((_, helpers)) = self.code.insts[start..].split_last_mut() {
            for inst in helpers {
                inst.weight = 0;
            }
        }
        Ok(())
    }

    fn emit(&mut self, op: Op) -> Result<(), LoadError> {
        if self.code.insts.len() >= self.budget {
            return Err(LoadError::Limit {
                line: self.line,
                what: "instructions",
                limit: self.limits.instructions as u64,
            });
        }
        self.code.insts.push(Inst {
            guard: self.guard,
            line: self.line,
            weight: 1,
            op,
        });
        Ok(())
    }

    /// Emits a kernel; `sources` are as many as it takes.
    fn emit_kernel(&mut self, kernel: Lanewise, d: Dst, sources: &[Src]) -> Result<(), LoadError> {
        let mut s = [Src::Pool(0); 4];
        if sources.len() != kernel.operands() {
            return Err(self.bad("the instruction takes another number of operands"));
        }
        for (slot, source) in s.iter_mut().zip(sources) {
            *slot = *source;
        }
        self.emit(match kernel {
            Lanewise::Words(kernel) => Op::Words { kernel, d, s },
            Lanewise::Doubles(kernel) => Op::Doubles { kernel, d, s },
        })
    }

    fn bad(&self, what: &str) -> LoadError {
        LoadError::operand(self.line, what)
    }
}
