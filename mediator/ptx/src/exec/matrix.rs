//! Matrix products, and the loads and stores of their fragments.

use super::super::code::{MatrixArgs, MatrixOp, Src};
use super::super::matrix::{Element, Part};
use super::super::memory::{DeviceMemory, MemoryFault};
use super::super::types::Space;
use super::super::{LANES, Lanes};
use super::ExecError;
use super::access::Spaces;
use super::warp::{Warp, lanes};

impl<M: DeviceMemory> Spaces<'_, M> {
    /// Reads bytes for one lane.
    pub(super) fn lane_load(
        &self,
        warp: &Warp,
        lane: usize,
        (space, va): (Space, u64),
        out: &mut [u8],
    ) -> Result<(), MemoryFault> {
        let (space, at) = Self::resolve(space, va);
        if matches!(space, Space::Global | Space::Const) {
            return self.memory.load(at, out);
        }
        let bytes = self.own(warp, lane, space, at);
        let bytes = bytes.and_then(|bytes| bytes.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(MemoryFault::Unmapped)?);
        Ok(())
    }

    /// Writes bytes for one lane.
    pub(super) fn lane_store(
        &mut self,
        warp: &Warp,
        lane: usize,
        (space, va): (Space, u64),
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        let (space, at) = Self::resolve(space, va);
        if space == Space::Global {
            return self.memory.store(at, data);
        }
        let own = self.own_mut(warp, lane, space, at)?;
        let own = own.get_mut(..data.len()).ok_or(MemoryFault::Unmapped)?;
        own.copy_from_slice(data);
        Ok(())
    }

    /// An instruction of the whole warp; lanes that are gone have zeros.
    #[inline(never)]
    pub(super) fn matrix(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        exec: u32,
        line: u32,
    ) -> Result<(), ExecError> {
        match &args.op {
            MatrixOp::Product { parts, clamp, and } => {
                self.product(warp, args, (parts, *clamp, *and), exec);
                Ok(())
            }
            MatrixOp::Load { part, column } => {
                self.fragment_load(warp, args, (*part, *column), (exec, line))
            }
            MatrixOp::Store { part, column } => {
                self.fragment_store(warp, args, (*part, *column), (exec, line))
            }
            MatrixOp::LoadTiles { transpose } => {
                self.tiles_load(warp, args, *transpose, (exec, line))
            }
            MatrixOp::StoreTiles { transpose } => {
                self.tiles_store(warp, args, *transpose, (exec, line))
            }
            MatrixOp::Transpose => {
                let mut tile = [[0; 8]; 8];
                self.spread(warp, args.s[0], &mut tile);
                let turned = transposed(&tile);
                warp.write_words(args.d[0], &collect(&turned), exec);
                Ok(())
            }
        }
    }

    /// The elements of a matrix by octet, row and column.
    fn gather(&self, warp: &Warp, part: Part, registers: &[Src]) -> Vec<f64> {
        let (rows, columns) = (part.shape.rows(part.side), part.shape.columns(part.side));
        let size = (rows * columns) as usize;
        let mut out = vec![0.0; 4 * size];
        let bits = part.element.bits();
        let each = (32 / bits).max(1);
        let mut buffer = [0; LANES];
        for (number, register) in registers.iter().enumerate() {
            let values = warp.doubles(self.code, *register, &mut buffer);
            for lane in 0..LANES as u32 {
                for inner in 0..each {
                    let at = number as u32 * each + inner;
                    if at >= part.count() {
                        break;
                    }
                    let (row, column) = part.place(lane, at);
                    let index =
                        part.octet(lane) as usize * size + (row * columns + column) as usize;
                    let raw = values[lane as usize] >> (bits * inner % 64);
                    if let Some(slot) = out.get_mut(index) {
                        *slot = part.element.decode(raw);
                    }
                }
            }
        }
        out
    }

    fn product(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        (parts, clamp, and): (&[Part; 4], bool, bool),
        exec: u32,
    ) {
        let [a, b, c, d] = *parts;
        let (of_a, rest) = args.s.split_at(a.registers().min(args.s.len()));
        let (of_b, of_c) = rest.split_at(b.registers().min(rest.len()));
        let shape = a.shape;
        let (m, n, k) = (shape.m as usize, shape.n as usize, shape.k as usize);
        let (x, y, z) = (
            self.gather(warp, a, of_a),
            self.gather(warp, b, of_b),
            self.gather(warp, c, of_c),
        );
        let mut sums = vec![0.0; 4 * m * n];
        let octets = if matches!(a.layout, super::super::matrix::Layout::Octets { .. }) {
            4
        } else {
            1
        };
        let term = |p: f64, q: f64| match (a.element, and) {
            (Element::B1, true) => p * q,
            (Element::B1, false) => f64::from(p != q),
            _ => p * q,
        };
        for octet in 0..octets {
            let (x, y) = (&x[octet * m * k..], &y[octet * k * n..]);
            for row in 0..m {
                for column in 0..n {
                    let at = octet * m * n + row * n + column;
                    let mut sum = z[at];
                    for inner in 0..k {
                        let (p, q) = (x[row * k + inner], y[inner * n + column]);
                        sum = if a.element == Element::F64 {
                            p.mul_add(q, sum)
                        } else {
                            sum + term(p, q)
                        };
                    }
                    sums[at] = sum;
                }
            }
        }
        self.scatter(
            warp,
            d,
            &args.d,
            |octet, row, column| {
                let at = octet * m * n + row * n + column;
                d.element.encode(sums[at], clamp)
            },
            exec,
        );
    }

    /// Puts elements into a fragment's registers.
    fn scatter(
        &self,
        warp: &mut Warp,
        part: Part,
        registers: &[super::super::code::Dst],
        value: impl Fn(usize, usize, usize) -> u64,
        exec: u32,
    ) {
        let bits = part.element.bits();
        let each = (32 / bits).max(1);
        let distinct = part.count().div_ceil(each).max(1);
        for (number, d) in registers.iter().enumerate() {
            let mut out: Lanes<u64> = [0; LANES];
            for (lane, slot) in out.iter_mut().enumerate() {
                for inner in 0..each {
                    // Registers beyond the elements repeat them.
                    let at = number as u32 % distinct * each + inner;
                    let (row, column) = part.place(lane as u32, at);
                    let octet = part.octet(lane as u32);
                    if at < part.count() {
                        let raw = value(octet as usize, row as usize, column as usize);
                        *slot |= raw << (bits * inner % 64);
                    }
                }
            }
            warp.write_doubles(*d, &out, exec);
        }
    }

    /// Address and stride (in elements) of a fragment in memory.
    fn fragment_place(
        &self,
        warp: &Warp,
        args: &MatrixArgs,
        part: Part,
        column: bool,
    ) -> (Lanes<u64>, Lanes<u32>) {
        let va = args
            .access
            .map_or([0; LANES], |access| self.addresses(warp, &access));
        let across = if column {
            part.shape.rows(part.side)
        } else {
            part.shape.columns(part.side)
        };
        let mut buffer = [0; LANES];
        let stride = match args.stride {
            Some(stride) => *warp.words(self.code, stride, &mut buffer),
            None => [across; LANES],
        };
        (va, stride)
    }

    fn fragment_load(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        (part, column): (Part, bool),
        (exec, line): (u32, u32),
    ) -> Result<(), ExecError> {
        let (va, stride) = self.fragment_place(warp, args, part, column);
        let space = args.access.map_or(Space::Generic, |access| access.space);
        let bits = part.element.bits();
        let size = (part.shape.rows(part.side) * part.shape.columns(part.side)) as usize;
        let mut values = vec![0; size];
        let columns = part.shape.columns(part.side);
        for lane in lanes(exec) {
            for at in 0..part.count() {
                let (row, col) = part.place(lane as u32, at);
                let (outer, inner) = if column { (col, row) } else { (row, col) };
                let index = u64::from(outer) * u64::from(stride[lane]) + u64::from(inner);
                let offset = index.wrapping_mul(u64::from(bits));
                let address = va[lane].wrapping_add(offset / 8);
                let mut raw = [0; 8];
                let bytes = (bits as usize).div_ceil(8);
                self.lane_load(warp, lane, (space, address), &mut raw[..bytes])
                    .map_err(|fault| self.fault(warp, line, (lane, address, fault)))?;
                values[(row * columns + col) as usize] =
                    u64::from_le_bytes(raw) >> (offset % 8) & (u64::MAX >> (64 - bits));
            }
        }
        self.scatter(
            warp,
            part,
            &args.d,
            |_, row, col| values[row * columns as usize + col],
            exec,
        );
        Ok(())
    }

    fn fragment_store(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        (part, column): (Part, bool),
        (exec, line): (u32, u32),
    ) -> Result<(), ExecError> {
        let (va, stride) = self.fragment_place(warp, args, part, column);
        let space = args.access.map_or(Space::Generic, |access| access.space);
        let bits = part.element.bits();
        let each = (32 / bits).max(1);
        for (number, register) in args.s.iter().enumerate() {
            let mut buffer = [0; LANES];
            let values = *warp.doubles(self.code, *register, &mut buffer);
            for lane in lanes(exec) {
                for inner in 0..each {
                    let at = number as u32 * each + inner;
                    if at >= part.count() {
                        break;
                    }
                    let (row, col) = part.place(lane as u32, at);
                    let (outer, along) = if column { (col, row) } else { (row, col) };
                    let index = u64::from(outer) * u64::from(stride[lane]) + u64::from(along);
                    let address = va[lane].wrapping_add(index.wrapping_mul(u64::from(bits / 8)));
                    let raw = (values[lane] >> (bits * inner % 64)).to_le_bytes();
                    self.lane_store(warp, lane, (space, address), &raw[..(bits / 8) as usize])
                        .map_err(|fault| self.fault(warp, line, (lane, address, fault)))?;
                }
            }
        }
        Ok(())
    }

    /// Addresses of the rows of tiles, and their space.
    fn tile_rows(&self, warp: &Warp, args: &MatrixArgs) -> (Lanes<u64>, Space) {
        args.access.map_or(([0; LANES], Space::Shared), |access| {
            (self.addresses(warp, &access), access.space)
        })
    }

    /// `ldmatrix`: lane `8 i + r` has the address of row `r` of tile `i`.
    fn tiles_load(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        transpose: bool,
        (exec, line): (u32, u32),
    ) -> Result<(), ExecError> {
        let (va, space) = self.tile_rows(warp, args);
        for (number, d) in args.d.iter().enumerate() {
            let mut tile = [[0; 8]; 8];
            for row in 0..8 {
                let lane = (number * 8 + row) % LANES;
                let mut raw = [0; 16];
                self.lane_load(warp, lane, (space, va[lane]), &mut raw)
                    .map_err(|fault| self.fault(warp, line, (lane, va[lane], fault)))?;
                for (column, pair) in raw.as_chunks::<2>().0.iter().enumerate() {
                    let (row, column) = if transpose {
                        (column, row)
                    } else {
                        (row, column)
                    };
                    tile[row][column] = u16::from_le_bytes(*pair);
                }
            }
            warp.write_words(*d, &collect(&tile), exec);
        }
        Ok(())
    }

    /// `stmatrix`.
    fn tiles_store(
        &mut self,
        warp: &mut Warp,
        args: &MatrixArgs,
        transpose: bool,
        (_, line): (u32, u32),
    ) -> Result<(), ExecError> {
        let (va, space) = self.tile_rows(warp, args);
        for (number, source) in args.s.iter().enumerate() {
            let mut tile = [[0; 8]; 8];
            self.spread(warp, *source, &mut tile);
            if transpose {
                tile = transposed(&tile);
            }
            for (row, values) in tile.iter().enumerate() {
                let lane = (number * 8 + row) % LANES;
                let mut raw = [0; 16];
                for (pair, value) in raw.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                    *pair = value.to_le_bytes();
                }
                self.lane_store(warp, lane, (space, va[lane]), &raw)
                    .map_err(|fault| self.fault(warp, line, (lane, va[lane], fault)))?;
            }
        }
        Ok(())
    }

    /// A register's halves as a tile of 8 by 8.
    fn spread(&self, warp: &Warp, source: Src, tile: &mut [[u16; 8]; 8]) {
        let mut buffer = [0; LANES];
        let values = warp.words(self.code, source, &mut buffer);
        for (lane, value) in values.iter().enumerate() {
            tile[lane / 4][lane % 4 * 2] = *value as u16;
            tile[lane / 4][lane % 4 * 2 + 1] = (*value >> 16) as u16;
        }
    }

    /// `cp.async`: at once. Bytes beyond those of the source are zero.
    #[inline(never)]
    pub(super) fn copy_async(
        &mut self,
        warp: &Warp,
        args: &super::super::code::CopyArgs,
        exec: u32,
        line: u32,
    ) -> Result<(), ExecError> {
        let (to, from) = (
            self.addresses(warp, &args.to),
            self.addresses(warp, &args.from),
        );
        let mut buffer = [0; LANES];
        let sizes = match args.size {
            Some(size) => *warp.words(self.code, size, &mut buffer),
            None => [args.bytes; LANES],
        };
        let ignored = warp.pred(args.ignore);
        for lane in lanes(exec) {
            let read = if ignored >> lane & 1 == 1 {
                0
            } else {
                sizes[lane].min(args.bytes)
            };
            let mut raw = [0; 16];
            // A copy of nothing may have any address.
            if read > 0 {
                self.lane_load(
                    warp,
                    lane,
                    (args.from.space, from[lane]),
                    &mut raw[..read as usize],
                )
                .map_err(|fault| self.fault(warp, line, (lane, from[lane], fault)))?;
            }
            self.lane_store(
                warp,
                lane,
                (args.to.space, to[lane]),
                &raw[..args.bytes as usize],
            )
            .map_err(|fault| self.fault(warp, line, (lane, to[lane], fault)))?;
        }
        Ok(())
    }
}

/// A tile with rows and columns exchanged.
fn transposed(tile: &[[u16; 8]; 8]) -> [[u16; 8]; 8] {
    std::array::from_fn(|row| std::array::from_fn(|column| tile[column][row]))
}

/// Each lane's two neighbours of a tile.
fn collect(tile: &[[u16; 8]; 8]) -> Lanes<u32> {
    std::array::from_fn(|lane| {
        let row = &tile[lane / 4];
        let at = lane % 4 * 2;
        u32::from(row[at]) | u32::from(row[at + 1]) << 16
    })
}
