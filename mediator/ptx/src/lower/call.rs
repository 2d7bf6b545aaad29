//! Calls of functions: arguments, frames, and the functions' code behind the entry's.

use super::super::code::{Access, Call, CallTarget, Dst, Op, Special, Src};
use super::super::error::LoadError;
use super::super::function::{Formal, Signature};
use super::super::parse::Operand;
use super::super::types::{Kind, Space, Type};
use super::calls::{Callee, most, slots};
use super::emit::Emitter;
use super::instruction::Instruction;
use super::{Block, Builder, Meaning, Targets, Variables, body};

/// `ret`.
pub(super) fn ret(entry: &mut Builder<'_, '_>) -> Result<(), LoadError> {
    if !entry.calls.in_function() {
        return entry.out.emit(Op::Exit);
    }
    let base = entry.out.read_special(Special::Frame, 32)?;
    for formal in std::mem::take(&mut entry.calls.returns) {
        if formal.register {
            let value = entry.source(&Operand::Name(formal.name), raw(formal.ty), true)?;
            store_local(&mut entry.out, (base, formal.offset), formal.size, value)?;
        }
        entry.calls.returns.push(formal);
    }
    entry.out.emit(Op::Return)
}

fn local(base: Src, offset: u32, bytes: u32) -> Access {
    Access {
        space: Space::Local,
        // CAST: at most 8.
        bytes: bytes as u8,
        count: 1,
        base,
        offset: i64::from(offset),
    }
}

fn store_local(
    out: &mut Emitter,
    (base, offset): (Src, u32),
    bytes: u32,
    value: Src,
) -> Result<(), LoadError> {
    let access = local(base, offset, bytes);
    let s = [value, Src::Pool(0), Src::Pool(0), Src::Pool(0)];
    out.emit(Op::Store { access, s })
}

fn load_local(
    out: &mut Emitter,
    (base, offset): (Src, u32),
    bytes: u32,
    to: Dst,
) -> Result<(), LoadError> {
    let access = local(base, offset, bytes);
    let d = [to, Dst::None, Dst::None, Dst::None];
    let signed = false;
    out.emit(Op::Load { access, signed, d })
}

/// Copies bytes within local memory in pieces that are aligned on both sides.
fn copy(out: &mut Emitter, from: (Src, u32), to: (Src, u32), bytes: u32) -> Result<(), LoadError> {
    let slot = out.temp_double()?;
    let mut at = 0;
    while at < bytes {
        let aligned = (from.1 | to.1 | at | 8).trailing_zeros();
        let mut piece = 1 << aligned.min(3);
        while piece > bytes - at {
            piece /= 2;
        }
        load_local(out, (from.0, from.1 + at), piece, Dst::Double(slot))?;
        store_local(out, (to.0, to.1 + at), piece, Src::Double(slot))?;
        at += piece;
    }
    Ok(())
}

/// The variable of an argument or result, and its offset.
fn passed(
    entry: &Builder<'_, '_>,
    operand: &Operand<'_>,
    formal: &Formal<'_>,
) -> Result<Option<u32>, LoadError> {
    let Operand::Name(name) = operand else {
        return Ok(None);
    };
    match entry.variable_named(name) {
        Some(Variables::Frame {
            offset,
            size,
            param: true,
        }) if size >= formal.size => Ok(Some(offset)),
        Some(Variables::Frame { param: true, .. }) => {
            Err(entry.bad(&format!("`{name}` is smaller than the parameter")))
        }
        _ => Ok(None),
    }
}

/// `call (results), function or register, (arguments), prototype;`
pub(super) fn lower<'a>(
    entry: &mut Builder<'a, '_>,
    mut ptx: Instruction<'_, 'a>,
) -> Result<(), LoadError> {
    ptx.take("uni");
    ptx.end()?;
    let none = Vec::new();
    let (results, rest) = match ptx.operands {
        [Operand::Vector(results), rest @ ..] => (results, rest),
        rest => (&none, rest),
    };
    let (target, arguments, list) = match rest {
        [Operand::Name(target)] => (*target, &none, None),
        [Operand::Name(target), Operand::Vector(list)] => (*target, list, None),
        [
            Operand::Name(target),
            Operand::Vector(list),
            Operand::Name(types),
        ] => (*target, list, Some(*types)),
        [Operand::Name(target), Operand::Name(types)] => (*target, &none, Some(*types)),
        _ => return Err(entry.bad("`call` takes a function and its arguments")),
    };
    let (callee, target, signature) = callee(entry, target, list)?;
    let Some(signature) = signature else {
        return entry.out.emit(Op::Trap);
    };
    if arguments.len() != signature.params.len() || results.len() != signature.returns.len() {
        return Err(entry.bad("the call has another number of arguments than the function"));
    }
    let frame = entry.out.read_special(Special::Frame, 32)?;
    let next = entry.out.read_special(Special::NextFrame, 32)?;
    for (operand, formal) in arguments.iter().zip(&signature.params) {
        match passed(entry, operand, formal)? {
            Some(at) => copy(
                &mut entry.out,
                (frame, at),
                (next, formal.offset),
                formal.size,
            )?,
            None => {
                let value = entry.source(operand, raw(formal.ty), true)?;
                store_local(&mut entry.out, (next, formal.offset), formal.size, value)?;
            }
        }
    }
    let site = entry.calls.site(callee, entry.out.line);
    entry.out.code.calls.push(Call { target, save: None });
    entry.out.emit(Op::Call(site))?;
    for (operand, formal) in results.iter().zip(&signature.returns) {
        match passed(entry, operand, formal)? {
            Some(at) => copy(
                &mut entry.out,
                (next, formal.offset),
                (frame, at),
                formal.size,
            )?,
            None => {
                let to = entry.destination(operand, raw(formal.ty), true)?;
                load_local(&mut entry.out, (next, formal.offset), formal.size, to)?;
            }
        }
    }
    Ok(())
}

