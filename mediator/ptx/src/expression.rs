//! Constant expressions (PTX ISA 4.5.4 to 4.5.6): integers of 64 bits, evaluated while they are
//! read.

use super::error::LoadError;
use super::lexer::{Literal, Token};
use super::parse::Parser;

/// Operators and parentheses within each other; an expression nests no deeper.
const MAX_DEPTH: u32 = 32;

/// Binary operators by precedence, the weakest first. Those of two characters stand before their
/// first one.
const LEVELS: [&[&str]; 10] = [
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

/// A value and whether it is of the unsigned type.
#[derive(Debug, Clone, Copy)]
struct Value {
    bits: u64,
    unsigned: bool,
}

impl<'a> Parser<'a> {
    /// An expression, or a floating-point literal with an optional sign.
    pub(super) fn constant(&mut self) -> Result<Literal, LoadError> {
        let negative = self.peek() == Token::Punct(b'-');
        let mut ahead = self.clone();
        if negative {
            ahead.advance()?;
        }
        if let Token::Number(_) = ahead.peek()
            && let literal @ (Literal::Single(_) | Literal::Double(_)) = ahead.number()?
        {
            *self = ahead;
            return Ok(match literal {
                Literal::Single(v) if negative => Literal::Single(v ^ (1 << 31)),
                Literal::Double(v) if negative => Literal::Double(v ^ (1 << 63)),
                other => other,
            });
        }
        self.conditional(0).map(|value| Literal::Int(value.bits))
    }

    /// An operand of a product: what follows the sign of an offset.
    pub(super) fn product(&mut self) -> Result<u64, LoadError> {
        self.binary(9, 0).map(|value| value.bits)
    }

    fn conditional(&mut self, depth: u32) -> Result<Value, LoadError> {
        if depth > MAX_DEPTH {
            return Err(self.error("a simpler expression"));
        }
        let condition = self.binary(0, depth)?;
        if !self.accept(b'?')? {
            return Ok(condition);
        }
        let yes = self.conditional(depth + 1)?;
        self.expect(b':')?;
        let no = self.conditional(depth + 1)?;
        Ok(if condition.bits == 0 { no } else { yes })
    }

    /// The operator of a level that comes next, consumed.
    fn operator(&mut self, level: usize) -> Result<Option<&'static str>, LoadError> {
        let Token::Punct(first) = self.peek() else {
            return Ok(None);
        };
        let mut ahead = self.clone();
        ahead.advance()?;
        let second = match ahead.peek() {
            Token::Punct(second) => second,
            _ => 0,
        };
        let pair = [first, second];
        let is_pair = ["||", "&&", "==", "!=", "<=", ">=", "<<", ">>"]
            .iter()
            .any(|known| known.as_bytes() == pair);
        let wanted: &[u8] = if is_pair { &pair } else { &pair[..1] };
        let found = LEVELS[level]
            .iter()
            .find(|known| known.as_bytes() == wanted);
        if found.is_some() {
            self.advance()?;
            if is_pair {
                self.advance()?;
            }
        }
        Ok(found.copied())
    }

    fn binary(&mut self, level: usize, depth: u32) -> Result<Value, LoadError> {
        if level == LEVELS.len() {
            return self.unary(depth);
        }
        let mut left = self.binary(level + 1, depth)?;
        while let Some(operator) = self.operator(level)? {
            let right = self.binary(level + 1, depth)?;
            left = self.apply(operator, left, right)?;
        }
        Ok(left)
    }

    fn apply(&self, operator: &str, a: Value, b: Value) -> Result<Value, LoadError> {
        let unsigned = a.unsigned || b.unsigned;
        let (x, y) = (a.bits, b.bits);
        let (sx, sy) = (x.cast_signed(), y.cast_signed());
        let less = if unsigned { x < y } else { sx < sy };
        let truth = |t: bool| (u64::from(t), false);
        if y == 0 && matches!(operator, "/" | "%") {
            return Err(self.error("a divisor other than zero"));
        }
        // CAST: shifts are cut to 63 before.
        let shift = y.min(63) as u32;
        let (bits, unsigned) = match operator {
            "||" => truth(x != 0 || y != 0),
            "&&" => truth(x != 0 && y != 0),
            "==" => truth(x == y),
            "!=" => truth(x != y),
            "<" => truth(less),
            ">=" => truth(!less),
            "<=" => truth(less || x == y),
            ">" => truth(!less && x != y),
            "|" => (x | y, unsigned),
            "^" => (x ^ y, unsigned),
            "&" => (x & y, unsigned),
            "<<" => (if y > 63 { 0 } else { x << shift }, a.unsigned),
            ">>" if a.unsigned => (if y > 63 { 0 } else { x >> shift }, true),
            ">>" => ((sx >> shift).cast_unsigned(), false),
            "+" => (x.wrapping_add(y), unsigned),
            "-" => (x.wrapping_sub(y), unsigned),
            "*" => (x.wrapping_mul(y), unsigned),
            "/" if unsigned => (x / y, true),
            "/" => (sx.wrapping_div(sy).cast_unsigned(), false),
            _ if unsigned => (x % y, true),
            _ => (sx.wrapping_rem(sy).cast_unsigned(), false),
        };
        Ok(Value { bits, unsigned })
    }

    fn unary(&mut self, depth: u32) -> Result<Value, LoadError> {
        if depth > MAX_DEPTH {
            return Err(self.error("a simpler expression"));
        }
        let line = self.line();
        let token = self.peek();
        let map = |value: Value, f: fn(u64) -> u64| Value {
            bits: f(value.bits),
            ..value
        };
        match token {
            Token::Number(text) => {
                let unsigned = text.ends_with(['U', 'u']);
                match self.number()? {
                    Literal::Int(bits) => Ok(Value {
                        bits,
                        unsigned: unsigned || bits >> 63 == 1,
                    }),
                    _ => Err(LoadError::syntax(line, "expected an integer")),
                }
            }
            Token::Word("WARP_SZ") => {
                self.advance()?;
                Ok(Value {
                    bits: super::LANES as u64,
                    unsigned: false,
                })
            }
            Token::Punct(sign @ (b'-' | b'+' | b'~' | b'!')) => {
                self.advance()?;
                let value = self.unary(depth + 1)?;
                Ok(match sign {
                    b'-' => map(value, u64::wrapping_neg),
                    b'~' => map(value, |v| !v),
                    b'!' => map(value, |v| u64::from(v == 0)),
                    _ => value,
                })
            }
            Token::Punct(b'(') => {
                self.advance()?;
                let cast = match self.peek() {
                    Token::Word(".s64") => Some(false),
                    Token::Word(".u64") => Some(true),
                    _ => None,
                };
                if let Some(unsigned) = cast {
                    self.advance()?;
                    self.expect(b')')?;
                    let value = self.unary(depth + 1)?;
                    return Ok(Value { unsigned, ..value });
                }
                let value = self.conditional(depth + 1)?;
                self.expect(b')')?;
                Ok(value)
            }
            _ => Err(self.error("a constant")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Option<u64> {
        let mut parser = Parser::new(text).unwrap();
        match parser.constant() {
            Ok(Literal::Int(v)) if parser.peek() == Token::End => Some(v),
            _ => None,
        }
    }

    #[test]
    fn expressions_have_the_precedence_and_the_types_of_c() {
        for (text, want) in [
            ("(3+4)*2-1", 13),
            ("1 << 4 | 3", 19),
            ("-7 / 2", (-3i64).cast_unsigned()),
            ("-1 >> 1", u64::MAX),
            ("(.u64)-1 >> 63", 1),
            ("~0 & 0xff ^ 1", 0xfe),
            ("2 > 1 ? 5 : 6", 5),
            ("!0 && 4 != 4 || 0", 0),
            ("WARP_SZ - 1", 31),
            ("7 % 4 + 10U / 3", 6),
        ] {
            assert_eq!(value(text), Some(want), "{text}");
        }
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in ["1/0", "1 +", "(1", "1.5 + 2", "a"] {
            assert_eq!(value(text), None, "{text}");
        }
        assert_eq!(value(&"(".repeat(1 << 20)), None);
        assert_eq!(value(&"-".repeat(1 << 20)), None);
    }
}
