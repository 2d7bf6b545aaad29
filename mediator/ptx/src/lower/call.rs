//! Calls of functions: arguments, frames, and the functions' code behind the entry's.

use super::super::code::{Access, Call, CallTarget, Dst, Op, Saved, Special, Src};
use super::super::error::LoadError;
use super::super::function::{self, Formal, Signature, frame_bytes};
use super::super::parse::Operand;
use super::super::types::{Kind, Modifiers, Space, Type};
use super::{Block, Builder, Meaning, Targets, Variables};
use std::collections::{HashMap, VecDeque};

/// Bytes of local memory for the frames of functions that call themselves, or that are called by
/// address; as much as is left of the limit if that is less.
const STACK_BYTES: u64 = 32 << 10;

/// Register slots by file: words, doubles, predicates.
type Slots = [u16; 3];

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Callee {
    Function(u32),
    Address,
}

/// A function with code in the entry.
#[derive(Debug, Default)]
struct Placed {
    start: u32,
    frame_bytes: u32,
    first: Slots,
}

/// A call; its target is resolved at the end.
#[derive(Debug)]
struct Site {
    caller: Option<u32>,
    callee: Callee,
    line: u32,
}

/// The calls of an entry.
#[derive(Debug, Default)]
pub(super) struct Calls<'a> {
    /// The function that is being read; `None` for the entry.
    current: Option<u32>,
    returns: Vec<Formal<'a>>,
    sites: Vec<Site>,
    placed: HashMap<u32, Placed>,
    /// Where the registers of functions to read may begin.
    wanted: HashMap<u32, Slots>,
    queue: VecDeque<u32>,
    /// The end of each body's registers.
    ends: HashMap<Option<u32>, Slots>,
    frames: HashMap<Option<u32>, u32>,
    entry_bytes: u64,
    /// Functions with an address that is used.
    taken: Vec<u32>,
    /// Whether the functions that are read now may only be reached by address.
    by_address: bool,
    /// Whether something moves the top of the frame.
    grows: bool,
}

fn most(a: Slots, b: Slots) -> Slots {
    [0, 1, 2].map(|file| a[file].max(b[file]))
}

