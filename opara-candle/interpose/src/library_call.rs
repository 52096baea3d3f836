//! Library calls in a capture: their nodes of the captured graph, and their operands.

use std::fmt;

use opara_plan::trace::{AccessMode, Dim, Element, Function};

/// A library call during a capture.
pub struct LibraryCall {
    /// What was called.
    pub call: Call,
    /// The last captured node before the call and the last one of it; 0 for none.
    pub nodes: [usize; 2],
}

/// The description of a library call.
pub struct Call {
    /// The library's function.
    pub name: &'static str,
    /// Device memory that it reads and writes; `None` if unknown.
    pub operands: Option<Vec<Operand>>,
    /// The operation, if it is known.
    pub meaning: Meaning,
    /// The result as a function of the operands, if the call has no other effect.
    pub computes: Option<Computed>,
}

/// The result of a call as a function of its operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Computed {
    /// The function.
    pub function: Function,
    /// Its operands.
    pub reads: Vec<Placed>,
    /// The result.
    pub writes: Placed,
}

/// Elements in device memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// Address of the first element.
    pub address: u64,
    /// Their type.
    pub element: Element,
    /// The outermost dimension first.
    pub dims: Vec<Dim>,
}

/// The operation of a library call.
#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// A matmul or a batch of them.
    Matmul(Matmul),
    /// A convolution, with its epilogue.
    #[cfg(feature = "cudnn")]
    Convolution {
        /// Are a bias and an activation applied?
        fused: bool,
    },
    /// Unknown.
    Other,
}

/// `C = alpha * op(A) * op(B) + beta * C` in column-major order, as cuBLAS counts; each array is for A, B and C.
#[derive(Debug, Clone, PartialEq)]
pub struct Matmul {
    /// Rows of C.
    pub m: u64,
    /// Columns of C.
    pub n: u64,
    /// Columns of op(A).
    pub k: u64,
    /// Are A and B transposed?
    pub transposed: [bool; 2],
    /// `cudaDataType`.
    pub types: [u32; 3],
    /// Elements from one column to the next.
    pub leading: [i64; 3],
    /// Elements from one matrix of the batch to the next.
    pub strides: [i64; 3],
    /// Number of matmuls.
    pub batch: u64,
    /// Is C read? It is if beta is not 0, or unknown.
    pub accumulates: bool,
    /// `cublasComputeType_t`.
    pub compute: u32,
    /// `cublasLtEpilogue_t`; 1 is none.
    pub epilogue: u32,
    /// Is alpha 1?
    pub is_unscaled: bool,
}

/// Device memory that a library call uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operand {
    /// First byte.
    pub address: u64,
    /// Bytes from the first to the last one used.
    pub bytes: u64,
    /// Whether the call reads or writes it.
    pub mode: AccessMode,
}

impl Operand {
    /// It is read.
    pub fn read(address: u64, bytes: u64) -> Self {
        Self { address, bytes, mode: AccessMode::Read }
    }

    /// It is written.
    pub fn written(address: u64, bytes: u64) -> Self {
        Self { address, bytes, mode: AccessMode::Write }
    }

    /// It is read and written.
    pub fn read_and_written(address: u64, bytes: u64) -> Self {
        Self { address, bytes, mode: AccessMode::ReadWrite }
    }
}

impl Matmul {
    /// Bytes of an element of C.
    pub fn element_bytes(&self) -> u64 {
        element_bytes(self.types[2])
    }

    /// Its operands at these addresses.
    pub fn operands(&self, [a, b, c]: [u64; 3]) -> Vec<Operand> {
        let Self { m, n, k, .. } = *self;
        let shape = |transposed, rows, columns| if transposed { (columns, rows) } else { (rows, columns) };
        let shapes = [shape(self.transposed[0], m, k), shape(self.transposed[1], k, n), (m, n)];
        let bytes = |i: usize| {
            let (rows, columns) = shapes[i];
            let between = |distance: i64, count: u64| distance.unsigned_abs() * count.saturating_sub(1);
            let elements = between(self.leading[i], columns) + rows + between(self.strides[i], self.batch);
            elements * element_bytes(self.types[i])
        };
        let result = if self.accumulates { Operand::read_and_written } else { Operand::written };
        vec![Operand::read(a, bytes(0)), Operand::read(b, bytes(1)), result(c, bytes(2))]
    }
}

