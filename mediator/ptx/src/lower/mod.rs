//! Statements to code: names to slots, labels to targets, opcodes to kernels.

mod alu;
mod body;
mod call;
mod carry;
mod collective;
mod compare;
mod control;
mod convert;
mod float;
mod matrix;
mod memory;
mod operand;
mod scope;
mod transfer;
mod video;

pub(super) use scope::{Meaning, Scope, Variables};

use super::code::{Code, Dst, Inst, Op, Pred, Src};
use super::entry::{Entry, Layout, Limits, Param};
use super::error::LoadError;
use super::function::{Functions, Signature};
use super::kernels::Lanewise;
use super::lexer::Token;
use super::parse::{Parser, Statement};
use super::types::{Modifiers, Space};
use call::Calls;
use std::collections::HashMap;

/// Nested `{ }` blocks of a body.
const MAX_SCOPES: usize = 32;

/// A branch with a label that is not resolved yet: instruction, label, line.
type Fixup<'a> = (usize, &'a str, u32);

/// What a label before a directive names (PTX ISA 11.3).
#[derive(Debug)]
enum Targets<'a> {
    Labels(Vec<&'a str>),
    Prototype(Signature<'a>),
}

/// Names and labels of one `{ }`.
#[derive(Debug, Default)]
struct Block<'a> {
    names: Scope<'a>,
    labels: HashMap<&'a str, u32>,
    targets: HashMap<&'a str, Targets<'a>>,
    fixups: Vec<Fixup<'a>>,
    /// Bytes of the frame before the block.
    frame: u64,
    /// Whether a variable of the block may be in use after it.
    keeps: bool,
}

/// Builds one entry.
#[derive(Debug)]
pub(super) struct Builder<'a, 'l> {
    limits: &'l Limits,
    budget: usize,
    /// Bytes of functions that may still be read.
    text_bytes: &'l mut usize,
    globals: &'l Scope<'a>,
    functions: &'l Functions<'a>,
    blocks: Vec<Block<'a>>,
    code: Code,
    registers: u32,
    shared: Layout,
    /// The frame of the body that is being read, and the most that it took.
    local: Layout,
    local_most: u64,
    calls: Calls<'a>,
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
    /// `budget` is the number of instructions that the module may still have, and of bytes of
    /// functions; `shared` the layout of its module-level shared variables.
    pub(super) fn new(
        limits: &'l Limits,
        (budget, text_bytes): (usize, &'l mut usize),
        globals: &'l Scope<'a>,
        functions: &'l Functions<'a>,
        shared: Layout,
    ) -> Self {
        Builder {
            limits,
            budget,
            text_bytes,
            globals,
            functions,
            blocks: vec![Block::default()],
            code: Code::default(),
            registers: 0,
            shared,
            local: Layout::default(),
            local_most: 0,
            calls: Calls::default(),
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
        let local_bytes = self.link()?;
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
            local_bytes,
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
        let place = Variables::At(Space::Param, offset);
        self.top()
            .names
            .declare(variable.line, variable.name, place)
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
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    parser.size(1 << 20)?;
                }
                // A cluster has one block: larger ones are refused by the launch's own check.
                ".reqnctapercluster" => {
                    let mut blocks = parser.size(1 << 20)?;
                    while parser.accept(b',')? {
                        blocks = blocks.saturating_mul(parser.size(1 << 20)?);
                    }
                    if blocks != 1 {
                        let what = "a cluster of more than one block".to_owned();
                        return Err(LoadError::unsupported(line, what));
                    }
                }
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" => {}
                ".pragma" => parser.skip_statement()?,
                other => {
                    return Err(LoadError::unsupported(line, format!("directive `{other}`")));
                }
            }
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
        let (head, modifiers) = Modifiers::split(&statement.opcode, statement.line);
        let operands = &statement.operands;
        match head {
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                self.memory(head, modifiers, operands)?;
            }
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier"
            | "membar" | "fence" | "nanosleep" | "shfl" | "vote" | "activemask" => {
                self.control(head, modifiers, operands)?;
            }
            "match" | "redux" | "elect" => self.collective(head, modifiers, operands)?,
            "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => {
                self.matrix(head, modifiers, operands)?;
            }
            "cp" => self.copy_async(modifiers, operands)?,
            "mbarrier" => self.memory_barrier(modifiers, operands)?,
            "griddepcontrol" | "setmaxnreg" | "pmevent" | "applypriority" | "discard"
            | "createpolicy" | "mapa" | "getctarank" | "alloca" | "stacksave" | "stackrestore" => {
                self.machine(head, modifiers, operands)?;
            }
            "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" | "wgmma"
            | "tcgen05" => return Err(modifiers.unsupported()),
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