/// What is called, and its signature; without one the call is a trap.
fn callee<'a>(
    entry: &mut Builder<'a, '_>,
    name: &'a str,
    list: Option<&'a str>,
) -> Result<(Callee, CallTarget, Option<Signature<'a>>), LoadError> {
    if let Some(index) = entry.functions.index(name)
        && let Some(function) = entry.functions.get(index)
    {
        // The call that a failed assertion makes does not return. A function that is only
        // reached by address is often a destructor, which nothing runs.
        let absent = function.body.is_none() && entry.calls.by_address;
        let fails = function.name == "__assertfail" || absent;
        if function.body.is_none() && !fails {
            let what = format!("`call` of `{name}`, which has no body,");
            return Err(LoadError::unsupported(entry.out.line, what));
        }
        let signature = (!fails).then(|| function.signature.clone());
        if !fails {
            entry.calls.want(index);
        }
        return Ok((Callee::Function(index), CallTarget::Pc(0, 0), signature));
    }
    let Some(Meaning::Register { .. }) = entry.find(name) else {
        return Err(entry.unknown(name));
    };
    let address = entry.source(&Operand::Name(name), Type::U64, false)?;
    let list = list.ok_or_else(|| entry.bad("a call by address takes a prototype"))?;
    let targets = entry.blocks.iter().rev().find_map(|b| b.targets.get(list));
    let signature = match targets {
        Some(Targets::Prototype(signature)) => Some(signature.clone()),
        Some(Targets::Labels(names)) => {
            let first = names.first().and_then(|name| entry.functions.index(name));
            let first = first.and_then(|index| entry.functions.get(index));
            first.map(|function| function.signature.clone())
        }
        None => None,
    };
    match signature {
        Some(signature) => Ok((
            Callee::Address,
            CallTarget::Address(address),
            Some(signature),
        )),
        None => Err(entry.bad(&format!("`{list}` is no prototype"))),
    }
}

/// Reads a function's body; its code follows what is there.
fn function(entry: &mut Builder<'_, '_>, index: u32) -> Result<(), LoadError> {
    let Some(function) = entry.functions.get(index) else {
        return Ok(());
    };
    let Some(mut parser) = function.body.clone() else {
        return Ok(());
    };
    let first = entry.calls.first(index);
    let code = &mut entry.out.code;
    [code.words, code.doubles, code.preds] = first;
    entry.blocks = vec![Block::default()];
    entry.registers = first.iter().map(|slot| u32::from(*slot)).sum();
    entry.local = function.signature.layout;
    entry.local_most = entry.local.bytes;
    entry.top().keeps = true;
    entry.calls.current = Some(index);
    entry.calls.returns.clone_from(&function.signature.returns);
    let start = entry.out.here() as u32;
    entry.out.begin_body(parser.line());
    let base = entry.out.read_special(Special::Frame, 32)?;
    let formals = function.signature.params.iter().map(|f| (f, true));
    let formals = formals.chain(function.signature.returns.iter().map(|f| (f, false)));
    for (formal, param) in formals {
        declare_formal(entry, formal, param, base)?;
    }
    let before = parser.position();
    body::read(entry, &mut parser)?;
    let read = parser.position().saturating_sub(before);
    *entry.text_bytes = entry.text_bytes.checked_sub(read).ok_or(LoadError::Limit {
        line: entry.out.line,
        what: "bytes of functions, counted once per entry",
        limit: entry.limits.function_text_bytes as u64,
    })?;
    let end = slots(&entry.out.code);
    entry.calls.close_body(end, entry.local_most);
    entry.calls.place(index, (start, first), entry.local_most);
    Ok(())
}

/// Declares a parameter or result; a register is loaded from the frame.
fn declare_formal<'a>(
    entry: &mut Builder<'a, '_>,
    formal: &Formal<'a>,
    param: bool,
    base: Src,
) -> Result<(), LoadError> {
    let line = entry.out.line;
    if !formal.register {
        let place = Variables::Frame {
            offset: formal.offset,
            size: formal.size,
            param: true,
        };
        return entry.top().names.declare(line, formal.name, place);
    }
    body::declare_register(entry, line, formal.name, formal.ty, None)?;
    if param {
        let to = entry.destination(&Operand::Name(formal.name), raw(formal.ty), true)?;
        load_local(&mut entry.out, (base, formal.offset), formal.size, to)?;
    }
    Ok(())
}

/// Reads the functions that the entry reaches, and resolves its calls. Returns the bytes of
/// local memory of a thread.
pub(super) fn link(entry: &mut Builder<'_, '_>) -> Result<u32, LoadError> {
    let mut highest = slots(&entry.out.code);
    entry.calls.close_body(highest, entry.local_most);
    loop {
        while let Some(index) = entry.calls.next() {
            function(entry, index)?;
            highest = most(highest, slots(&entry.out.code));
        }
        if !entry.calls.want_taken(entry.functions, highest) {
            break;
        }
    }
    let code = &mut entry.out.code;
    [code.words, code.doubles, code.preds] = highest;
    entry.calls.resolve(code);
    let limit = entry.limits.local_bytes;
    entry.calls.stack_bytes(code, limit, entry.out.line)
}

/// A parameter's type as bits, which any register of the width takes.
fn raw(ty: Type) -> Type {
    Type::new(Kind::Bits, ty.bits)
}