impl Matmul {
    /// The matmul with operands at these addresses in row-major order: the transpose of cuBLAS's column-major one.
    pub fn computed(&self, [a, b, c]: [u64; 3]) -> Option<Computed> {
        let Self { m, n, k, batch, .. } = *self;
        let [of_a, of_b, of_c] = self.types.map(element);
        let (of_a, of_b, of_c) = (of_a?, of_b?, of_c?);
        let stride = |i: usize| u64::try_from(self.strides[i]).ok();
        let leading = |i: usize| u64::try_from(self.leading[i]).ok();
        let is_plain = self.is_unscaled && !self.accumulates && self.epilogue == 1;
        let is_dense = leading(2)? == m && (batch == 1 || stride(2)? == m * n);
        if !is_plain || !is_dense || batch == 0 {
            return None;
        }
        let matrix = |address, element, i: usize, rows: u64, columns: u64, by_rows: bool| {
            let (row, column) = if by_rows { (leading(i)?, 1) } else { (1, leading(i)?) };
            let dims = [(batch, stride(i)?), (rows, row), (columns, column)];
            Some(Placed { address, element, dims: dims.map(|(len, stride)| Dim { len, stride }).to_vec() })
        };
        // Columns of B are rows of its transpose, and so are A's.
        let left = matrix(b, of_b, 1, n, k, !self.transposed[1])?;
        let right = matrix(a, of_a, 0, k, m, !self.transposed[0])?;
        let writes = Placed { address: c, element: of_c, dims: vec![Dim { len: batch * n * m, stride: 1 }] };
        Some(Computed { function: Function::Matmul, reads: vec![left, right], writes })
    }
}

/// The type of elements of a `cudaDataType`.
fn element(of: u32) -> Option<Element> {
    match of {
        0 => Some(Element::F32),
        1 => Some(Element::F64),
        2 => Some(Element::F16),
        14 => Some(Element::Bf16),
        _ => None,
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.meaning)
    }
}

/// Bytes of an element of a `cudaDataType`; 1 for types smaller than a byte.
fn element_bytes(of: u32) -> u64 {
    match of {
        // Complex numbers of 64 bits each.
        5 | 25 | 27 => 16,
        // 64 bits, and complex numbers of 32 bits each.
        1 | 4 | 11 | 13 | 24 | 26 => 8,
        // 32 bits, and complex numbers of 16 bits each.
        0 | 6 | 10 | 12 | 15 | 21 | 23 => 4,
        // 16 bits, and complex numbers of 8 bits each.
        2 | 7 | 9 | 14 | 20 | 22 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_reach_from_the_first_element_to_the_last() {
        let mut matmul = Matmul {
            m: 3,
            n: 2,
            k: 5,
            transposed: [true, false],
            types: [2, 2, 0],
            leading: [7, 5, 4],
            strides: [100, 0, 50],
            batch: 2,
            accumulates: false,
            compute: 68,
            epilogue: 1,
            is_unscaled: true,
        };
        let operands = matmul.operands([1000, 2000, 3000]);
        // A is stored as 5 rows and 3 columns of 7 elements each.
        assert_eq!(operands[0], Operand::read(1000, (7 * 2 + 5 + 100) * 2));
        assert_eq!(operands[1], Operand::read(2000, (5 + 5) * 2));
        assert_eq!(operands[2], Operand::written(3000, (4 + 3 + 50) * 4));
        matmul.accumulates = true;
        assert_eq!(matmul.operands([0, 0, 3000])[2].mode, AccessMode::ReadWrite);
    }

    #[test]
    fn a_matmul_of_columns_is_one_of_rows() {
        // candle's `x wᵀ` of x, (5, 7), and w, (3, 7).
        let matmul = Matmul {
            m: 3,
            n: 5,
            k: 7,
            transposed: [true, false],
            types: [2; 3],
            leading: [7, 7, 3],
            strides: [0; 3],
            batch: 1,
            accumulates: false,
            compute: 68,
            epilogue: 1,
            is_unscaled: true,
        };
        let computed = matmul.computed([1000, 2000, 3000]).unwrap();
        let dims = |placed: &Placed| placed.dims.iter().map(|dim| (dim.len, dim.stride)).collect::<Vec<_>>();
        assert_eq!((computed.reads[0].address, dims(&computed.reads[0])), (2000, vec![(1, 0), (5, 7), (7, 1)]));
        assert_eq!((computed.reads[1].address, dims(&computed.reads[1])), (1000, vec![(1, 0), (7, 1), (3, 7)]));
        assert_eq!((computed.writes.address, dims(&computed.writes)), (3000, vec![(15, 1)]));
        let others = [
            Matmul { accumulates: true, ..matmul.clone() },
            Matmul { is_unscaled: false, ..matmul.clone() },
            Matmul { leading: [7, 7, 4], ..matmul },
        ];
        assert!(others.iter().all(|other| other.computed([0; 3]).is_none()));
    }
}
