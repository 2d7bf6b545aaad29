//! An instruction as it is written: its name, its modifiers, its operands.

use super::super::error::LoadError;
use super::super::ops::exact::Mode;
use super::super::parse::{Operand, Statement};
use super::super::types::Type;

/// An instruction that is being lowered. The code that understands a modifier takes it;
/// [`Instruction::end`] refuses the rest, so no unknown modifier is ignored.
#[derive(Debug)]
pub(super) struct Instruction<'o, 'a> {
    /// `ld` of `ld.global.u32`.
    pub(super) head: &'o str,
    pub(super) operands: &'o [Operand<'a>],
    opcode: &'o str,
    line: u32,
    /// The dotted parts of the opcode that are not taken yet.
    modifiers: Vec<&'o str>,
}

impl<'o, 'a> Instruction<'o, 'a> {
    pub(super) fn new(statement: &'o Statement<'a>) -> Self {
        let mut parts = statement.opcode.split('.');
        Instruction {
            head: parts.next().unwrap_or_default(),
            operands: &statement.operands,
            opcode: &statement.opcode,
            line: statement.line,
            // Twelve is more than any opcode has; `end` refuses the rest.
            modifiers: parts.take(12).collect(),
        }
    }

    /// True, and taken, if `name` is among the modifiers.
    pub(super) fn take(&mut self, name: &str) -> bool {
        match self.modifiers.iter().position(|m| *m == name) {
            Some(at) => {
                self.modifiers.remove(at);
                true
            }
            None => false,
        }
    }

    /// Takes the first modifier for which `f` gives a value.
    pub(super) fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self
            .modifiers
            .iter()
            .enumerate()
            .find_map(|(at, m)| f(m).map(|v| (at, v)))?;
        self.modifiers.remove(at);
        Some(value)
    }

    /// Takes the hints of an access to a cache, with the policy, which is the last operand.
    pub(super) fn take_cache_hint(&mut self) {
        if self.take("L2::cache_hint")
            && let [rest @ .., _] = self.operands
        {
            self.operands = rest;
        }
        self.take_hints();
    }

    /// Takes all modifiers that are hints to a cache or a memory model. This machine has neither:
    /// it is sequentially consistent.
    pub(super) fn take_hints(&mut self) {
        const HINTS: [&str; 20] = [
            "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "sc", "cta", "cluster",
            "gpu", "gl", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc",
        ];
        let hint = |m: &str| {
            let level = m.starts_with("L1::") || m.starts_with("L2::");
            // A cache hint takes an operand more.
            HINTS.contains(&m) || (level && m != "L2::cache_hint")
        };
        self.modifiers.retain(|m| !hint(m));
    }

    /// The type, taken from the end of the opcode.
    ///
    /// # Errors
    /// The opcode does not end in a known type.
    pub(super) fn ty(&mut self) -> Result<Type, LoadError> {
        match self.modifiers.last().copied().and_then(Type::parse) {
            Some(ty) => {
                self.modifiers.pop();
                Ok(ty)
            }
            None => Err(self.unsupported()),
        }
    }

    /// Whether the opcode as written has this modifier, taken or not.
    pub(super) fn written(&self, name: &str) -> bool {
        self.opcode.split('.').any(|m| m == name)
    }

    /// The rounding of a result (`rn`, `rz`, `rm`, `rp`, `rna`), taken.
    pub(super) fn take_rounding(&mut self) -> Option<Mode> {
        self.take_map(|m| {
            Some(match m {
                "rn" => Mode::Nearest,
                "rz" => Mode::Zero,
                "rm" => Mode::Down,
                "rp" => Mode::Up,
                "rna" => Mode::Away,
                _ => return None,
            })
        })
    }

    /// Refuses what is left.
    pub(super) fn end(&self) -> Result<(), LoadError> {
        if self.modifiers.is_empty() {
            Ok(())
        } else {
            Err(self.unsupported())
        }
    }

    pub(super) fn unsupported(&self) -> LoadError {
        LoadError::unsupported(self.line, format!("instruction `{}`", self.opcode))
    }
}
