//! What stands before an entry's body: its name, its parameters, its directives.

use super::super::entry::{Layout, Limits, Param};
use super::super::error::LoadError;
use super::super::lexer::Token;
use super::super::parse::Parser;
use super::super::types::Space;
use super::{Scope, Variables};

/// The header of an entry.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) name: String,
    pub(super) params: Vec<Param>,
    pub(super) param_layout: Layout,
    pub(super) max_threads: Option<u32>,
}

impl Header {
    /// Reads from after `.entry` to before the body, and declares the parameters in `names`.
    pub(super) fn read<'a>(
        parser: &mut Parser<'a>,
        limits: &Limits,
        names: &mut Scope<'a>,
    ) -> Result<Self, LoadError> {
        let mut header = Header {
            name: parser.word("an entry name")?.to_owned(),
            params: Vec::new(),
            param_layout: Layout::default(),
            max_threads: None,
        };
        if parser.accept(b'(')? && !parser.accept(b')')? {
            loop {
                header.param(parser, limits, names)?;
                if !parser.accept(b',')? {
                    break;
                }
            }
            parser.expect(b')')?;
        }
        header.directives(parser)?;
        Ok(header)
    }

    fn param<'a>(
        &mut self,
        parser: &mut Parser<'a>,
        limits: &Limits,
        names: &mut Scope<'a>,
    ) -> Result<(), LoadError> {
        if !parser.accept_word(".param")? {
            return Err(parser.error("`.param`"));
        }
        let variable = parser.variable()?;
        let size = variable
            .size
            .ok_or_else(|| LoadError::syntax(variable.line, "parameter without a size"))?;
        let limit = (u64::from(limits.param_bytes), "bytes of parameters");
        let place = (size, variable.align);
        let offset = self.param_layout.place(variable.line, place, limit)?;
        self.params.push(Param {
            name: variable.name.to_owned(),
            offset: offset as u32,
            size: size as u32,
            align: variable.align,
        });
        let place = Variables::At(Space::Param, offset);
        names.declare(variable.line, variable.name, place)
    }

    /// Performance directives (PTX ISA 11.4).
    fn directives(&mut self, parser: &mut Parser<'_>) -> Result<(), LoadError> {
        while let Token::Word(word) = parser.peek() {
            let line = parser.line();
            parser.advance()?;
            match word {
                ".maxntid" | ".reqntid" => {
                    let mut threads = parser.size(1 << 20)?;
                    while parser.accept(b',')? {
                        threads = threads.saturating_mul(parser.size(1 << 20)?);
                    }
                    self.max_threads = Some(u32::try_from(threads).unwrap_or(u32::MAX));
                }
                ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                    parser.size(1 << 20)?;
                }
                // A cluster has one block: larger ones are refused by the launch's own check.
                ".reqnctapercluster" => {
                    let mut blocks = parser.size(1 << 20)?;
                    while parser.accept(b',')? {
                        blocks = blocks.saturating_mul(parser.size(1 << 20)?);
                    }
                    if blocks != 1 {
                        let what = "a cluster of more than one block".to_owned();
                        return Err(LoadError::unsupported(line, what));
                    }
                }
                ".noreturn" | ".explicitcluster" | ".blocksareclusters" => {}
                ".pragma" => parser.skip_statement()?,
                other => {
                    return Err(LoadError::unsupported(line, format!("directive `{other}`")));
                }
            }
        }
        Ok(())
    }
}
