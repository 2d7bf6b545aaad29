//! Device functions: signatures and frames.
//!
//! The frame of a function is in the thread's local memory: parameters, results, then the
//! variables of its body. The caller stores arguments to where the frame will begin, and reads
//! results from the same place. Each entry has its own copy of the functions that it reaches.
//! Functions that do not call each other share registers.

use super::entry::{Layout, Limits};
use super::error::LoadError;
use super::lexer::Token;
use super::parse::Parser;
use super::types::{Kind, Type};
use std::collections::HashMap;

/// The address of a function is this plus [`FUNCTION_BYTES`] times its index. No memory is there.
pub(super) const FUNCTION_WINDOW: u64 = 0xffff_fff3_0000_0000;
/// Distance of the addresses of functions.
pub(super) const FUNCTION_BYTES: u64 = 16;
/// Least bytes of a frame, so that local memory bounds the depth of calls.
const MIN_FRAME_BYTES: u32 = 64;

/// A parameter or result of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Formal<'a> {
    pub(super) name: &'a str,
    pub(super) ty: Type,
    /// Offset in the frame, and size, in bytes.
    pub(super) offset: u32,
    pub(super) size: u32,
    /// A register, which the function loads at its begin or stores at its end.
    pub(super) register: bool,
}

/// What a caller must know.
#[derive(Debug, Clone, Default)]
pub(super) struct Signature<'a> {
    pub(super) params: Vec<Formal<'a>>,
    pub(super) returns: Vec<Formal<'a>>,
    pub(super) layout: Layout,
}

impl Signature<'_> {
    /// Whether a call made for `other` finds its arguments where this function has them.
    fn fits(&self, other: &Signature<'_>) -> bool {
        let sizes = |list: &[Formal<'_>]| list.iter().map(|f| f.size).collect::<Vec<_>>();
        sizes(&self.params) == sizes(&other.params) && sizes(&self.returns) == sizes(&other.returns)
    }
}

/// A function of the module.
#[derive(Debug)]
pub(super) struct Function<'a> {
    pub(super) name: &'a str,
    pub(super) signature: Signature<'a>,
    /// The reader after the opening brace of its body; `None` for a declaration.
    pub(super) body: Option<Parser<'a>>,
}

/// The functions of a module, by index and by name.
#[derive(Debug, Default)]
pub(super) struct Functions<'a> {
    list: Vec<Function<'a>>,
    names: HashMap<&'a str, u32>,
    /// Functions with an address in a variable.
    pub(super) taken: Vec<u32>,
}

impl<'a> Functions<'a> {
    pub(super) fn index(&self, name: &str) -> Option<u32> {
        self.names.get(name).copied()
    }

    pub(super) fn get(&self, index: u32) -> Option<&Function<'a>> {
        self.list.get(index as usize)
    }

    /// Adds a declaration or definition and returns its index. A definition takes the place of
    /// declarations.
    pub(super) fn add(
        &mut self,
        line: u32,
        function: Function<'a>,
        limits: &Limits,
    ) -> Result<(), LoadError> {
        let name = function.name;
        if let Some(old) = self
            .index(name)
            .and_then(|at| self.list.get_mut(at as usize))
        {
            if !old.signature.fits(&function.signature) {
                let what = format!("`{name}` has two different signatures");
                return Err(LoadError::syntax(line, &what));
            }
            if function.body.is_some() {
                if old.body.is_some() {
                    let what = format!("function `{name}` stands twice");
                    return Err(LoadError::syntax(line, &what));
                }
                *old = function;
            }
            return Ok(());
        }
        if self.list.len() == limits.functions {
            return Err(LoadError::Limit {
                line,
                what: "functions",
                limit: limits.functions as u64,
            });
        }
        // CAST: the limit is far below.
        self.names.insert(name, self.list.len() as u32);
        self.list.push(function);
        Ok(())
    }

    /// `.alias name, aliasee;`
    pub(super) fn alias(&mut self, line: u32, name: &'a str, of: &str) -> Result<(), LoadError> {
        let Some(index) = self.index(of) else {
            let what = format!("`.alias` of `{of}`, which is no function");
            return Err(LoadError::syntax(line, &what));
        };
        self.names.insert(name, index);
        Ok(())
    }
}

