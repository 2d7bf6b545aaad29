//! The calls of an entry: which functions it reaches, and where their registers and frames lie.

use super::super::code::{CallTarget, Code, Saved};
use super::super::error::LoadError;
use super::super::function::{self, Formal, Functions, frame_bytes};
use std::collections::{HashMap, VecDeque};

/// Bytes of local memory for the frames of functions that call themselves, or that are called by
/// address; as much as is left of the limit if that is less.
const STACK_BYTES: u64 = 32 << 10;

/// Register slots by file: words, doubles, predicates.
pub(super) type Slots = [u16; 3];

/// The target of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Callee {
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
// FIELDS: one table for each fact of a body; bodies are read once, and linked at the end.
pub(super) struct Calls<'a> {
    /// The function that is being read; `None` for the entry.
    pub(super) current: Option<u32>,
    pub(super) returns: Vec<Formal<'a>>,
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
    pub(super) by_address: bool,
    /// Whether something moves the top of the frame.
    pub(super) grows: bool,
}

pub(super) fn most(a: Slots, b: Slots) -> Slots {
    [0, 1, 2].map(|file| a[file].max(b[file]))
}

/// The registers that code takes.
pub(super) fn slots(code: &Code) -> Slots {
    [code.words, code.doubles, code.preds]
}

impl Calls<'_> {
    pub(super) fn in_function(&self) -> bool {
        self.current.is_some()
    }

    /// Notes that an instruction uses a function's address.
    pub(super) fn take_address(&mut self, index: u32) {
        if !self.taken.contains(&index) {
            self.taken.push(index);
        }
    }

    /// Notes that a function is called.
    pub(super) fn want(&mut self, index: u32) {
        if self.wanted.insert(index, [0; 3]).is_none() {
            self.queue.push_back(index);
        }
    }

    /// Wants the functions with a used address, if something is called by address. Returns
    /// whether there is a function to read.
    pub(super) fn want_taken(&mut self, functions: &Functions<'_>, first: Slots) -> bool {
        if self.has_call_by_address() {
            for index in [self.taken.clone(), functions.taken.clone()].concat() {
                if functions.get(index).is_some_and(|f| f.body.is_some())
                    && self.wanted.insert(index, first).is_none()
                {
                    self.queue.push_back(index);
                    self.by_address = true;
                }
            }
        }
        !self.queue.is_empty()
    }

    fn has_call_by_address(&self) -> bool {
        self.sites.iter().any(|s| s.callee == Callee::Address)
    }

    /// The next function to read.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.queue.pop_front()
    }

    /// Where the registers of a wanted function begin.
    pub(super) fn first(&self, index: u32) -> Slots {
        self.wanted.get(&index).copied().unwrap_or_default()
    }

    /// Notes a call from the body that is being read. Returns its number.
    pub(super) fn site(&mut self, callee: Callee, line: u32) -> u32 {
        self.sites.push(Site {
            caller: self.current,
            callee,
            line,
        });
        // CAST: sites are instructions, which are limited.
        (self.sites.len() - 1) as u32
    }

    /// Notes where a body's registers and frame end, and that its callees' begin there.
    pub(super) fn close_body(&mut self, end: Slots, local_bytes: u64) {
        let current = self.current;
        self.ends.insert(current, end);
        self.frames.insert(current, frame_bytes(local_bytes));
        if current.is_none() {
            self.entry_bytes = local_bytes;
        }
        for site in self.sites.iter().filter(|site| site.caller == current) {
            let callees = match site.callee {
                Callee::Function(index) => vec![index],
                Callee::Address => self.wanted.keys().copied().collect(),
            };
            for index in callees {
                if let Some(first) = self.wanted.get_mut(&index) {
                    *first = most(*first, end);
                }
            }
        }
    }

    /// Notes where the code of a function begins that has been read, and its registers.
    pub(super) fn place(&mut self, index: u32, (start, first): (u32, Slots), local_bytes: u64) {
        let placed = Placed {
            start,
            frame_bytes: frame_bytes(local_bytes),
            first,
        };
        self.placed.insert(index, placed);
    }

    /// Gives the calls their targets, and the registers that they save.
    pub(super) fn resolve(&self, code: &mut Code) {
        code.entry_frame_bytes = self.frames.get(&None).copied().unwrap_or(0);
        for (site, call) in self.sites.iter().zip(&mut code.calls) {
            let end = self.ends.get(&site.caller).copied().unwrap_or_default();
            let first = match site.callee {
                Callee::Function(index) => {
                    let Some(placed) = self.placed.get(&index) else {
                        continue;
                    };
                    call.target = CallTarget::Pc(placed.start, placed.frame_bytes);
                    placed.first
                }
                // Any function may be meant.
                Callee::Address => self.placed.values().fold(end, |least, placed| {
                    [0, 1, 2].map(|file| least[file].min(placed.first[file]))
                }),
            };
            if (0..3).any(|file| first[file] < end[file]) {
                let end = most(first, end);
                call.save = Some(Box::new(Saved { first, end }));
            }
        }
        for (index, placed) in &self.placed {
            let address = function::address(*index);
            let target = (placed.start, placed.frame_bytes);
            code.functions.insert(address, target);
        }
    }

    /// Bytes of local memory: the longest chain of frames, or a stack where there is none. `line`
    /// is that of an error without a call.
    pub(super) fn stack_bytes(&self, code: &Code, limit: u32, line: u32) -> Result<u32, LoadError> {
        let own = u64::from(code.entry_frame_bytes);
        let limit = u64::from(limit);
        if self.sites.is_empty() && !self.grows {
            // Without calls the frame is as large as the variables.
            // CAST: the limit has 32 bits.
            return Ok(self.entry_bytes.next_multiple_of(16) as u32);
        }
        // Longest chain, by as many rounds as there are functions; a cycle does not settle.
        let mut need: HashMap<Option<u32>, u64> = HashMap::new();
        let mut settled = false;
        if !self.grows && !self.has_call_by_address() {
            for _ in 0..=self.placed.len() + 1 {
                settled = true;
                for (site, call) in self.sites.iter().zip(&code.calls) {
                    let Callee::Function(index) = site.callee else {
                        continue;
                    };
                    let frame = self.frames.get(&Some(index)).copied().unwrap_or(0);
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
                line: self.sites.first().map_or(line, |site| site.line),
                what: "bytes of local memory",
                limit,
            });
        }
        // CAST: the limit has 32 bits.
        Ok((own + deep) as u32)
    }
}
