//! Tokens of PTX (PTX ISA 4.1 to 4.5). Nothing is copied; the text is read once.

use super::error::LoadError;

/// A token. A word includes its dots (`ld.global.u32`, `%tid.x`), but `.reg.b32` is two words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    Number(&'a str),
    Quoted(&'a str),
    Punct(u8),
    End,
}

/// Reads tokens from a text; `line` counts from 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Lexer {
            text,
            at: 0,
            line: 1,
        }
    }

    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    /// Skips blanks and comments.
    fn skip(&mut self) -> Result<(), LoadError> {
        while let Some(b) = self.byte(0) {
            match b {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0c => self.at += 1,
                b'/' if self.byte(1) == Some(b'/') => {
                    while self.byte(0).is_some_and(|b| b != b'\n') {
                        self.at += 1;
                    }
                }
                b'/' if self.byte(1) == Some(b'*') => {
                    let start = self.line;
                    self.at += 2;
                    loop {
                        match self.byte(0) {
                            None => return Err(LoadError::syntax(start, "comment has no end")),
                            Some(b'*') if self.byte(1) == Some(b'/') => break,
                            Some(b'\n') => self.line += 1,
                            Some(_) => {}
                        }
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => break,
            }
        }
        Ok(())
    }

    /// The bytes from `start` to here. Both ends are next to ASCII bytes, so the slice exists.
    fn slice(&self, start: usize) -> &'a str {
        self.text.get(start..self.at).unwrap_or("")
    }

    /// The next token and its line.
    ///
    /// # Errors
    /// A byte that starts no token, an unfinished string or comment.
    pub(super) fn next(&mut self) -> Result<(Token<'a>, u32), LoadError> {
        self.skip()?;
        let (start, line) = (self.at, self.line);
        let Some(first) = self.byte(0) else {
            return Ok((Token::End, line));
        };
        let token = match first {
            b'%' if !self
                .byte(1)
                .is_some_and(|b| b.is_ascii_alphabetic() || b"_$".contains(&b)) =>
            {
                self.at += 1;
                Token::Punct(first)
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | b'$' | b'%' | b'.' => {
                self.at += 1;
                while let Some(b) = self.byte(0) {
                    let dot = b == b'.' && first != b'.';
                    let word = b.is_ascii_alphanumeric() || matches!(b, b'_' | b'$') || dot;
                    if word {
                        self.at += 1;
                    } else if b == b':' && self.byte(1) == Some(b':') {
                        // `.shared::cta` is one modifier
                        self.at += 2;
                    } else {
                        break;
                    }
                }
                Token::Word(self.slice(start))
            }
            b'0'..=b'9' => {
                // Tracked while scanning: a scan back at each sign would take a guest's text
                // quadratic time.
                let mut seen_dot = false;
                while let Some(b) = self.byte(0) {
                    let exponent = matches!(b, b'+' | b'-')
                        && matches!(self.text.as_bytes().get(self.at - 1), Some(b'e' | b'E'))
                        && seen_dot;
                    seen_dot |= b == b'.';
                    if b.is_ascii_alphanumeric() || b == b'.' || exponent {
                        self.at += 1;
                    } else {
                        break;
                    }
                }
                Token::Number(self.slice(start))
            }
            b'"' => {
                self.at += 1;
                loop {
                    match self.byte(0) {
                        None | Some(b'\n') => {
                            return Err(LoadError::syntax(line, "string has no end"));
                        }
                        Some(b'"') => break,
                        Some(_) => self.at += 1,
                    }
                }
                let inner = self.text.get(start + 1..self.at).unwrap_or("");
                self.at += 1;
                Token::Quoted(inner)
            }
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b';' | b':' | b'@'
            | b'!' | b'|' | b'+' | b'-' | b'=' | b'*' | b'/' | b'&' | b'^' | b'~' | b'?' => {
                self.at += 1;
                Token::Punct(first)
            }
            other => {
                let what = format!("byte 0x{other:02x} starts nothing in PTX");
                return Err(LoadError::syntax(line, &what));
            }
        };
        Ok((token, line))
    }
}

/// A literal (PTX ISA 4.5).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Literal {
    Int(u64),
    /// Bits of a single (`0f…`).
    Single(u32),
    /// Bits of a double (`0d…` or decimal).
    Double(u64),
}

