//! Bodies: blocks, declarations, labels.

use super::super::code::Op;
use super::super::error::LoadError;
use super::super::function;
use super::super::lexer::Token;
use super::super::parse::{Parser, Variable};
use super::super::types::{Kind, Type};
use super::scope::Register;
use super::{Block, Builder, MAX_SCOPES, Targets, Variables};

/// Statements up to the brace that closes the body; nested blocks are a stack, not recursion.
pub(super) fn read<'a>(
    entry: &mut Builder<'a, '_>,
    parser: &mut Parser<'a>,
) -> Result<(), LoadError> {
    loop {
        let line = parser.line();
        entry.out.line = line;
        match parser.peek() {
            Token::Punct(b'{') => {
                parser.advance()?;
                if entry.blocks.len() == MAX_SCOPES {
                    let limit = MAX_SCOPES as u64;
                    let what = "nested blocks";
                    return Err(LoadError::Limit { line, what, limit });
                }
                entry.blocks.push(Block {
                    frame: entry.local.bytes,
                    ..Block::default()
                });
            }
            Token::Punct(b'}') => {
                parser.advance()?;
                close_block(entry)?;
                if entry.blocks.is_empty() {
                    return Ok(());
                }
            }
            Token::Punct(b';') => {
                parser.advance()?;
            }
            Token::Punct(b'@') => {
                parser.advance()?;
                let not = parser.accept(b'!')?;
                let predicate = parser.word("a predicate")?;
                let opcode = parser.word("an instruction")?;
                let statement = parser.instruction(line, Some((predicate, not)), opcode)?;
                entry.statement(&statement)?;
            }
            Token::Word(word) if word.starts_with('.') => {
                parser.advance()?;
                declaration(entry, parser, line, word)?;
            }
            Token::Word(word) => {
                parser.advance()?;
                if parser.accept(b':')? {
                    label(entry, parser, line, word)?;
                } else {
                    let statement = parser.instruction(line, None, word)?;
                    entry.statement(&statement)?;
                }
            }
            _ => return Err(parser.error("a statement")),
        }
    }
}

fn declaration<'a>(
    entry: &mut Builder<'a, '_>,
    parser: &mut Parser<'a>,
    line: u32,
    word: &str,
) -> Result<(), LoadError> {
    match word {
        ".loc" | ".file" => return parser.skip_line(),
        ".pragma" => return parser.skip_statement(),
        ".reg" | ".shared" | ".local" | ".param" => {}
        ".global" | ".const" => {
            let what = format!("`{word}` in a body");
            return Err(LoadError::unsupported(line, what));
        }
        other => return Err(LoadError::unsupported(line, format!("directive `{other}`"))),
    }
    let mut variable = parser.variable()?;
    if word == ".reg" {
        loop {
            register(entry, &variable)?;
            if !parser.accept(b',')? {
                break;
            }
            variable.name = parser.word("a register")?;
            variable.count = None;
            if parser.accept(b'<')? {
                variable.count = u32::try_from(parser.size(1 << 20)?).ok();
                parser.expect(b'>')?;
            }
        }
    } else if word == ".shared" {
        let limit = u64::from(entry.limits.shared_bytes);
        let mut layout = entry.shared;
        entry
            .top()
            .names
            .declare_shared(&variable, &mut layout, limit)?;
        entry.shared = layout;
    } else {
        let size = variable
            .size
            .ok_or_else(|| LoadError::syntax(line, "array without a length"))?;
        let limit = (u64::from(entry.limits.local_bytes), "bytes of local memory");
        let offset = entry.local.place(line, (size, variable.align), limit)?;
        entry.local_most = entry.local_most.max(entry.local.bytes);
        let param = word == ".param";
        entry.top().keeps |= !param;
        // CAST: the limit has 32 bits.
        let place = Variables::Frame {
            offset: offset as u32,
            size: size as u32,
            param,
        };
        entry.top().names.declare(line, variable.name, place)?;
    }
    parser.expect(b';')
}

