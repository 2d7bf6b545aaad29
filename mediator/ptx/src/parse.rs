//! Tokens to statements: declarations and instructions, one at a time. No tree of the whole text is
//! built.

use super::error::LoadError;
use super::lexer::{Lexer, Literal, Token, literal};
use super::types::Type;
use std::borrow::Cow;

/// Most operands of an instruction.
const MAX_OPERANDS: usize = 16;

/// Most elements of a vector operand and most arguments of a call.
const MAX_ELEMENTS: usize = 128;

/// An opcode in pieces is joined up to this many bytes.
const MAX_OPCODE: usize = 256;

/// An operand as written.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand<'a> {
    /// Register, special register, variable or label.
    Name(&'a str),
    /// Variable plus bytes.
    Sum(&'a str, i64),
    Literal(Literal),
    /// `[base+offset]`; without a base the offset is the address.
    Address(Option<&'a str>, i64),
    /// `[texture, {coordinates}]`, which no supported instruction takes.
    Coordinates,
    /// `{a, b}`, and `(a, b)` of a call.
    Vector(Vec<Operand<'a>>),
    /// `d|p`.
    Pair(&'a str, &'a str),
    /// `!p`.
    Not(&'a str),
    /// `-a`, of a video instruction.
    Negative(&'a str),
}

/// An instruction as written.
#[derive(Debug)]
pub(super) struct Statement<'a> {
    pub(super) line: u32,
    /// Predicate and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    /// Without the blanks and comments between its parts.
    pub(super) opcode: Cow<'a, str>,
    pub(super) operands: Vec<Operand<'a>>,
}

/// A variable declaration: `.align 4 .b8 name[256] = {…}`. The initialiser is left to the caller.
#[derive(Debug)]
pub(super) struct Variable<'a> {
    pub(super) line: u32,
    pub(super) name: &'a str,
    pub(super) ty: Type,
    /// Elements of a vector, else 1.
    pub(super) vector: u32,
    /// Bytes; a power of two.
    pub(super) align: u32,
    /// Bytes; `None` for an array without a length (`name[]`).
    pub(super) size: Option<u64>,
    /// `%r<10>`: the number of registers.
    pub(super) count: Option<u32>,
}

/// Statements from tokens, with one token of look-ahead.
#[derive(Debug, Clone)]
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
    line: u32,
}

impl<'a> Parser<'a> {
    pub(super) fn new(text: &'a str) -> Result<Self, LoadError> {
        let mut lexer = Lexer::new(text);
        let (token, line) = lexer.next()?;
        Ok(Parser { lexer, token, line })
    }

    pub(super) fn peek(&self) -> Token<'a> {
        self.token
    }

    pub(super) fn line(&self) -> u32 {
        self.line
    }

    /// Bytes of the text that were read.
    pub(super) fn position(&self) -> usize {
        self.lexer.position()
    }

    pub(super) fn advance(&mut self) -> Result<Token<'a>, LoadError> {
        let token = self.token;
        (self.token, self.line) = self.lexer.next()?;
        Ok(token)
    }

    pub(super) fn error(&self, wanted: &str) -> LoadError {
        let found = match self.token {
            Token::Word(w) | Token::Number(w) => format!("`{w}`"),
            Token::Quoted(_) => "a string".into(),
            Token::Punct(p) => format!("`{}`", char::from(p)),
            Token::End => "the end of the text".into(),
        };
        LoadError::syntax(self.line, &format!("expected {wanted}, found {found}"))
    }

    /// True, and consumed, if the next token is this punctuation.
    pub(super) fn accept(&mut self, punct: u8) -> Result<bool, LoadError> {
        if self.token == Token::Punct(punct) {
            self.advance()?;
            return Ok(true);
        }
        Ok(false)
    }

    pub(super) fn expect(&mut self, punct: u8) -> Result<(), LoadError> {
        if self.accept(punct)? {
            return Ok(());
        }
        Err(self.error(&format!("`{}`", char::from(punct))))
    }

    pub(super) fn word(&mut self, wanted: &str) -> Result<&'a str, LoadError> {
        match self.token {
            Token::Word(word) => {
                self.advance()?;
                Ok(word)
            }
            _ => Err(self.error(wanted)),
        }
    }

    /// True, and consumed, if the next token is this word.
    pub(super) fn accept_word(&mut self, word: &str) -> Result<bool, LoadError> {
        if self.token == Token::Word(word) {
            self.advance()?;
            return Ok(true);
        }
        Ok(false)
    }

    /// A literal with an optional sign.
    pub(super) fn number(&mut self) -> Result<Literal, LoadError> {
        let negative = self.accept(b'-')?;
        let Token::Number(text) = self.token else {
            return Err(self.error("a number"));
        };
        let value = literal(text).ok_or_else(|| self.error("a number"))?;
        self.advance()?;
        Ok(match value {
            Literal::Int(v) if negative => Literal::Int(v.wrapping_neg()),
            Literal::Single(v) if negative => Literal::Single(v ^ (1 << 31)),
            Literal::Double(v) if negative => Literal::Double(v ^ (1 << 63)),
            other => other,
        })
    }

    /// A non-negative integer of at most `max`.
    pub(super) fn size(&mut self, max: u64) -> Result<u64, LoadError> {
        let line = self.line;
        match self.number()? {
            Literal::Int(v) if v <= max => Ok(v),
            _ => Err(LoadError::syntax(
                line,
                &format!("expected an integer of at most {max}"),
            )),
        }
    }

    /// Skips to the brace that closes the one just consumed.
    pub(super) fn skip_braces(&mut self) -> Result<(), LoadError> {
        let mut depth = 1u32;
        while depth > 0 {
            match self.advance()? {
                Token::Punct(b'{') => depth = depth.saturating_add(1),
                Token::Punct(b'}') => depth -= 1,
                Token::End => return Err(self.error("`}`")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Skips tokens up to and with the next `;`.
    pub(super) fn skip_statement(&mut self) -> Result<(), LoadError> {
        loop {
            match self.advance()? {
                Token::Punct(b';') => return Ok(()),
                Token::End => return Err(self.error("`;`")),
                _ => {}
            }
        }
    }

    /// A debugging line (`.loc 1 3 5`), which ends with its source line and not with a semicolon.
    pub(super) fn skip_line(&mut self) -> Result<(), LoadError> {
        let line = self.line;
        while self.line == line && self.token != Token::End {
            self.advance()?;
        }
        Ok(())
    }

    /// `.align N`, type, name and array part, after the state space (PTX ISA 5.4).
    pub(super) fn variable(&mut self) -> Result<Variable<'a>, LoadError> {
        let line = self.line;
        let mut align = None;
        let mut vector = 1;
        let ty = loop {
            let word = self.word("a type")?;
            match word {
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".attribute" => {
                    self.expect(b'(')?;
                    while !self.accept(b')')? {
                        self.advance()?;
                        if self.token == Token::End {
                            return Err(self.error("`)`"));
                        }
                    }
                }
                ".align" => {
                    let value = self.size(1 << 12)?;
                    if !value.is_power_of_two() {
                        return Err(LoadError::syntax(line, "alignment is no power of two"));
                    }
                    align = u32::try_from(value).ok();
                }
                // `.param .u64 .ptr .global .align 4 name`: the pointer's target, of no use here
                ".ptr" | ".global" | ".shared" | ".const" | ".local" => {}
                _ => match word.strip_prefix('.').and_then(Type::parse) {
                    Some(ty) => break ty,
                    None => {
                        return Err(LoadError::unsupported(
                            line,
                            format!("`{word}` in a declaration"),
                        ));
                    }
                },
            }
        };
        while self.accept_word(".ptr")? {
            while let Token::Word(".global" | ".shared" | ".const" | ".local" | ".align") =
                self.peek()
            {
                if self.advance()? == Token::Word(".align") {
                    self.size(1 << 12)?;
                }
            }
        }
        let name = self.word("a name")?;
        let mut count = None;
        let mut size = Some(u64::from(ty.bytes() * vector));
        if self.accept(b'<')? {
            count = u32::try_from(self.size(1 << 20)?).ok();
            self.expect(b'>')?;
        }
        while self.accept(b'[')? {
            if self.accept(b']')? {
                size = None;
                continue;
            }
            let length = match self.constant()? {
                Literal::Int(v) if v <= u64::from(u32::MAX) => v,
                _ => return Err(LoadError::syntax(line, "array without a usable length")),
            };
            size = size.and_then(|s| s.checked_mul(length));
            if size.is_none() {
                return Err(LoadError::syntax(line, "array without a usable length"));
            }
            self.expect(b']')?;
        }
        let align = align.unwrap_or_else(|| (ty.bytes() * vector).max(1));
        Ok(Variable {
            line,
            name,
            ty,
            vector,
            align,
            size,
            count,
        })
    }

    /// What is added to a name and taken off it, as a signed number of bytes.
    pub(super) fn offset(&mut self) -> Result<i64, LoadError> {
        let mut sum = 0u64;
        while self.at_offset() {
            let negative = self.accept(b'-')?;
            if !negative {
                self.expect(b'+')?;
            }
            let term = self.product()?;
            sum = if negative {
                sum.wrapping_sub(term)
            } else {
                sum.wrapping_add(term)
            };
        }
        Ok(sum.cast_signed())
    }

    fn at_offset(&self) -> bool {
        matches!(self.token, Token::Punct(b'+' | b'-'))
    }

    /// One operand; vectors do not nest.
    fn operand(&mut self, in_vector: bool) -> Result<Operand<'a>, LoadError> {
        match self.token {
            Token::Word(name) => {
                self.advance()?;
                if self.at_offset() {
                    return Ok(Operand::Sum(name, self.offset()?));
                }
                if self.accept(b'|')? {
                    return Ok(Operand::Pair(name, self.word("a predicate")?));
                }
                Ok(Operand::Name(name))
            }
            Token::Punct(b'-') if let Token::Word(name) = self.after()? => {
                self.advance()?;
                self.advance()?;
                Ok(Operand::Negative(name))
            }
            Token::Number(_) | Token::Punct(b'-' | b'+' | b'~' | b'(') => {
                Ok(Operand::Literal(self.constant()?))
            }
            Token::Punct(b'!') => {
                if let Token::Word(name) = self.after()? {
                    self.advance()?;
                    self.advance()?;
                    return Ok(Operand::Not(name));
                }
                Ok(Operand::Literal(self.constant()?))
            }
            Token::Punct(b'[') => {
                self.advance()?;
                let address = if let Token::Word(base) = self.token {
                    self.advance()?;
                    let offset = if self.at_offset() { self.offset()? } else { 0 };
                    Operand::Address(Some(base), offset)
                } else {
                    match self.constant()? {
                        Literal::Int(v) => Operand::Address(None, v.cast_signed()),
                        _ => return Err(self.error("an address")),
                    }
                };
                if self.token == Token::Punct(b',') {
                    while !matches!(self.token, Token::Punct(b']' | b';') | Token::End) {
                        self.advance()?;
                    }
                    self.expect(b']')?;
                    return Ok(Operand::Coordinates);
                }
                self.expect(b']')?;
                Ok(address)
            }
            Token::Punct(b'{') if !in_vector => {
                self.advance()?;
                Ok(Operand::Vector(self.list(b'}')?))
            }
            _ => Err(self.error("an operand")),
        }
    }

    /// Operands up to the closing punctuation, which is consumed.
    fn list(&mut self, close: u8) -> Result<Vec<Operand<'a>>, LoadError> {
        let mut elements = Vec::new();
        if self.accept(close)? {
            return Ok(elements);
        }
        loop {
            if elements.len() == MAX_ELEMENTS {
                return Err(self.error("a shorter list"));
            }
            elements.push(self.operand(true)?);
            if !self.accept(b',')? {
                break;
            }
        }
        self.expect(close)?;
        Ok(elements)
    }

    /// The token after the next one.
    fn after(&self) -> Result<Token<'a>, LoadError> {
        let mut ahead = self.clone();
        ahead.advance()?;
        Ok(ahead.token)
    }

    /// The rest of an instruction, after the first part of its `opcode`.
    pub(super) fn instruction(
        &mut self,
        line: u32,
        guard: Option<(&'a str, bool)>,
        opcode: &'a str,
    ) -> Result<Statement<'a>, LoadError> {
        let mut operands = Vec::new();
        let mut opcode = Cow::Borrowed(opcode);
        while let Token::Word(part) = self.token
            && part.starts_with('.')
        {
            if opcode.len() > MAX_OPCODE {
                return Err(self.error("a shorter opcode"));
            }
            opcode.to_mut().push_str(part);
            self.advance()?;
        }
        let call = opcode.split('.').next() == Some("call");
        if !self.accept(b';')? {
            loop {
                if operands.len() == MAX_OPERANDS {
                    return Err(self.error("fewer operands"));
                }
                operands.push(if call && self.accept(b'(')? {
                    Operand::Vector(self.list(b')')?)
                } else {
                    self.operand(false)?
                });
                if !self.accept(b',')? {
                    break;
                }
            }
            self.expect(b';')?;
        }
        Ok(Statement {
            line,
            guard,
            opcode,
            operands,
        })
    }
}
