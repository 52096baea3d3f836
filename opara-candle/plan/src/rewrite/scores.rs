//! How attention makes scores of products of queries and keys.

/// From a product to a score, in this order: the factors, the cap, the masks.
#[derive(Debug, Clone, PartialEq)]
pub struct Scores {
    /// What products are multiplied by.
    pub scale: f32,
    /// Operands of one number each, behind queries, keys and values, that products are multiplied by too, or divided by.
    pub are_divisors: Vec<bool>,
    /// The factor of the hyperbolic tangent of that, if there is one: no score is larger.
    pub cap: Option<f32>,
    /// What the operands behind those do, one after the other.
    pub masks: Vec<Mask>,
    /// Whether 16-bit operands count as if they were converted to f32, and the result back.
    pub in_f32: bool,
}

/// What an operand, or two, do to scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Mask {
    /// The operand times this is added.
    Added(f32),
    /// Scores are this number where the operand, integers or truths, is not 0; if `where_zero`, where it is 0.
    Filled {
        /// The number.
        number: f32,
        /// Whether zeros choose it.
        where_zero: bool,
    },
    /// Scores are the second operand where the first, integers, is not 0; if `where_zero`, where it is 0.
    Replaced {
        /// Whether zeros choose it.
        where_zero: bool,
    },
}

impl Scores {
    /// Products times a factor.
    pub fn of(scale: f32) -> Self {
        Self { scale, are_divisors: Vec::new(), cap: None, masks: Vec::new(), in_f32: false }
    }

    /// The same times a factor, if there are such masks.
    pub(super) fn times(mut self, factor: f32) -> Option<Self> {
        match &mut self.cap {
            Some(cap) => *cap *= factor,
            None => self.scale *= factor,
        }
        self.masks = self.masks.into_iter().map(|mask| mask.times(factor)).collect::<Option<_>>()?;
        Some(self)
    }
}

impl Mask {
    /// How many operands it has.
    pub fn operands(self) -> usize {
        match self {
            Mask::Added(_) | Mask::Filled { .. } => 1,
            Mask::Replaced { .. } => 2,
        }
    }

    /// The same for scores that are multiplied by a factor afterwards, if there is such a mask.
    fn times(self, factor: f32) -> Option<Self> {
        match self {
            Mask::Added(of) => Some(Mask::Added(of * factor)),
            Mask::Filled { number, where_zero } => Some(Mask::Filled { number: number * factor, where_zero }),
            Mask::Replaced { .. } => None,
        }
    }
}
