//! Lane kernels: a scalar function applied to 32 lanes, chosen when the module is loaded. A new
//! instruction is added to the tables in this folder.

mod compare;
mod float;
mod half;
mod int;

pub(super) use compare::{
    Compare, Comparison, compare_float, compare_integer, is_space, test_property,
};
pub(super) use float::{convert_float, float};
pub(super) use half::{exactly, half, video};
pub(super) use int::{extension, integer};

use super::{LANES, Lanes};
use std::fmt;

type One<T> = fn(&Lanes<T>, &mut Lanes<T>);
type Two<T> = fn(&Lanes<T>, &Lanes<T>, &mut Lanes<T>);
type Three<T> = fn(&Lanes<T>, &Lanes<T>, &Lanes<T>, &mut Lanes<T>);
type Four<T> = fn(&Lanes<T>, &Lanes<T>, &Lanes<T>, &Lanes<T>, &mut Lanes<T>);

/// A loop over the lanes, by number of operands.
#[derive(Clone, Copy)]
pub(super) enum Kernel<T: 'static> {
    One(One<T>),
    Two(Two<T>),
    Three(Three<T>),
    Four(Four<T>),
}

impl<T> Kernel<T> {
    pub(super) fn operands(&self) -> usize {
        match self {
            Kernel::One(_) => 1,
            Kernel::Two(_) => 2,
            Kernel::Three(_) => 3,
            Kernel::Four(_) => 4,
        }
    }
}

impl<T> fmt::Debug for Kernel<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel/{}", self.operands())
    }
}

/// A kernel on 32-bit or on 64-bit lanes. The latter zero-extends 32-bit sources and cuts its
/// result to the destination.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lanewise {
    Words(Kernel<u32>),
    Doubles(Kernel<u64>),
}

impl Lanewise {
    pub(super) fn operands(&self) -> usize {
        match self {
            Lanewise::Words(k) => k.operands(),
            Lanewise::Doubles(k) => k.operands(),
        }
    }
}

#[inline(always)]
fn map1<T: Copy>(a: &Lanes<T>, d: &mut Lanes<T>, f: impl Fn(T) -> T) {
    for i in 0..LANES {
        d[i] = f(a[i]);
    }
}

#[inline(always)]
fn map2<T: Copy>(a: &Lanes<T>, b: &Lanes<T>, d: &mut Lanes<T>, f: impl Fn(T, T) -> T) {
    for i in 0..LANES {
        d[i] = f(a[i], b[i]);
    }
}

#[inline(always)]
fn map3<T: Copy>(
    a: &Lanes<T>,
    b: &Lanes<T>,
    c: &Lanes<T>,
    d: &mut Lanes<T>,
    f: impl Fn(T, T, T) -> T,
) {
    for i in 0..LANES {
        d[i] = f(a[i], b[i], c[i]);
    }
}

/// `Lanewise` from a scalar function on `u32` (`w1` to `w4`) or on `u64` (`d1` to `d4`).
macro_rules! w1 {
    ($f:expr) => {
        Lanewise::Words(Kernel::One(|a, d| map1(a, d, $f)))
    };
}
macro_rules! w2 {
    ($f:expr) => {
        Lanewise::Words(Kernel::Two(|a, b, d| map2(a, b, d, $f)))
    };
}
macro_rules! w3 {
    ($f:expr) => {
        Lanewise::Words(Kernel::Three(|a, b, c, d| map3(a, b, c, d, $f)))
    };
}
macro_rules! d1 {
    ($f:expr) => {
        Lanewise::Doubles(Kernel::One(|a, d| map1(a, d, $f)))
    };
}
macro_rules! d2 {
    ($f:expr) => {
        Lanewise::Doubles(Kernel::Two(|a, b, d| map2(a, b, d, $f)))
    };
}
macro_rules! d3 {
    ($f:expr) => {
        Lanewise::Doubles(Kernel::Three(|a, b, c, d| map3(a, b, c, d, $f)))
    };
}
macro_rules! w4 {
    ($f:expr) => {
        Lanewise::Words(Kernel::Four(|a, b, c, e, d| {
            for i in 0..LANES {
                d[i] = $f(a[i], b[i], c[i], e[i]);
            }
        }))
    };
}
macro_rules! d4 {
    ($f:expr) => {
        Lanewise::Doubles(Kernel::Four(|a, b, c, e, d| {
            for i in 0..LANES {
                d[i] = $f(a[i], b[i], c[i], e[i]);
            }
        }))
    };
}
use {d1, d2, d3, d4, w1, w2, w3, w4};
