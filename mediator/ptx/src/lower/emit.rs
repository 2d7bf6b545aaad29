//! The code of an entry as it grows: instructions, immediates, helper registers.

use super::super::code::{Code, CompareArgs, Dst, Inst, Logic, Op, Pred, Special, Src};
use super::super::error::LoadError;
use super::super::kernels::{Comparison, Lanewise, convert_float, integer};
use super::super::types::Type;

/// Helper registers of one width, taken anew by each statement.
#[derive(Debug, Default)]
struct Helpers {
    slots: Vec<u16>,
    used: usize,
}

impl Helpers {
    /// The next one; `file` is the number of registers of the width.
    fn take(&mut self, file: &mut u16) -> Option<u16> {
        if self.used == self.slots.len() {
            self.slots.push(fresh(file)?);
        }
        self.used += 1;
        self.slots.get(self.used - 1).copied()
    }
}

/// A register more in a file.
fn fresh(file: &mut u16) -> Option<u16> {
    let slot = *file;
    *file = slot.checked_add(1)?;
    Some(slot)
}

/// Emits the instructions of one entry.
#[derive(Debug)]
pub(super) struct Emitter {
    pub(super) code: Code,
    /// Instructions that the module may still have, and may have in all.
    budget: usize,
    limit: usize,
    words: Helpers,
    doubles: Helpers,
    /// Of the statement that is being lowered.
    pub(super) line: u32,
    pub(super) guard: Pred,
}

impl Emitter {
    pub(super) fn new(budget: usize, limit: usize) -> Self {
        Emitter {
            code: Code::default(),
            budget,
            limit,
            words: Helpers::default(),
            doubles: Helpers::default(),
            line: 0,
            guard: Pred::Always,
        }
    }

    /// Begins a statement.
    pub(super) fn begin(&mut self, line: u32) {
        self.line = line;
        self.guard = Pred::Always;
        self.words.used = 0;
        self.doubles.used = 0;
    }

    /// Begins a body: no helper register of the one before is used again.
    pub(super) fn begin_body(&mut self, line: u32) {
        self.words = Helpers::default();
        self.doubles = Helpers::default();
        self.begin(line);
    }

    pub(super) fn bad(&self, what: &str) -> LoadError {
        LoadError::operand(self.line, what)
    }

    pub(super) fn no_type(&self, name: &str, ty: Type) -> LoadError {
        let what = format!("`{name}` of {}-bit {:?}", ty.bits, ty.kind);
        LoadError::unsupported(self.line, what)
    }

    /// The number of the next instruction.
    pub(super) fn here(&self) -> usize {
        self.code.insts.len()
    }

    pub(super) fn emit(&mut self, op: Op) -> Result<(), LoadError> {
        if self.here() >= self.budget {
            return Err(LoadError::Limit {
                line: self.line,
                what: "instructions",
                limit: self.limit as u64,
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
    pub(super) fn kernel(
        &mut self,
        kernel: Lanewise,
        d: Dst,
        sources: &[Src],
    ) -> Result<(), LoadError> {
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

    /// Emits a kernel into a helper register of its width.
    pub(super) fn helper(&mut self, kernel: Lanewise, sources: &[Src]) -> Result<Src, LoadError> {
        let (d, s) = self.temp(matches!(kernel, Lanewise::Doubles(_)))?;
        self.kernel(kernel, d, sources)?;
        Ok(s)
    }

    /// A sum of 64 bits, in a helper register.
    pub(super) fn sum(&mut self, a: Src, b: Src) -> Result<Src, LoadError> {
        let add = self.integer("add", Type::U64)?;
        self.helper(add, &[a, b])
    }

    /// One step of a conversion, into a helper register.
    pub(super) fn step(
        &mut self,
        step: &str,
        to: Type,
        from: Type,
        a: Src,
    ) -> Result<Src, LoadError> {
        let kernel = convert_float(step, to, from).ok_or_else(|| self.no_type(step, from))?;
        self.helper(kernel, &[a])
    }

    /// Emits a comparison into predicates.
    pub(super) fn compare(
        &mut self,
        comparison: Comparison,
        (a, b): (Src, Src),
        (p, q): (Option<u16>, Option<u16>),
        (logic, c): (Logic, Pred),
    ) -> Result<(), LoadError> {
        self.emit(match comparison {
            Comparison::Words(compare) => Op::CompareWords(Box::new(CompareArgs {
                compare,
                a,
                b,
                p,
                q,
                logic,
                c,
            })),
            Comparison::Doubles(compare) => Op::CompareDoubles(Box::new(CompareArgs {
                compare,
                a,
                b,
                p,
                q,
                logic,
                c,
            })),
        })
    }

    /// Emits a comparison into one predicate.
    pub(super) fn test(
        &mut self,
        comparison: Comparison,
        sides: (Src, Src),
        p: Option<u16>,
    ) -> Result<(), LoadError> {
        let logic = (Logic::Move, Pred::Always);
        self.compare(comparison, sides, (p, None), logic)
    }

    pub(super) fn integer(&self, name: &str, ty: Type) -> Result<Lanewise, LoadError> {
        integer(name, ty).ok_or_else(|| self.no_type(name, ty))
    }

    /// A fresh immediate.
    pub(super) fn pool(&mut self, value: u64) -> Src {
        self.code.pool.push(value);
        // CAST: three per instruction at most, and those are limited.
        Src::Pool((self.code.pool.len() - 1) as u32)
    }

    /// A helper register of 32 bits; valid within the statement.
    pub(super) fn temp_word(&mut self) -> Result<u16, LoadError> {
        let slot = self.words.take(&mut self.code.words);
        slot.ok_or_else(|| self.bad("too many registers"))
    }

    /// A helper register of 64 bits.
    pub(super) fn temp_double(&mut self) -> Result<u16, LoadError> {
        let slot = self.doubles.take(&mut self.code.doubles);
        slot.ok_or_else(|| self.bad("too many registers"))
    }

    /// A helper register of either width, as it is written and as it is read.
    fn temp(&mut self, double: bool) -> Result<(Dst, Src), LoadError> {
        if double {
            let slot = self.temp_double()?;
            return Ok((Dst::Double(slot), Src::Double(slot)));
        }
        let slot = self.temp_word()?;
        Ok((Dst::Word(slot), Src::Word(slot)))
    }

    /// A fresh predicate.
    pub(super) fn temp_predicate(&mut self) -> Result<u16, LoadError> {
        fresh(&mut self.code.preds).ok_or_else(|| self.bad("too many registers"))
    }

    /// A special register read into a helper.
    pub(super) fn read_special(&mut self, which: Special, bits: u8) -> Result<Src, LoadError> {
        let (d, s) = self.temp(bits == 64)?;
        self.emit(Op::Special { d, which })?;
        Ok(s)
    }
}
