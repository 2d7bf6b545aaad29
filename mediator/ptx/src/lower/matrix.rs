//! Matrix instructions: shapes, types and fragments.

use super::super::code::{MatrixArgs, MatrixOp, Op};
use super::super::error::LoadError;
use super::super::matrix::{Element, Layout, Part, Shape, Side};
use super::super::parse::Operand;
use super::super::types::{Space, Type};
use super::instruction::Instruction;
use super::{Builder, memory};

/// Most elements of a matrix: those of the largest shape of bits.
const MAX_ELEMENTS: u32 = 8192;

/// Shapes of `wmma` (PTX ISA 9.7.14.4).
fn wmma_shape(shape: Shape, element: Element) -> bool {
    let Shape { m, n, k } = shape;
    match element {
        Element::TF32 => (m, n, k) == (16, 16, 8),
        Element::F64 => (m, n, k) == (8, 8, 4),
        Element::S4 | Element::U4 => (m, n, k) == (8, 8, 32),
        Element::B1 => (m, n, k) == (8, 8, 128),
        _ => matches!((m, n, k), (16, 16, 16) | (32, 8, 16) | (8, 32, 16)),
    }
}

/// Shapes of `mma.sync` with the layout in groups of four lanes.
fn mma_shape(shape: Shape, element: Element) -> bool {
    let Shape { m, n, k } = shape;
    n == 8
        && match element {
            Element::F16 | Element::BF16 => m == 16 && matches!(k, 8 | 16),
            Element::TF32 => m == 16 && matches!(k, 4 | 8),
            Element::F64 => (m == 8 && k == 4) || (m == 16 && matches!(k, 4 | 8 | 16)),
            Element::S8 | Element::U8 => (m == 8 && k == 16) || (m == 16 && matches!(k, 16 | 32)),
            Element::E4M3 | Element::E5M2 => m == 16 && matches!(k, 16 | 32),
            Element::S4 | Element::U4 => (m == 8 && k == 32) || (m == 16 && matches!(k, 32 | 64)),
            Element::B1 => (m == 8 && k == 128) || (m == 16 && matches!(k, 128 | 256)),
            _ => false,
        }
}

/// The register type that holds elements.
fn register(part: Part) -> Type {
    match part.element {
        Element::F64 => Type::new(super::super::types::Kind::Bits, 64),
        _ => Type::B32,
    }
}

pub(super) fn lower(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
) -> Result<(), LoadError> {
    if !ptx.take("sync") {
        return Err(ptx.unsupported());
    }
    ptx.take("aligned");
    let head = ptx.head;
    match head {
        "mma" => product(entry, ptx, false),
        "wmma" if ptx.take("mma") => product(entry, ptx, true),
        "wmma" => fragment(entry, ptx),
        _ => tiles(entry, ptx),
    }
}