/// Reads a number token.
pub(super) fn literal(text: &str) -> Option<Literal> {
    let digits = text.strip_suffix(['U', 'u']).unwrap_or(text);
    if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok().map(Literal::Int);
    }
    if let Some(hex) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        let bits = (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok());
        return bits.flatten().map(Literal::Single);
    }
    if let Some(hex) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
        let bits = (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok());
        return bits.flatten().map(Literal::Double);
    }
    if let Some(binary) = digits.strip_prefix("0b").or(digits.strip_prefix("0B")) {
        return u64::from_str_radix(binary, 2).ok().map(Literal::Int);
    }
    if text.contains('.') {
        let value: f64 = text.parse().ok()?;
        return Some(Literal::Double(value.to_bits()));
    }
    if digits.len() > 1 && digits.starts_with('0') {
        return u64::from_str_radix(digits, 8).ok().map(Literal::Int);
    }
    digits.parse().ok().map(Literal::Int)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn words_keep_their_dots_and_lines_are_counted() {
        let mut lexer =
            Lexer::new("// x\n@%p1 bra.uni\t$L_1; /* a\nb */ [%r9+0x40] .shared::cta \"s\"");
        let mut seen = Vec::new();
        loop {
            let (token, line) = lexer.next().unwrap();
            if token == Token::End {
                break;
            }
            seen.push((token, line));
        }
        use Token::*;
        assert_eq!(
            seen,
            [
                (Punct(b'@'), 2),
                (Word("%p1"), 2),
                (Word("bra.uni"), 2),
                (Word("$L_1"), 2),
                (Punct(b';'), 2),
                (Punct(b'['), 3),
                (Word("%r9"), 3),
                (Punct(b'+'), 3),
                (Number("0x40"), 3),
                (Punct(b']'), 3),
                (Word(".shared::cta"), 3),
                (Quoted("s"), 3),
            ]
        );
    }

    #[test]
    fn literals_of_every_base() {
        assert_eq!(literal("42"), Some(Literal::Int(42)));
        assert_eq!(literal("0x1FU"), Some(Literal::Int(31)));
        assert_eq!(literal("017"), Some(Literal::Int(15)));
        assert_eq!(literal("0b101"), Some(Literal::Int(5)));
        assert_eq!(literal("0f3F800000"), Some(Literal::Single(0x3f80_0000)));
        assert_eq!(
            literal("0d3FF0000000000000"),
            Some(Literal::Double(1f64.to_bits()))
        );
        assert_eq!(
            literal("1.5e-3"),
            Some(Literal::Double(1.5e-3f64.to_bits()))
        );
        assert_eq!(literal("18446744073709551616"), None);
        assert_eq!(literal("0f12"), None);
        assert_eq!(literal("1x"), None);
    }

    #[test]
    fn signs_belong_to_exponents_of_numbers_with_a_dot_alone() {
        for (text, first) in [("1.5e-3+2", "1.5e-3"), ("1e-3", "1e"), ("1.e+2", "1.e+2")] {
            let token = Lexer::new(text).next().unwrap().0;
            assert_eq!(token, Token::Number(first));
        }
    }

    #[test]
    fn a_number_of_many_signs_is_read_in_one_pass() {
        let text = format!("1{}.{}", "e".repeat(2 << 20), "e+".repeat(1 << 20));
        let begin = std::time::Instant::now();
        let token = Lexer::new(&text).next().unwrap().0;
        assert_eq!(token, Token::Number(&text));
        // Milliseconds; minutes if each sign scanned back.
        assert!(begin.elapsed() < std::time::Duration::from_secs(10));
    }

    #[test]
    fn unfinished_things_are_refused() {
        for text in ["/* x", "\"abc", "\u{e9}", "\\", "`"] {
            assert!(Lexer::new(text).next().is_err(), "{text}");
        }
    }
}