fn register<'a>(entry: &mut Builder<'a, '_>, variable: &Variable<'a>) -> Result<(), LoadError> {
    let line = variable.line;
    if variable.vector > 1 {
        let what = "a vector register".to_owned();
        return Err(LoadError::unsupported(line, what));
    }
    declare_register(entry, line, variable.name, variable.ty, variable.count)
}

/// Declares a register, or with a count a family of them.
pub(super) fn declare_register<'a>(
    entry: &mut Builder<'a, '_>,
    line: u32,
    name: &'a str,
    ty: Type,
    family: Option<u32>,
) -> Result<(), LoadError> {
    let count = family.unwrap_or(1);
    entry.registers = entry.registers.saturating_add(count);
    if entry.registers > entry.limits.registers {
        return Err(LoadError::Limit {
            line,
            what: "registers",
            limit: u64::from(entry.limits.registers),
        });
    }
    let bits = ty.bits;
    let file = match (ty.kind, bits) {
        (Kind::Pred, _) => &mut entry.out.code.preds,
        (_, 8 | 16 | 32) => &mut entry.out.code.words,
        (_, 64) => &mut entry.out.code.doubles,
        _ => {
            let what = format!("a register of {bits} bits");
            return Err(LoadError::unsupported(line, what));
        }
    };
    let first = *file;
    // Cannot pass 65535: the limit is at most that, see `slots`.
    *file = u16::try_from(count)
        .ok()
        .and_then(|count| file.checked_add(count))
        .ok_or(LoadError::Limit {
            line,
            what: "registers",
            limit: u64::from(u16::MAX),
        })?;
    let register = Register {
        first,
        bits,
        count: family,
    };
    entry.top().names.declare_register(line, name, register)
}

/// Resolves the block's branches; those to labels further out move there.
fn close_block(entry: &mut Builder<'_, '_>) -> Result<(), LoadError> {
    let Some(block) = entry.blocks.pop() else {
        return Ok(());
    };
    if block.keeps {
        if let Some(outer) = entry.blocks.last_mut() {
            outer.keeps = true;
        }
    } else if !entry.blocks.is_empty() {
        // Parameters of calls are of no use after their block.
        entry.local.bytes = block.frame;
    }
    for (at, label, line) in block.fixups {
        if let Some(&target) = block.labels.get(label) {
            if let Some(inst) = entry.out.code.insts.get_mut(at) {
                inst.op = Op::Branch { target };
            }
        } else if let Some(outer) = entry.blocks.last_mut() {
            outer.fixups.push((at, label, line));
        } else {
            let what = format!("label `{label}` does not exist");
            return Err(LoadError::operand(line, &what));
        }
    }
    Ok(())
}

/// A label, or the name of a list of targets or of a prototype.
fn label<'a>(
    entry: &mut Builder<'a, '_>,
    parser: &mut Parser<'a>,
    line: u32,
    name: &'a str,
) -> Result<(), LoadError> {
    let directive = match parser.peek() {
        Token::Word(word @ (".branchtargets" | ".calltargets" | ".callprototype")) => word,
        _ => {
            // CAST: instructions are limited to far less.
            let here = entry.out.code.insts.len() as u32;
            if entry.top().labels.insert(name, here).is_some() {
                let what = format!("label `{name}` stands twice");
                return Err(LoadError::syntax(line, &what));
            }
            return Ok(());
        }
    };
    parser.advance()?;
    let targets = if directive == ".callprototype" {
        let (_, signature) = function::signature(parser, entry.limits)?;
        function::directives(parser)?;
        Targets::Prototype(signature)
    } else {
        let mut list = Vec::new();
        loop {
            list.push(parser.word("a target")?);
            if !parser.accept(b',')? {
                break;
            }
        }
        Targets::Labels(list)
    };
    parser.expect(b';')?;
    entry.top().targets.insert(name, targets);
    Ok(())
}