/// `mma` and `wmma.mma`.
fn product(
    entry: &mut Builder<'_, '_>,
    mut ptx: Instruction<'_, '_>,
    wmma: bool,
) -> Result<(), LoadError> {
    let shape = ptx.take_map(Shape::parse);
    let orders: [Option<bool>; 2] = [0, 1].map(|_| {
        ptx.take_map(|m| match m {
            "row" => Some(true),
            "col" => Some(false),
            _ => None,
        })
    });
    let clamp = ptx.take("satfinite");
    let and = ptx.take("and");
    let bits = ptx.take("xor") || and;
    ptx.take("popc");
    let types: [Option<Element>; 4] = [0, 1, 2, 3].map(|_| ptx.take_map(Element::parse));
    ptx.end()?;
    let (Some(shape), [Some(a_rows), Some(b_rows)]) = (shape, orders) else {
        return Err(ptx.unsupported());
    };
    let [of_d, of_a, of_b, of_c] = match types {
        [Some(d), Some(a), Some(b), Some(c)] => [d, a, b, c],
        // `wmma` of halves names the accumulators only.
        [Some(d), Some(c), None, None] if wmma => [d, Element::F16, Element::F16, c],
        _ => return Err(ptx.unsupported()),
    };
    let octets = !wmma && of_a == Element::F16 && (shape.m, shape.n, shape.k) == (8, 8, 4);
    let known = if wmma {
        wmma_shape(shape, of_a)
    } else {
        octets || mma_shape(shape, of_a)
    };
    let sums = match of_a {
        Element::F16 => [of_c, of_d]
            .iter()
            .all(|t| matches!(t, Element::F16 | Element::F32)),
        Element::E4M3 | Element::E5M2 => [of_c, of_d]
            .iter()
            .all(|t| matches!(t, Element::F16 | Element::F32)),
        Element::BF16 | Element::TF32 => of_c == Element::F32 && of_d == Element::F32,
        Element::F64 => of_c == Element::F64 && of_d == Element::F64,
        other => other.integer() && of_c == Element::S32 && of_d == Element::S32,
    };
    let same = of_a.bits() == of_b.bits() && of_a.integer() == of_b.integer();
    let size = shape.m * shape.k <= MAX_ELEMENTS;
    if !known || !sums || !same || !size || (bits != (of_a == Element::B1)) {
        return Err(ptx.unsupported());
    }
    let layout = match (octets, wmma) {
        (true, _) => Layout::Octets { a_rows, b_rows },
        (_, true) => Layout::Rows,
        // A by rows and B by columns: the only ones.
        _ if a_rows && !b_rows => Layout::Groups,
        _ => return Err(ptx.unsupported()),
    };
    let part = |side, element| Part {
        side,
        element,
        shape,
        layout,
    };
    let parts = [
        part(Side::A, of_a),
        part(Side::B, of_b),
        part(Side::C, of_c),
        part(Side::C, of_d),
    ];
    let [d, a, b, c] = ptx.operands else {
        return Err(entry.bad("the instruction takes four operands"));
    };
    let mut s = Vec::new();
    for (operand, part) in [a, b, c].into_iter().zip(parts) {
        for operand in registers_of(entry, operand, part)? {
            s.push(entry.source(operand, fragment_type(operand, part), false)?);
        }
    }
    let mut list = Vec::new();
    for operand in registers_of(entry, d, parts[3])? {
        list.push(entry.destination(operand, register(parts[3]), false)?);
    }
    let op = MatrixOp::Product { parts, clamp, and };
    entry.out.emit(Op::Matrix(Box::new(MatrixArgs {
        op,
        d: list,
        s,
        access: None,
        stride: None,
    })))
}

/// A literal of an accumulator is a number, not bits.
fn fragment_type(operand: &Operand<'_>, part: Part) -> Type {
    match (operand, part.element) {
        (Operand::Literal(super::super::lexer::Literal::Double(_)), Element::F32) => Type::F32,
        _ => register(part),
    }
}

/// The parts of a vector, or the operand itself.
fn listed<'o, 'a>(operand: Option<&'o Operand<'a>>) -> &'o [Operand<'a>] {
    match operand {
        Some(Operand::Vector(list)) => list,
        Some(one) => std::slice::from_ref(one),
        None => &[],
    }
}

fn registers_of<'o, 'a>(
    entry: &Builder<'_, '_>,
    operand: &'o Operand<'a>,
    part: Part,
) -> Result<&'o [Operand<'a>], LoadError> {
    let list = listed(Some(operand));
    if list.len() != part.registers() {
        let wanted = part.registers();
        return Err(entry.bad(&format!("a fragment has {wanted} registers here")));
    }
    Ok(list)
}

