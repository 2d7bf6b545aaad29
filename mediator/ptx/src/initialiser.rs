//! Initial values of variables (PTX ISA 5.4.4): numbers, and addresses of variables and functions.

use super::error::LoadError;
use super::function;
use super::lexer::{Literal, Token};
use super::lower::{Meaning, Variables};
use super::memory::SHARED_WINDOW;
use super::module::Loader;
use super::parse::Variable;
use super::relocation::Relocation;
use super::types::{Space, Type};

/// An element: bits, or an address from the module's base.
enum Element {
    Bits(u64),
    Address { target: u64, shift: u32 },
}

impl<'a> Loader<'a, '_> {
    /// `= 1`, `= {1, 2}`, `= {{1, 2}, {3}}`: rows are flattened, missing elements are zero.
    pub(super) fn initialiser(
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
                _ => {
                    let element = self.element(variable.ty)?;
                    if at + width > size {
                        return Err(LoadError::syntax(line, "initialiser is too long"));
                    }
                    self.put(offset + at, width, element);
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

    fn put(&mut self, offset: usize, bytes: usize, element: Element) {
        match element {
            Element::Bits(bits) => {
                let slot = self.module.image.get_mut(offset..offset + bytes);
                if let (Some(slot), Some(bits)) = (slot, bits.to_le_bytes().get(..bytes)) {
                    slot.copy_from_slice(bits);
                }
            }
            Element::Address { target, shift } => self.module.relocations.push(Relocation {
                offset,
                bytes,
                target,
                shift,
            }),
        }
    }

    fn element(&mut self, ty: Type) -> Result<Element, LoadError> {
        let line = self.parser.line();
        if let Token::Word(_) = self.parser.peek()
            && self.parser.peek() != Token::Word("WARP_SZ")
        {
            return self.address(ty, 0);
        }
        let literal = self.parser.constant()?;
        // `0xFF00(name)` is one byte of an address.
        if let Literal::Int(mask) = literal
            && mask != 0
            && self.parser.accept(b'(')?
        {
            let element = self.address(Type::U64, mask.trailing_zeros());
            self.parser.expect(b')')?;
            return element;
        }
        bits(literal, ty, line).map(Element::Bits)
    }

    /// `name`, `name+bytes` or `generic(name)`.
    fn address(&mut self, ty: Type, shift: u32) -> Result<Element, LoadError> {
        let line = self.parser.line();
        if !matches!(ty.bits, 32 | 64) || ty.float() {
            return Err(LoadError::syntax(line, "an address does not fit the type"));
        }
        let mut name = self.parser.word("a name")?;
        let generic = name == "generic" && self.parser.accept(b'(')?;
        if generic {
            name = self.parser.word("a name")?;
        }
        let mut offset = self.parser.offset()?;
        if generic {
            self.parser.expect(b')')?;
            offset = offset.wrapping_add(self.parser.offset()?);
        }
        if let Some(index) = self.functions.index(name) {
            self.functions.taken.push(index);
            return Ok(Element::Bits(function::address(index) >> shift));
        }
        match self.globals.find(name) {
            Some(Meaning::Variable(Variables::At(Space::Global | Space::Const, at))) => {
                let target = at.wrapping_add_signed(offset);
                Ok(Element::Address { target, shift })
            }
            Some(Meaning::Variable(Variables::At(Space::Shared, at))) => {
                let window = if generic { SHARED_WINDOW } else { 0 };
                let value = window.wrapping_add(at).wrapping_add_signed(offset);
                Ok(Element::Bits(value >> shift))
            }
            _ => {
                let what = format!("address `{name}` in an initialiser");
                Err(LoadError::unsupported(line, what))
            }
        }
    }
}

/// The bits of a number as an element.
fn bits(value: Literal, ty: Type, line: u32) -> Result<u64, LoadError> {
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
