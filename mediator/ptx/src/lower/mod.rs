//! Statements to code: names to slots, labels to targets, opcodes to kernels.

mod alu;
mod body;
mod call;
mod calls;
mod carry;
mod collective;
mod compare;
mod control;
mod convert;
mod emit;
mod float;
mod header;
mod instruction;
mod matrix;
mod memory;
mod operand;
mod scope;
mod transfer;
mod video;

pub(super) use scope::{Meaning, Scope, Variables};

use super::code::{Op, Pred};
use super::entry::{Entry, Layout, Limits};
use super::error::LoadError;
use super::function::{Functions, Signature};
use super::parse::{Parser, Statement};
use calls::Calls;
use emit::Emitter;
use header::Header;
use instruction::Instruction;
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
// FIELDS: what any statement may use or extend: the module, blocks, layouts, code.
pub(super) struct Builder<'a, 'l> {
    limits: &'l Limits,
    /// Bytes of functions that may still be read.
    text_bytes: &'l mut usize,
    globals: &'l Scope<'a>,
    functions: &'l Functions<'a>,
    blocks: Vec<Block<'a>>,
    out: Emitter,
    registers: u32,
    shared: Layout,
    /// The frame of the body that is being read, and the most that it took.
    local: Layout,
    local_most: u64,
    calls: Calls<'a>,
    /// Pool entries to which the size of static shared memory is added at the end.
    dynamic_shared: Vec<usize>,
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
            text_bytes,
            globals,
            functions,
            blocks: vec![Block::default()],
            out: Emitter::new(budget, limits.instructions),
            registers: 0,
            shared,
            local: Layout::default(),
            local_most: 0,
            calls: Calls::default(),
            dynamic_shared: Vec::new(),
        }
    }

    /// Reads an entry from after `.entry` to its closing brace.
    pub(super) fn entry(mut self, parser: &mut Parser<'a>) -> Result<Entry, LoadError> {
        let header = Header::read(parser, self.limits, &mut self.top().names)?;
        parser.expect(b'{')?;
        body::read(&mut self, parser)?;
        self.out.begin(parser.line());
        self.out.emit(Op::Exit)?;
        let local_bytes = call::link(&mut self)?;
        let mut code = self.out.code;
        // 16 is the strictest alignment of a shared access (v4.b32).
        let shared = self.shared.bytes.next_multiple_of(16);
        for at in self.dynamic_shared {
            if let Some(value) = code.pool.get_mut(at) {
                *value = value.wrapping_add(shared);
            }
        }
        // CAST: layouts were checked against 32-bit limits.
        Ok(Entry {
            name: header.name,
            params: header.params,
            param_bytes: header.param_layout.bytes as u32,
            static_shared_bytes: shared as u32,
            local_bytes,
            registers: self.registers,
            max_threads: header.max_threads,
            instructions: code.insts.len(),
            shared_limit: self.limits.shared_bytes,
            code,
        })
    }

    /// Lowers one instruction.
    fn statement(&mut self, statement: &Statement<'a>) -> Result<(), LoadError> {
        self.out.begin(statement.line);
        if let Some((name, not)) = statement.guard {
            let slot = self.predicate_register(name)?;
            self.out.guard = Pred::Reg { slot, not };
        }
        let start = self.out.here();
        let ptx = Instruction::new(statement);
        match ptx.head {
            "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                memory::lower(self, ptx)?;
            }
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "bar" | "barrier"
            | "membar" | "fence" | "nanosleep" | "shfl" | "vote" | "activemask" => {
                control::lower(self, ptx)?;
            }
            "match" | "redux" | "elect" => collective::lower(self, ptx)?,
            "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix" => {
                matrix::lower(self, ptx)?;
            }
            "cp" => transfer::copy_async(self, ptx)?,
            "mbarrier" => transfer::memory_barrier(self, ptx)?,
            "griddepcontrol" | "setmaxnreg" | "pmevent" | "applypriority" | "discard"
            | "createpolicy" | "mapa" | "getctarank" | "alloca" | "stacksave" | "stackrestore" => {
                transfer::machine(self, ptx)?;
            }
            "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq" | "istypep" | "wgmma"
            | "tcgen05" => return Err(ptx.unsupported()),
            _ => alu::lower(self, ptx)?,
        }
        if let Some((_, helpers)) = self.out.code.insts[start..].split_last_mut() {
            for inst in helpers {
                inst.weight = 0;
            }
        }
        Ok(())
    }

    /// The innermost block.
    fn top(&mut self) -> &mut Block<'a> {
        if self.blocks.is_empty() {
            self.blocks.push(Block::default());
        }
        let last = self.blocks.len() - 1;
        &mut self.blocks[last]
    }

    fn bad(&self, what: &str) -> LoadError {
        self.out.bad(what)
    }
}