/// `wmma.load` and `wmma.store`.
fn fragment(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let load = ptx.take("load");
    if !load && !ptx.take("store") {
        return Err(ptx.unsupported());
    }
    let side = ptx.take_map(|m| {
        Some(match m {
            "a" => Side::A,
            "b" => Side::B,
            "c" | "d" => Side::C,
            _ => return None,
        })
    });
    let column = ptx.take("col");
    let row = ptx.take("row");
    let shape = ptx.take_map(Shape::parse);
    let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
    let element = ptx.take_map(Element::parse);
    ptx.end()?;
    let (Some(side), Some(shape), Some(element)) = (side, shape, element) else {
        return Err(ptx.unsupported());
    };
    let (m, n, k) = (shape.m, shape.n, shape.k);
    let known = match (side, element) {
        (Side::C, Element::F64) => (m, n, k) == (8, 8, 4),
        (Side::C, Element::F16 | Element::F32 | Element::S32) => {
            [Element::F16, Element::TF32, Element::S4, Element::B1]
                .iter()
                .any(|by| wmma_shape(shape, *by))
        }
        (Side::C, _) => false,
        (_, Element::F32 | Element::S32) => false,
        (_, element) => wmma_shape(shape, element),
    };
    if !known || column == row {
        return Err(ptx.unsupported());
    }
    let part = Part {
        side,
        element,
        shape,
        layout: Layout::Rows,
    };
    let (list, address, stride) = match (ptx.operands, load) {
        ([list, address, rest @ ..], true) | ([address, list, rest @ ..], false)
            if rest.len() < 2 =>
        {
            (list, address, rest.first())
        }
        _ => return Err(entry.bad("the instruction takes another number of operands")),
    };
    // CAST: at most 8.
    let bytes = (element.bits() / 8).max(1) as u8;
    let access = Some(memory::access(entry, space, (bytes, 1), address)?);
    let stride = match stride {
        Some(stride) => Some(entry.source(stride, Type::U32, false)?),
        None => None,
    };
    let (mut d, mut s) = (Vec::new(), Vec::new());
    for operand in registers_of(entry, list, part)? {
        if load {
            d.push(entry.destination(operand, register(part), false)?);
        } else {
            s.push(entry.source(operand, register(part), false)?);
        }
    }
    let op = if load {
        MatrixOp::Load { part, column }
    } else {
        MatrixOp::Store { part, column }
    };
    entry.out.emit(Op::Matrix(Box::new(MatrixArgs {
        op,
        d,
        s,
        access,
        stride,
    })))
}

/// `ldmatrix`, `stmatrix`, `movmatrix`.
fn tiles(entry: &mut Builder<'_, '_>, mut ptx: Instruction<'_, '_>) -> Result<(), LoadError> {
    let known = ptx.take("m8n8") && ptx.take("b16");
    let transpose = ptx.take("trans");
    let count = ptx.take_map(|m| match m {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let space = ptx.take_map(Space::parse).unwrap_or(Space::Generic);
    ptx.end()?;
    if !known || (ptx.head == "movmatrix") != count.is_none() {
        return Err(ptx.unsupported());
    }
    let (d, s, address, op) = match (ptx.head, ptx.operands) {
        ("movmatrix", [d, a]) if transpose => (Some(d), Some(a), None, MatrixOp::Transpose),
        ("ldmatrix", [d, address]) => (
            Some(d),
            None,
            Some(address),
            MatrixOp::LoadTiles { transpose },
        ),
        ("stmatrix", [address, s]) => (
            None,
            Some(s),
            Some(address),
            MatrixOp::StoreTiles { transpose },
        ),
        _ => return Err(ptx.unsupported()),
    };
    let (to, from) = (listed(d), listed(s));
    if to.len().max(from.len()) != count.unwrap_or(1) {
        return Err(entry.bad("vector of another length"));
    }
    let access = match address {
        Some(address) => Some(memory::access(entry, space, (16, 1), address)?),
        None => None,
    };
    let mut d = Vec::new();
    for operand in to {
        d.push(entry.destination(operand, Type::B32, false)?);
    }
    let mut s = Vec::new();
    for operand in from {
        s.push(entry.source(operand, Type::B32, false)?);
    }
    entry.out.emit(Op::Matrix(Box::new(MatrixArgs {
        op,
        d,
        s,
        access,
        stride: None,
    })))
}