impl<'a> Builder<'a, '_> {
    pub(super) fn in_function(&self) -> bool {
        self.calls.current.is_some()
    }

    /// Notes that something moves the top of the frame.
    pub(super) fn grow_frame(&mut self) {
        self.calls.grows = true;
    }

    /// Notes that an instruction uses a function's address, and gives it.
    pub(super) fn function_address(&mut self, index: u32) -> Src {
        if !self.calls.taken.contains(&index) {
            self.calls.taken.push(index);
        }
        self.pool(function::address(index))
    }

    /// `ret`.
    pub(super) fn ret(&mut self) -> Result<(), LoadError> {
        if !self.in_function() {
            return self.emit(Op::Exit);
        }
        let base = self.read_special(Special::Frame, 32)?;
        for formal in std::mem::take(&mut self.calls.returns) {
            if formal.register {
                let value = self.source(&Operand::Name(formal.name), raw(formal.ty), true)?;
                self.store_local((base, formal.offset), formal.size, value)?;
            }
            self.calls.returns.push(formal);
        }
        self.emit(Op::Return)
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
        &mut self,
        (base, offset): (Src, u32),
        bytes: u32,
        value: Src,
    ) -> Result<(), LoadError> {
        let access = Self::local(base, offset, bytes);
        let s = [value, Src::Pool(0), Src::Pool(0), Src::Pool(0)];
        self.emit(Op::Store { access, s })
    }

    fn load_local(
        &mut self,
        (base, offset): (Src, u32),
        bytes: u32,
        to: Dst,
    ) -> Result<(), LoadError> {
        let access = Self::local(base, offset, bytes);
        let d = [to, Dst::None, Dst::None, Dst::None];
        let signed = false;
        self.emit(Op::Load { access, signed, d })
    }

    /// Copies bytes within local memory in pieces that are aligned on both sides.
    fn copy(&mut self, from: (Src, u32), to: (Src, u32), bytes: u32) -> Result<(), LoadError> {
        let slot = self.temp_double()?;
        let mut at = 0;
        while at < bytes {
            let aligned = (from.1 | to.1 | at | 8).trailing_zeros();
            let mut piece = 1 << aligned.min(3);
            while piece > bytes - at {
                piece /= 2;
            }
            self.load_local((from.0, from.1 + at), piece, Dst::Double(slot))?;
            self.store_local((to.0, to.1 + at), piece, Src::Double(slot))?;
            at += piece;
        }
        Ok(())
    }

    /// The variable of an argument or result, and its offset.
    fn passed(&self, operand: &Operand<'a>, formal: &Formal<'_>) -> Result<Option<u32>, LoadError> {
        let Operand::Name(name) = operand else {
            return Ok(None);
        };
        match self.variable_named(name) {
            Some(Variables::Frame {
                offset,
                size,
                param: true,
            }) if size >= formal.size => Ok(Some(offset)),
            Some(Variables::Frame { param: true, .. }) => {
                Err(self.bad(&format!("`{name}` is smaller than the parameter")))
            }
            _ => Ok(None),
        }
    }

    /// `call (results), function or register, (arguments), prototype;`
    pub(super) fn call(
        &mut self,
        mut modifiers: Modifiers<'_>,
        operands: &[Operand<'a>],
    ) -> Result<(), LoadError> {
        modifiers.take("uni");
        modifiers.end()?;
        let none = Vec::new();
        let (results, rest) = match operands {
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
            _ => return Err(self.bad("`call` takes a function and its arguments")),
        };
        let (callee, target, signature) = self.callee(target, list)?;
        let Some(signature) = signature else {
            return self.emit(Op::Trap);
        };
        if arguments.len() != signature.params.len() || results.len() != signature.returns.len() {
            return Err(self.bad("the call has another number of arguments than the function"));
        }
        let frame = self.read_special(Special::Frame, 32)?;
        let next = self.read_special(Special::NextFrame, 32)?;
        for (operand, formal) in arguments.iter().zip(&signature.params) {
            match self.passed(operand, formal)? {
                Some(at) => self.copy((frame, at), (next, formal.offset), formal.size)?,
                None => {
                    let value = self.source(operand, raw(formal.ty), true)?;
                    self.store_local((next, formal.offset), formal.size, value)?;
                }
            }
        }
        // CAST: sites are instructions, which are limited.
        let site = self.calls.sites.len() as u32;
        self.calls.sites.push(Site {
            caller: self.calls.current,
            callee,
            line: self.line,
        });
        self.code.calls.push(Call { target, save: None });
        self.emit(Op::Call(site))?;
        for (operand, formal) in results.iter().zip(&signature.returns) {
            match self.passed(operand, formal)? {
                Some(at) => self.copy((next, formal.offset), (frame, at), formal.size)?,
                None => {
                    let to = self.destination(operand, raw(formal.ty), true)?;
                    self.load_local((next, formal.offset), formal.size, to)?;
                }
            }
        }
        Ok(())
    }

    /// What is called, and its signature; without one the call is a trap.
    fn callee(
        &mut self,
        name: &'a str,
        list: Option<&'a str>,
    ) -> Result<(Callee, CallTarget, Option<Signature<'a>>), LoadError> {
        if let Some(index) = self.functions.index(name)
            && let Some(function) = self.functions.get(index)
        {
            // The call that a failed assertion makes does not return. A function that is only
            // reached by address is often a destructor, which nothing runs.
            let absent = function.body.is_none() && self.calls.by_address;
            let fails = function.name == "__assertfail" || absent;
            if function.body.is_none() && !fails {
                let what = format!("`call` of `{name}`, which has no body,");
                return Err(LoadError::unsupported(self.line, what));
            }
            let signature = (!fails).then(|| function.signature.clone());
            if !fails {
                self.want(index);
            }
            return Ok((Callee::Function(index), CallTarget::Pc(0, 0), signature));
        }
        let Some(Meaning::Register { .. }) = self.find(name) else {
            return Err(self.unknown(name));
        };
        let address = self.source(&Operand::Name(name), Type::U64, false)?;
        let list = list.ok_or_else(|| self.bad("a call by address takes a prototype"))?;
        let targets = self.blocks.iter().rev().find_map(|b| b.targets.get(list));
        let signature = match targets {
            Some(Targets::Prototype(signature)) => Some(signature.clone()),
            Some(Targets::Labels(names)) => {
                let first = names.first().and_then(|name| self.functions.index(name));
                let first = first.and_then(|index| self.functions.get(index));
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
            None => Err(self.bad(&format!("`{list}` is no prototype"))),
        }
    }

    /// Notes that a function is called.
    fn want(&mut self, index: u32) {
        if self.calls.wanted.insert(index, [0; 3]).is_none() {
            self.calls.queue.push_back(index);
        }
    }

    fn slots(&self) -> Slots {
        [self.code.words, self.code.doubles, self.code.preds]
    }

    /// Notes where a body's registers and frame end, and that its callees' begin there.
    fn close_body(&mut self) {
        let (current, end) = (self.calls.current, self.slots());
        self.calls.ends.insert(current, end);
        let bytes = frame_bytes(self.local_most);
        self.calls.frames.insert(current, bytes);
        if current.is_none() {
            self.calls.entry_bytes = self.local_most;
        }
        for site in self
            .calls
            .sites
            .iter()
            .filter(|site| site.caller == current)
        {
            let callees = match site.callee {
                Callee::Function(index) => vec![index],
                Callee::Address => self.calls.wanted.keys().copied().collect(),
            };
            for index in callees {
                if let Some(first) = self.calls.wanted.get_mut(&index) {
                    *first = most(*first, end);
                }
            }
        }
    }

    /// Reads a function's body; its code follows what is there.
    fn function(&mut self, index: u32) -> Result<(), LoadError> {
        let Some(function) = self.functions.get(index) else {
            return Ok(());
        };
        let Some(mut parser) = function.body.clone() else {
            return Ok(());
        };
        let first = self.calls.wanted.get(&index).copied().unwrap_or_default();
        [self.code.words, self.code.doubles, self.code.preds] = first;
        self.temp_words.clear();
        self.temp_doubles.clear();
        self.blocks = vec![Block::default()];
        self.registers = first.iter().map(|slot| u32::from(*slot)).sum();
        self.local = function.signature.layout;
        self.local_most = self.local.bytes;
        self.top().keeps = true;
        self.calls.current = Some(index);
        self.calls.returns.clone_from(&function.signature.returns);
        let start = self.code.insts.len() as u32;
        self.line = parser.line();
        self.guard = super::Pred::Always;
        self.temps_used = (0, 0);
        let base = self.read_special(Special::Frame, 32)?;
        let formals = function.signature.params.iter().map(|f| (f, true));
        let formals = formals.chain(function.signature.returns.iter().map(|f| (f, false)));
        for (formal, param) in formals {
            self.formal(formal, param, base)?;
        }
        let before = parser.position();
        self.body(&mut parser)?;
        let read = parser.position().saturating_sub(before);
        *self.text_bytes = self.text_bytes.checked_sub(read).ok_or(LoadError::Limit {
            line: self.line,
            what: "bytes of functions, counted once per entry",
            limit: self.limits.function_text_bytes as u64,
        })?;
        self.close_body();
        let placed = Placed {
            start,
            frame_bytes: frame_bytes(self.local_most),
            first,
        };
        self.calls.placed.insert(index, placed);
        Ok(())
    }

    /// Declares a parameter or result; a register is loaded from the frame.
    fn formal(&mut self, formal: &Formal<'a>, param: bool, base: Src) -> Result<(), LoadError> {
        let line = self.line;
        if !formal.register {
            let place = Variables::Frame {
                offset: formal.offset,
                size: formal.size,
                param: true,
            };
            return self.top().names.declare(line, formal.name, place);
        }
        self.declare_register(line, formal.name, formal.ty, None)?;
        if param {
            let to = self.destination(&Operand::Name(formal.name), raw(formal.ty), true)?;
            self.load_local((base, formal.offset), formal.size, to)?;
        }
        Ok(())
    }

    /// Reads the functions that the entry reaches, and resolves its calls. Returns the bytes of
    /// local memory of a thread.
    pub(super) fn link(&mut self) -> Result<u32, LoadError> {
        let mut highest = self.slots();
        self.close_body();
        loop {
            while let Some(index) = self.calls.queue.pop_front() {
                self.function(index)?;
                highest = most(highest, self.slots());
            }
            if self.calls.sites.iter().any(|s| s.callee == Callee::Address) {
                for index in [self.calls.taken.clone(), self.functions.taken.clone()].concat() {
                    if self.functions.get(index).is_some_and(|f| f.body.is_some())
                        && self.calls.wanted.insert(index, highest).is_none()
                    {
                        self.calls.queue.push_back(index);
                        self.calls.by_address = true;
                    }
                }
            }
            if self.calls.queue.is_empty() {
                break;
            }
        }
        [self.code.words, self.code.doubles, self.code.preds] = highest;
        self.code.entry_frame_bytes = self.calls.frames.get(&None).copied().unwrap_or(0);
        let calls = &self.calls;
        for (site, call) in calls.sites.iter().zip(&mut self.code.calls) {
            let end = calls.ends.get(&site.caller).copied().unwrap_or_default();
            let first = match site.callee {
                Callee::Function(index) => {
                    let Some(placed) = calls.placed.get(&index) else {
                        continue;
                    };
                    call.target = CallTarget::Pc(placed.start, placed.frame_bytes);
                    placed.first
                }
                // Any function may be meant.
                Callee::Address => calls.placed.values().fold(end, |least, placed| {
                    [0, 1, 2].map(|file| least[file].min(placed.first[file]))
                }),
            };
            if (0..3).any(|file| first[file] < end[file]) {
                let end = most(first, end);
                call.save = Some(Box::new(Saved { first, end }));
            }
        }
        for (index, placed) in &self.calls.placed {
            let address = function::address(*index);
            let target = (placed.start, placed.frame_bytes);
            self.code.functions.insert(address, target);
        }
        self.stack_bytes()
    }

    /// Bytes of local memory: the longest chain of frames, or a stack where there is none.
    fn stack_bytes(&self) -> Result<u32, LoadError> {
        let own = u64::from(self.code.entry_frame_bytes);
        let limit = u64::from(self.limits.local_bytes);
        let calls = &self.calls;
        if calls.sites.is_empty() && !calls.grows {
            // Without calls the frame is as large as the variables.
            // CAST: the limit has 32 bits.
            return Ok(calls.entry_bytes.next_multiple_of(16) as u32);
        }
        // Longest chain, by as many rounds as there are functions; a cycle does not settle.
        let mut need: HashMap<Option<u32>, u64> = HashMap::new();
        let mut settled = false;
        let by_address = calls.sites.iter().any(|s| s.callee == Callee::Address);
        if !calls.grows && !by_address {
            for _ in 0..=calls.placed.len() + 1 {
                settled = true;
                for (site, call) in calls.sites.iter().zip(&self.code.calls) {
                    let Callee::Function(index) = site.callee else {
                        continue;
                    };
                    let frame = calls.frames.get(&Some(index)).copied().unwrap_or(0);
                    let saved = call.save.as_ref().map_or(0, |saved| saved.bytes());
                    let below = need.get(&Some(index)).copied().unwrap_or(0);
                    let total = u64::from(frame) + u64::from(saved) + below;
                    let slot = need.entry(site.caller).or_default();
                    if total > *slot {
                        *slot = total;
                        settled = false;
                    }
                }
                if settled || need.values().any(|bytes| *bytes > limit) {
                    break;
                }
            }
        }
        let deep = if settled {
            need.get(&None).copied().unwrap_or(0)
        } else {
            STACK_BYTES.min(limit.saturating_sub(own))
        };
        if own + deep > limit {
            return Err(LoadError::Limit {
                line: calls.sites.first().map_or(self.line, |site| site.line),
                what: "bytes of local memory",
                limit,
            });
        }
        // CAST: the limit has 32 bits.
        Ok((own + deep) as u32)
    }
}

/// A parameter's type as bits, which any register of the width takes.
fn raw(ty: Type) -> Type {
    Type::new(Kind::Bits, ty.bits)
}
