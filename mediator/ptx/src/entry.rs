//! A kernel as a module has it, and what a text may ask for.

use super::code::Code;
use super::error::LoadError;

/// What a text may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the text.
    pub text_bytes: usize,
    /// Entries of the module.
    pub entries: usize,
    /// Functions of the module, declarations included.
    pub functions: usize,
    /// Bytes of text that are read to give each entry its functions; counted once per entry and
    /// function.
    pub function_text_bytes: usize,
    /// Instructions of the module (those that helpers add are counted).
    pub instructions: usize,
    /// Registers of an entry, predicates included.
    pub registers: u32,
    /// Bytes of static shared memory of an entry; at launch, of static and dynamic together.
    pub shared_bytes: u32,
    /// Bytes of local memory of a thread, with the frames of the functions that it calls.
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
            functions: 4096,
            function_text_bytes: 32 << 20,
            instructions: 1 << 20,
            registers: 4096,
            shared_bytes: 96 << 10,
            local_bytes: 64 << 10,
            global_bytes: 16 << 20,
            param_bytes: 4352,
        }
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