/// The address that stands for a function.
pub(super) fn address(index: u32) -> u64 {
    FUNCTION_WINDOW + FUNCTION_BYTES * u64::from(index)
}

/// Reads `(results) name (parameters)`; `_` stands for a prototype's name.
pub(super) fn signature<'a>(
    parser: &mut Parser<'a>,
    limits: &Limits,
) -> Result<(&'a str, Signature<'a>), LoadError> {
    let mut returns = Vec::new();
    if parser.accept(b'(')? {
        returns = formals(parser)?;
    }
    let name = parser.word("a function name")?;
    let mut params = Vec::new();
    if parser.accept(b'(')? {
        params = formals(parser)?;
    }
    let mut signature = Signature::default();
    let limit = (u64::from(limits.param_bytes), "bytes of parameters");
    for (line, formal, align) in params {
        signature
            .params
            .push(place(&mut signature.layout, line, formal, align, limit)?);
    }
    for (line, formal, align) in returns {
        signature
            .returns
            .push(place(&mut signature.layout, line, formal, align, limit)?);
    }
    Ok((name, signature))
}

fn place<'a>(
    layout: &mut Layout,
    line: u32,
    formal: Formal<'a>,
    align: u32,
    limit: (u64, &'static str),
) -> Result<Formal<'a>, LoadError> {
    let offset = layout.place(line, (u64::from(formal.size), align), limit)?;
    // CAST: the limit has 32 bits.
    let offset = offset as u32;
    Ok(Formal { offset, ..formal })
}

/// A list after its opening parenthesis, each with its line and alignment.
fn formals<'a>(parser: &mut Parser<'a>) -> Result<Vec<(u32, Formal<'a>, u32)>, LoadError> {
    let mut list = Vec::new();
    if parser.accept(b')')? {
        return Ok(list);
    }
    loop {
        let register = match parser.word("`.param` or `.reg`")? {
            ".param" => false,
            ".reg" => true,
            _ => return Err(parser.error("`.param` or `.reg`")),
        };
        let variable = parser.variable()?;
        let line = variable.line;
        let size = variable.size.and_then(|size| u32::try_from(size).ok());
        let Some(size) = size else {
            let what = "a parameter of variable length".to_owned();
            return Err(LoadError::unsupported(line, what));
        };
        if register && (variable.ty.kind == Kind::Pred || variable.count.is_some()) {
            let what = format!("`{}` as a parameter", variable.name);
            return Err(LoadError::unsupported(line, what));
        }
        let formal = Formal {
            name: variable.name,
            ty: variable.ty,
            offset: 0,
            size,
            register,
        };
        list.push((line, formal, variable.align));
        if list.len() > MAX_FORMALS {
            return Err(parser.error("fewer parameters"));
        }
        if !parser.accept(b',')? {
            break;
        }
    }
    parser.expect(b')')?;
    Ok(list)
}

/// Most parameters of a function.
const MAX_FORMALS: usize = 128;

/// Bytes of a frame with variables of `bytes`.
pub(super) fn frame_bytes(bytes: u64) -> u32 {
    // CAST: local memory is limited to far less.
    (bytes.next_multiple_of(16) as u32).max(MIN_FRAME_BYTES)
}

/// Skips `.noreturn`, `.pragma` and other directives between a signature and its body.
pub(super) fn directives(parser: &mut Parser<'_>) -> Result<(), LoadError> {
    while let Token::Word(word) = parser.peek() {
        let line = parser.line();
        parser.advance()?;
        match word {
            ".noreturn" | ".unified" => {}
            ".pragma" => parser.skip_statement()?,
            ".maxnreg" | ".abi_preserve" | ".abi_preserve_control" => {
                parser.size(1 << 20)?;
            }
            other => {
                return Err(LoadError::unsupported(line, format!("directive `{other}`")));
            }
        }
    }
    Ok(())
}
