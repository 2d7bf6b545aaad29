//! Arithmetic, logic, comparison, moves and conversions.

use super::super::code::{Logic, Op, Pred};
use super::super::error::LoadError;
use super::super::kernels::{
    Lanewise, compare_float, compare_integer, integer, is_space, test_property,
};
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::Builder;

impl<'a> Builder<'a, '_> {
    pub(super) fn integer_kernel(&self, name: &str, ty: Type) -> Result<Lanewise, LoadError> {
        integer(name, ty).ok_or_else(|| self.no_type(name, ty))
    }

    pub(super) fn no_type(&self, name: &str, ty: Type) -> LoadError {
        let what = format!("`{name}` of {}-bit {:?}", ty.bits, ty.kind);
        LoadError::unsupported(self.line, what)
    }

    pub(super) fn alu(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        match head {
            "mov" => self.mov(modifiers, operands),
            "setp" | "set" => self.compare(head, modifiers, operands),
            "selp" => self.select(modifiers, operands),
            "cvt" => self.convert(modifiers, operands),
            "cvta" => self.convert_address(modifiers, operands),
            "isspacep" => {
                let space = modifiers.take_map(Space::parse);
                modifiers.end()?;
                let comparison = space
                    .and_then(is_space)
                    .ok_or_else(|| modifiers.unsupported())?;
                self.property(comparison, Type::U64, operands)
            }
            "testp" => {
                let ty = modifiers.ty()?;
                let comparison = modifiers
                    .take_map(|m| test_property(m, ty))
                    .ok_or_else(|| modifiers.unsupported())?;
                modifiers.end()?;
                self.property(comparison, ty, operands)
            }
            "and" | "or" | "xor" | "not" => {
                let ty = modifiers.ty()?;
                modifiers.end()?;
                if ty.kind == Kind::Pred {
                    return self.logic(head, operands);
                }
                let kernel = self.integer_kernel(head, Type::new(Kind::Bits, ty.bits))?;
                self.uniform(kernel, ty, operands)
            }
            _ => self.arithmetic(head, modifiers, operands),
        }
    }

    /// All operands of one type.
    pub(super) fn uniform(
        &mut self,
        kernel: Lanewise,
        ty: Type,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let types = [ty; 4];
        self.typed(kernel, ty, types, operands)
    }

    /// Destination first, then sources of the given types.
    pub(super) fn typed(
        &mut self,
        kernel: Lanewise,
        to: Type,
        types: [Type; 4],
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let Some((d, sources)) = operands.split_first() else {
            return Err(self.bad("the instruction takes operands"));
        };
        let d = self.destination(d, to, false)?;
        let mut list = Vec::with_capacity(4);
        for (operand, ty) in sources.iter().zip(types) {
            list.push(self.source(operand, ty, false)?);
        }
        if sources.len() > list.len() {
            return Err(self.bad("the instruction takes fewer operands"));
        }
        self.emit_kernel(kernel, d, &list)
    }

    /// Instructions with an opcode of a name, modes and a type.
    fn arithmetic(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        match head {
            "dp4a" | "dp2a" => return self.dot(head, modifiers, operands),
            "slct" => return self.select_by_sign(modifiers, operands),
            "lop3" => return self.lookup(modifiers, operands),
            _ if head.len() > 3 && head.starts_with('v') => {
                return self.video(head, modifiers, operands);
            }
            _ => {}
        }
        if modifiers.take("cc") || matches!(head, "addc" | "subc" | "madc") {
            return self.carry(head, modifiers, operands);
        }
        // The mode of `prmt` stands behind its type.
        let permutation = modifiers.take_map(|m| {
            [".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"]
                .into_iter()
                .find(|mode| head == "prmt" && mode[1..] == *m)
        });
        let ty = modifiers.ty()?;
        if ty.float() || ty.float_pair() {
            return self.float(head, ty, modifiers, operands);
        }
        let mode = match head {
            "mul" | "mad" | "mul24" | "mad24" => modifiers.take_map(|m| match m {
                "lo" => Some(".lo"),
                "hi" => Some(".hi"),
                "wide" => Some(".wide"),
                _ => None,
            }),
            "shf" => {
                let (l, r) = (modifiers.take("l"), modifiers.take("r"));
                let (wrap, clamp) = (modifiers.take("wrap"), modifiers.take("clamp"));
                match (l, r, wrap, clamp) {
                    (true, false, true, false) => Some(".l.wrap"),
                    (true, false, false, true) => Some(".l.clamp"),
                    (false, true, true, false) => Some(".r.wrap"),
                    (false, true, false, true) => Some(".r.clamp"),
                    _ => return Err(modifiers.unsupported()),
                }
            }
            "add" | "sub" if modifiers.take("sat") => Some(".sat"),
            "min" | "max" if modifiers.take("relu") => Some(".relu"),
            "bfind" if modifiers.take("shiftamt") => Some(".shiftamt"),
            "szext" | "bmsk" => modifiers.take_map(|m| match m {
                "wrap" => Some(".wrap"),
                "clamp" => Some(".clamp"),
                _ => None,
            }),
            _ => permutation,
        };
        let sat = matches!(head, "mad" | "mad24") && mode == Some(".hi") && modifiers.take("sat");
        modifiers.end()?;
        let name = format!(
            "{head}{}{}",
            mode.unwrap_or(""),
            if sat { ".sat" } else { "" }
        );
        // Logic and bit counts are kernels of b-types. Some compilers write the shift's type as u
        // or s, which matters for `shr` only.
        let ty = match head {
            "shl" | "popc" | "clz" | "brev" | "cnot" => Type::new(Kind::Bits, ty.bits),
            _ => ty,
        };
        let kernel = self.integer_kernel(&name, ty)?;
        let word = Type::U32;
        let wide = Type::new(ty.kind, ty.bits.saturating_mul(2).min(64));
        let (to, types) = match head {
            "popc" | "clz" | "bfind" => (word, [ty; 4]),
            "fns" => (word, [Type::B32; 4]),
            "shl" | "shr" => (ty, [ty, word, word, word]),
            "bfe" => (ty, [ty, word, word, word]),
            "bfi" => (ty, [ty, ty, word, word]),
            "mul" if mode == Some(".wide") => (wide, [ty; 4]),
            "mad" if mode == Some(".wide") => (wide, [ty, ty, wide, wide]),
            _ => (ty, [ty; 4]),
        };
        self.typed(kernel, to, types, operands)
    }

    /// `dp4a.atype.btype`, `dp2a.mode.atype.btype`.
    fn dot(
        &mut self,
        head: &str,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let b = modifiers.ty()?;
        let a = modifiers.ty()?;
        let sign = if a.signed() { "s32" } else { "u32" };
        let mode = modifiers.take_map(|m| ["lo", "hi"].into_iter().find(|mode| *mode == m));
        modifiers.end()?;
        let name = match mode {
            Some(mode) => format!("{head}.{mode}.{sign}"),
            None => format!("{head}.{sign}"),
        };
        let kernel = self.integer_kernel(&name, b)?;
        self.uniform(kernel, Type::U32, operands)
    }

    /// `mov`, also of addresses, special registers, and to and from vectors of narrower registers
    /// (PTX ISA, `mov`).
    fn mov(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        modifiers.end()?;
        let [d, a] = operands else {
            return Err(self.bad("`mov` takes two operands"));
        };
        if ty.kind == Kind::Pred {
            return self.logic("mov", operands);
        }
        let bits = Type::new(Kind::Bits, ty.bits);
        match (d, a) {
            (Operand::Vector(parts), _) => self.unpack(bits, parts, a),
            (_, Operand::Vector(parts)) => self.pack(bits, d, parts),
            _ => {
                let kernel = self.integer_kernel("mov", bits)?;
                self.uniform(kernel, ty, operands)
            }
        }
    }

    fn part(&self, ty: Type, parts: usize) -> Result<Type, LoadError> {
        match (ty.bits, parts) {
            (32, 2) | (64, 4) => Ok(Type::new(Kind::Bits, 16)),
            (64, 2) => Ok(Type::B32),
            _ => Err(self.bad("vector does not fit the type")),
        }
    }

    fn pack(&mut self, ty: Type, d: &Operand<'a>, parts: &[Operand<'a>]) -> Result<(), LoadError> {
        let part = self.part(ty, parts.len())?;
        let d = self.destination(d, ty, false)?;
        let mut sources = Vec::with_capacity(4);
        for operand in parts {
            sources.push(match operand {
                // A part that is left open.
                Operand::Name("_") => self.pool(0),
                operand => self.source(operand, part, false)?,
            });
        }
        let name = if part.bits == 16 { "join16" } else { "join32" };
        let kernel = self.integer_kernel(name, ty)?;
        self.emit_kernel(kernel, d, &sources)
    }

    fn unpack(
        &mut self,
        ty: Type,
        parts: &[Operand<'a>],
        a: &Operand<'a>,
    ) -> Result<(), LoadError> {
        let part = self.part(ty, parts.len())?;
        let a = self.source(a, ty, false)?;
        for (i, operand) in parts.iter().enumerate() {
            let name = match i * usize::from(part.bits) {
                0 => "mov",
                16 => "high16",
                32 => "high32",
                _ => "high48",
            };
            let d = self.destination(operand, part, false)?;
            let kernel = self.integer_kernel(name, ty)?;
            self.emit_kernel(kernel, d, &[a])?;
        }
        Ok(())
    }

    /// Predicates: `and.pred` and its like.
    fn logic(&mut self, head: &str, operands: &[Operand<'a>]) -> Result<(), LoadError> {
        let (d, a, b) = match operands {
            [d, a] if matches!(head, "mov" | "not") => (d, a, None),
            [d, a, b] if !matches!(head, "mov" | "not") => (d, a, Some(b)),
            _ => return Err(self.bad("the instruction takes another number of operands")),
        };
        let Operand::Name(name) = d else {
            return Err(self.bad("expected a predicate"));
        };
        let d = self.predicate_register(name)?;
        let mut a = self.predicate(a)?;
        if head == "not" {
            a = match a {
                Pred::Reg { slot, not } => Pred::Reg { slot, not: !not },
                Pred::Always => Pred::Never,
                Pred::Never => Pred::Always,
            };
        }
        let b = b.map_or(Ok(Pred::Always), |b| self.predicate(b))?;
        let op = Logic::parse(head).unwrap_or(Logic::Move);
        self.emit(Op::Logic { op, d, a, b })
    }

    fn select(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        modifiers.end()?;
        let [d, a, b, p] = operands else {
            return Err(self.bad("`selp` takes four operands"));
        };
        if ty.bits < 16 {
            return Err(modifiers.unsupported());
        }
        let d = self.destination(d, ty, false)?;
        let a = self.source(a, ty, false)?;
        let b = self.source(b, ty, false)?;
        let p = self.predicate(p)?;
        self.emit(Op::Select { d, a, b, p })
    }

    /// `slct.type.ctype d, a, b, c`: `c >= 0 ? a : b`.
    fn select_by_sign(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let by = modifiers.ty()?;
        let ty = modifiers.ty()?;
        let ftz = modifiers.take("ftz");
        modifiers.end()?;
        let [d, a, b, c] = operands else {
            return Err(self.bad("`slct` takes four operands"));
        };
        let comparison = if by.float() {
            compare_float("ge", by)
        } else {
            compare_integer("ge", by)
        };
        let comparison = comparison.ok_or_else(|| modifiers.unsupported())?;
        let d = self.destination(d, ty, false)?;
        let a = self.source(a, ty, false)?;
        let b = self.source(b, ty, false)?;
        let mut c = self.source(c, by, false)?;
        if ftz {
            c = self.step("flush", by, by, c)?;
        }
        let zero = self.pool(0);
        let slot = self.temp_predicate()?;
        let logic = (Logic::Move, Pred::Always);
        self.emit_compare(comparison, (c, zero), (Some(slot), None), logic)?;
        let p = Pred::Reg { slot, not: false };
        self.emit(Op::Select { d, a, b, p })
    }

    /// `lop3.b32`, and `lop3.or.b32 d|p, a, b, c, table, q`, which also compares with zero.
    fn lookup(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        let ty = modifiers.ty()?;
        let logic = modifiers.take_map(Logic::parse);
        modifiers.end()?;
        let kernel = self.integer_kernel("lop3", ty)?;
        let Some(logic) = logic else {
            return self.uniform(kernel, ty, operands);
        };
        let [d, sources @ .., q] = operands else {
            return Err(self.bad("`lop3` takes more operands"));
        };
        let (d, p) = self.pair(d)?;
        let p = p.map_or(Ok(None), |p| self.predicate_destination(p))?;
        let mut list = Vec::with_capacity(4);
        for operand in sources {
            list.push(self.source(operand, ty, false)?);
        }
        let slot = self.temp_word()?;
        self.emit_kernel(kernel, super::Dst::Word(slot), &list)?;
        let (result, zero) = (super::Src::Word(slot), self.pool(0));
        let d = self.destination(&Operand::Name(d), ty, false)?;
        let q = self.predicate(q)?;
        let unequal = compare_integer("ne", ty).ok_or_else(|| modifiers.unsupported())?;
        self.emit_compare(unequal, (result, zero), (p, None), (logic, q))?;
        let kernel = self.integer_kernel("mov", ty)?;
        self.emit_kernel(kernel, d, &[result])
    }
}
