//! This library's kernels: the word behind `opara_` in a name says what a kernel does.

use super::Class::{self, Compute, Memory};
use super::Family::{self, *};
use super::Traffic::{self, Accesses};

/// What begins the names.
const OWN: &str = "opara_";

/// The words.
const WORDS: &[(&str, (Family, Class, Traffic))] = &[
    ("attention", (Attention, Memory, Accesses)),
    // A generated kernel: a fusion group.
    ("chain", (ElementWise, Memory, Accesses)),
    ("convolution", (Convolution, Compute, Accesses)),
    ("depthwise", (Convolution, Memory, Accesses)),
    ("elementwise", (ElementWise, Memory, Accesses)),
    ("gather", (Gather, Memory, Traffic::Gather)),
    ("layout", (Layout, Memory, Accesses)),
    ("matmul", (Matmul, Compute, Accesses)),
    ("norm", (Normalisation, Memory, Accesses)),
    ("pooling", (Pooling, Memory, Accesses)),
    ("reduction", (Reduction, Memory, Accesses)),
    ("softmax", (Softmax, Memory, Accesses)),
];

/// Family, class and traffic of a kernel of this library; `None` if its name says nothing.
pub(super) fn properties(name: &str) -> Option<(Family, Class, Traffic)> {
    let word = name.strip_prefix(OWN)?.split('_').next()?;
    WORDS.iter().find(|(known, _)| *known == word).map(|(_, properties)| *properties)
}
