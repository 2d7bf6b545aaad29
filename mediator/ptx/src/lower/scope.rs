//! Names of a block: registers and variables.

use super::super::entry::Layout;
use super::super::error::LoadError;
use super::super::parse::Variable;
use super::super::types::Space;
use std::collections::HashMap;

/// A register, or with a count a family `%r<count>` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Register {
    /// Slot in the file of its width; a family takes consecutive ones.
    pub(super) first: u16,
    /// 1 for a predicate.
    pub(super) bits: u8,
    pub(super) count: Option<u32>,
}

/// A variable: an address in a state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Variables {
    At(Space, u64),
    /// In the thread's local memory, from the start of the frame: a `.local` variable, or with
    /// `param` a parameter of a call. The frame of an entry begins at 0.
    Frame {
        offset: u32,
        size: u32,
        param: bool,
    },
    /// The address of a function, by its index.
    Function(u32),
    /// `extern .shared x[]`: begins where the entry's static shared memory ends.
    DynamicShared,
}

/// What a name means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Meaning {
    Register { slot: u16, bits: u8 },
    Variable(Variables),
}

/// Names declared in one block or in the module.
#[derive(Debug, Default)]
pub(in super::super) struct Scope<'a> {
    registers: HashMap<&'a str, Register>,
    variables: HashMap<&'a str, Variables>,
}

impl<'a> Scope<'a> {
    pub(in super::super) fn find(&self, name: &str) -> Option<Meaning> {
        if let Some(register) = self.registers.get(name).filter(|r| r.count.is_none()) {
            return Some(Meaning::Register {
                slot: register.first,
                bits: register.bits,
            });
        }
        if let Some(variable) = self.variables.get(name) {
            return Some(Meaning::Variable(*variable));
        }
        let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
        // A family may itself end in a digit (`%r1<4>` declares `%r10` to `%r13`), so every split
        // is tried; a count has at most seven digits.
        let from = digits.max(name.len().saturating_sub(7));
        (from..name.len()).find_map(|at| {
            let (family, index) = name.split_at_checked(at)?;
            if index.len() > 1 && index.starts_with('0') {
                return None;
            }
            let register = self.registers.get(family)?;
            let index: u32 = index.parse().ok()?;
            let index = (index < register.count?).then_some(index)?;
            // The whole family has slots, so the sum fits.
            let slot = register.first.checked_add(u16::try_from(index).ok()?)?;
            Some(Meaning::Register {
                slot,
                bits: register.bits,
            })
        })
    }

    pub(super) fn declare_register(
        &mut self,
        line: u32,
        name: &'a str,
        register: Register,
    ) -> Result<(), LoadError> {
        if self.registers.insert(name, register).is_some() || self.variables.contains_key(name) {
            return Err(twice(line, name));
        }
        Ok(())
    }

    pub(in super::super) fn declare(
        &mut self,
        line: u32,
        name: &'a str,
        variable: Variables,
    ) -> Result<(), LoadError> {
        if self.variables.insert(name, variable).is_some() || self.registers.contains_key(name) {
            return Err(twice(line, name));
        }
        Ok(())
    }

    /// A shared variable, with a size or without (PTX ISA 5.1.7).
    pub(in super::super) fn declare_shared(
        &mut self,
        variable: &Variable<'a>,
        layout: &mut Layout,
        limit: u64,
    ) -> Result<(), LoadError> {
        let Variable { line, name, .. } = *variable;
        let Some(size) = variable.size else {
            return self.declare(line, name, Variables::DynamicShared);
        };
        let place = (size, variable.align);
        let offset = layout.place(line, place, (limit, "bytes of shared memory"))?;
        self.declare(line, name, Variables::At(Space::Shared, offset))
    }
}

fn twice(line: u32, name: &str) -> LoadError {
    LoadError::syntax(line, &format!("`{name}` is declared twice"))
}
