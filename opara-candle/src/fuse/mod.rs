//! Which launches become one: what one of them writes, and the next one reads, need not go through memory.
//!
//! Launches go through elements, one after another, or through rows of them: a norm makes each element of all of a row, and
//! a sum makes one number of a row. What goes through the same elements can be one launch, a block a row if there are rows.
//! What turns the result of a chain, such as a contiguous copy of a transposed one, can be part of it: all before goes
//! through its elements in that order then.

mod places;

pub(crate) use self::places::Places;
#[cfg(feature = "cuda")]
pub(crate) use self::places::DIMS;
use crate::optimize::{read, stays, written};
use crate::trace::{BufferId, Op, OpId, Role, Trace};

/// A launch that can be one with others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fusible {
    /// How many elements it goes through.
    pub elements: u64,
    /// How many are a row, if it takes all of a row for what it makes.
    pub columns: Option<u64>,
    /// Whether it makes one number of each row, and not one of each element.
    pub folds: bool,
    /// What it reads.
    pub operands: Vec<Operand>,
    /// What it writes, all of it.
    pub result: BufferId,
    /// Whether it is better off in a chain even alone.
    pub gains_alone: bool,
}

/// What such a launch reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operand {
    pub buffer: BufferId,
    pub places: Places,
    /// Whether they count from the buffer's first byte on.
    pub from_start: bool,
}

/// What element `i` is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Element `i` of the operand, and, if the launch takes rows, the others of its row.
    Same,
    /// Number `i / columns`.
    OfRow(u64),
    Elsewhere,
}

impl Operand {
    fn place(&self) -> Place {
        match self.places.columns_of_one() {
            _ if !self.from_start => Place::Elsewhere,
            Some(columns) => Place::OfRow(columns),
            None if self.places.are_in_a_row() => Place::Same,
            None => Place::Elsewhere,
        }
    }

    /// The order in which all of so many elements are taken, if it is another one.
    fn order(&self, elements: u64) -> Option<Places> {
        let turns = self.from_start && !self.places.are_in_a_row() && self.places.are_a_permutation(elements);
        turns.then_some(self.places)
    }
}

/// Launches that become one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Those, in recorded order.
    pub members: Vec<OpId>,
    /// Which of them the one launch takes the place of.
    pub at: OpId,
    /// For each whether others read its result, or the caller.
    pub kept: Vec<bool>,
    /// For each whether it goes through one number of each row.
    pub on_numbers: Vec<bool>,
    /// How many elements all others go through.
    pub elements: u64,
    /// How many of them are a row, if any member takes rows.
    pub columns: Option<u64>,
    pub turn: Option<Turn>,
}

/// Members before one that takes their elements in another order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Turn {
    /// How many there are.
    pub before: usize,
    /// Which element is the first one, the second one, and so on, for those after.
    pub order: Places,
}

/// Finds chains of up to `most` launches, none of which holds a launch of another. `fusible` tells which ops can be in one.
///
/// A launch joins the chain of one whose elements, or numbers of rows, it reads one by one, if all else that it reads is
/// there where the chain runs; or else the chain runs where the launch did, if nobody has read its results by then. What
/// depends on an input and what does not stay apart: the latter runs once.
///
/// # Complexity
/// Linear in accesses.
pub(crate) fn chains(trace: &Trace, fusible: &[Option<&Fusible>], most: usize) -> Vec<Chain> {
    let mut chains = Growing::new(trace, fusible, most);
    for (op, launch) in trace.ops.iter().enumerate() {
        if let Some(fusible) = fusible[op] {
            chains.place(op, fusible);
        }
        chains.pass(op, launch);
    }
    chains.finish()
}

/// A chain to which launches may still come.
struct Link {
    members: Vec<OpId>,
    at: OpId,
    elements: u64,
    columns: Option<u64>,
    /// Of each member whether it goes through numbers of rows.
    on_numbers: Vec<bool>,
    turn: Option<Turn>,
    /// Whether something else has read a member's result.
    is_read: bool,
    gains: bool,
}

impl Link {
    fn of(op: OpId, fusible: &Fusible) -> Self {
        let Fusible { elements, columns, gains_alone: gains, .. } = *fusible;
        let (members, on_numbers) = (vec![op], vec![false]);
        Self { members, at: op, elements, columns, on_numbers, turn: None, is_read: false, gains }
    }

    /// The columns that its rows would have with another member, and whether that would go through numbers of rows. `None`
    /// if it goes through something else.
    fn with(&self, fusible: &Fusible) -> Option<(Option<u64>, bool)> {
        if self.elements == fusible.elements {
            let agree = self.columns.is_none_or(|own| fusible.columns.is_none_or(|columns| columns == own));
            return agree.then_some((self.columns.or(fusible.columns), false));
        }
        let rows = self.elements / self.columns?;
        (fusible.elements == rows && fusible.columns.is_none()).then_some((self.columns, true))
    }
}

/// How an op would join a chain.
struct Joined {
    link: usize,
    at: OpId,
    columns: Option<u64>,
    on_numbers: bool,
    turn: Option<Turn>,
}

struct Growing<'a> {
    trace: &'a Trace,
    fusible: &'a [Option<&'a Fusible>],
    most: usize,
    /// How often each buffer is read.
    reads: Vec<usize>,
    /// Whether every call runs it.
    stays: Vec<bool>,
    /// How often each buffer is written in all, and how often so far.
    writes: Vec<usize>,
    written: Vec<usize>,
    /// Whether anything has read or written it so far.
    touched: Vec<bool>,
    /// The last of those that wrote it.
    writer: Vec<Option<OpId>>,
    links: Vec<Link>,
    link_of: Vec<Option<usize>>,
    /// Whether a member of a chain makes one number of each row.
    makes_numbers: Vec<bool>,
}

impl<'a> Growing<'a> {
    fn new(trace: &'a Trace, fusible: &'a [Option<&'a Fusible>], most: usize) -> Self {
        let buffers = trace.buffers.len();
        let (mut reads, mut writes) = (vec![0; buffers], vec![0; buffers]);
        trace.ops.iter().flat_map(read).for_each(|buffer| reads[buffer] += 1);
        trace.ops.iter().flat_map(written).for_each(|buffer| writes[buffer] += 1);
        Self {
            trace,
            fusible,
            most,
            reads,
            stays: stays(trace),
            writes,
            written: vec![0; buffers],
            touched: vec![false; buffers],
            writer: vec![None; buffers],
            links: Vec::new(),
            link_of: vec![None; trace.ops.len()],
            makes_numbers: vec![false; trace.ops.len()],
        }
    }

    /// Lets an op join a chain, or begin one.
    fn place(&mut self, op: OpId, fusible: &Fusible) {
        let operands = &fusible.operands;
        // Nobody writes to these once they were read, so it does not matter when that happens.
        let settled = operands.iter().all(|operand| self.written[operand.buffer] == self.writes[operand.buffer]);
        let is_new = self.writes[fusible.result] == 1 && !self.touched[fusible.result];
        if !settled || !is_new {
            return;
        }
        let joined = operands.iter().filter_map(|operand| self.joined(op, fusible, *operand)).max_by_key(|j| j.at);
        let Some(Joined { link, at, columns, on_numbers, turn }) = joined else {
            self.link_of[op] = Some(self.links.len());
            self.makes_numbers[op] = fusible.folds;
            self.links.push(Link::of(op, fusible));
            return;
        };
        let chain = &mut self.links[link];
        chain.at = at;
        (chain.columns, chain.turn) = (columns, turn);
        chain.members.push(op);
        chain.on_numbers.push(on_numbers);
        self.link_of[op] = Some(link);
        self.makes_numbers[op] = on_numbers || fusible.folds;
    }

    /// How `op` can join the chain that made this operand, if it can.
    fn joined(&self, op: OpId, fusible: &Fusible, operand: Operand) -> Option<Joined> {
        let maker = self.writer[operand.buffer]?;
        let link = self.link_of[maker]?;
        let chain = &self.links[link];
        let (columns, on_numbers) = chain.with(fusible)?;
        let member = |o: &Operand| self.writer[o.buffer].filter(|&writer| self.link_of[writer] == Some(link));
        let is_there = |o: &Operand| match (member(o), o.place()) {
            (None, _) => true,
            (Some(maker), Place::Same) => self.makes_numbers[maker] == on_numbers,
            (Some(maker), Place::OfRow(of)) => self.makes_numbers[maker] && !on_numbers && columns == Some(of),
            (Some(_), Place::Elsewhere) => false,
        };
        let turn = if fusible.operands.iter().all(is_there) {
            chain.turn
        } else {
            let order = operand.order(chain.elements)?;
            let is_alike = |o: &Operand| member(o).is_none() || (o.from_start && o.places == order);
            let turns = columns.is_none() && fusible.operands.iter().all(is_alike) && self.can_turn(chain, op, &order);
            Some(turns.then_some(Turn { before: chain.members.len(), order })?)
        };
        let fits = self.stays[maker] == self.stays[op] && chain.members.len() < self.most;
        let outer = fusible.operands.iter().filter(|o| member(o).is_none());
        let ready = outer.filter_map(|o| Some(self.runs_at(self.writer[o.buffer]?))).max();
        let at =
            if ready.is_none_or(|ready| ready < chain.at) { Some(chain.at) } else { (!chain.is_read).then_some(op) };
        at.filter(|_| fits).map(|at| Joined { link, at, columns, on_numbers, turn })
    }

    /// Whether a chain can go through its elements in another order for an op: nobody else reads what it makes, and where its
    /// operands are in that order can be told.
    fn can_turn(&self, chain: &Link, op: OpId, order: &Places) -> bool {
        let all = || chain.members.iter().filter_map(|&member| self.fusible[member]);
        let made = |buffer| all().any(|member| member.result == buffer);
        let is_own = |member: &Fusible| {
            let own = chain.members.iter().chain([&op]).flat_map(|&op| read(&self.trace.ops[op]));
            let is_output = matches!(self.trace.buffers[member.result].role, Role::Output(_));
            !is_output && own.filter(|&buffer| buffer == member.result).count() == self.reads[member.result]
        };
        let is_told = |operand: &Operand| made(operand.buffer) || operand.places.in_order(order).is_some();
        chain.turn.is_none() && all().all(|member| is_own(member) && member.operands.iter().all(is_told))
    }

    fn runs_at(&self, op: OpId) -> OpId {
        self.link_of[op].map_or(op, |link| self.links[link].at)
    }

    /// Notes what an op reads and writes.
    fn pass(&mut self, op: OpId, launch: &Op) {
        for access in &launch.accesses {
            self.touched[access.buffer] = true;
            let maker = self.writer[access.buffer].and_then(|writer| self.link_of[writer]);
            if let Some(link) = maker.filter(|_| access.mode.reads() && maker != self.link_of[op]) {
                self.links[link].is_read = true;
            }
        }
        for buffer in written(launch) {
            self.written[buffer] += 1;
            self.writer[buffer] = Some(op);
        }
    }

    fn finish(self) -> Vec<Chain> {
        let mut is_kept: Vec<bool> = self.trace.buffers.iter().map(|b| matches!(b.role, Role::Output(_))).collect();
        for (op, launch) in self.trace.ops.iter().enumerate() {
            for buffer in read(launch) {
                let maker = self.writer[buffer].and_then(|writer| self.link_of[writer]);
                is_kept[buffer] |= maker.is_none() || maker != self.link_of[op];
            }
        }
        let chain = |link: Link| {
            let results = link.members.iter().map(|&op| written(&self.trace.ops[op]).any(|buffer| is_kept[buffer]));
            let kept = results.collect();
            let Link { members, at, elements, columns, on_numbers, turn, .. } = link;
            Chain { members, at, kept, on_numbers, elements, columns, turn }
        };
        self.links.into_iter().filter(|link| link.members.len() > 1 || link.gains).map(chain).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hash, Hasher};

    use proptest::prelude::*;

    use super::*;
    use crate::trace::{Access, Buffer, Mode, Region, Work};

    const MOST: usize = 4;
    const ROWS: usize = 2;
    const COLUMNS: usize = 3;

    /// What a launch goes through.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Kind {
        /// It cannot be in a chain.
        Other,
        Elements,
        /// Elements, each made of all of its row.
        Norm,
        /// Rows, of each of which it makes a number.
        Fold,
        Numbers,
    }
    use Kind::{Elements, Fold, Norm, Numbers, Other};

    impl Kind {
        /// How many results there are.
        fn results(self) -> usize {
            if matches!(self, Fold | Numbers) {
                ROWS
            } else {
                ROWS * COLUMNS
            }
        }
    }

    #[derive(Debug, Clone)]
    struct Launch {
        kind: Kind,
        reads: Vec<Operand>,
        result: BufferId,
    }

    fn launch<const N: usize>(kind: Kind, reads: [Operand; N], result: BufferId) -> Launch {
        Launch { kind, reads: reads.into(), result }
    }

    fn places(dims: &[u64], strides: &[u64]) -> Places {
        Places::new(dims, strides).unwrap()
    }

    /// Buffer 0 is the input, 1 a weight, the last the output.
    fn trace(buffers: usize, launches: &[Launch]) -> (Trace, Vec<Option<Fusible>>) {
        let role = |id| match id {
            0 => Role::Input(0),
            1 => Role::External,
            _ if id + 1 == buffers => Role::Output(0),
            _ => Role::Intermediate,
        };
        let buffers = (0..buffers).map(|id| Buffer { bytes: 8, role: role(id) }).collect();
        let access = |buffer, mode| Access { buffer, region: Region::contiguous(0, 8), mode };
        let op = |Launch { reads, result, .. }: &Launch| Op {
            name: "op".into(),
            label: String::new(),
            work: Work::Memset(0),
            accesses: reads
                .iter()
                .map(|read| access(read.buffer, Mode::Read))
                .chain([access(*result, Mode::Write)])
                .collect(),
            nanos: None,
        };
        let fusible = |launch: &Launch| {
            let Launch { kind, ref reads, result } = *launch;
            let elements = if kind == Numbers { ROWS } else { ROWS * COLUMNS } as u64;
            let columns = matches!(kind, Norm | Fold).then_some(COLUMNS as u64);
            let (folds, gains_alone, operands) = (kind == Fold, kind == Norm, reads.clone());
            (kind != Other).then_some(Fusible { elements, columns, folds, operands, result, gains_alone })
        };
        let ops = launches.iter().map(op).collect();
        (Trace { ops, buffers, ..Default::default() }, launches.iter().map(fusible).collect())
    }

    fn of(fusible: &[Option<Fusible>]) -> Vec<Option<&Fusible>> {
        fusible.iter().map(Option::as_ref).collect()
    }

    fn members(buffers: usize, launches: &[Launch]) -> Vec<(Vec<OpId>, OpId, Vec<bool>)> {
        let (trace, fusible) = trace(buffers, launches);
        chains(&trace, &of(&fusible), MOST).into_iter().map(|chain| (chain.members, chain.at, chain.kept)).collect()
    }

    fn placed(buffer: BufferId, places: Places) -> Operand {
        Operand { buffer, places, from_start: true }
    }

    fn same(buffer: BufferId) -> Operand {
        placed(buffer, Places::default())
    }

    fn elsewhere(buffer: BufferId) -> Operand {
        Operand { from_start: false, ..same(buffer) }
    }

    fn of_row(buffer: BufferId) -> Operand {
        placed(buffer, places(&[ROWS as u64, COLUMNS as u64], &[1, 0]))
    }

    /// For each column.
    fn of_column(buffer: BufferId) -> Operand {
        placed(buffer, places(&[ROWS as u64, COLUMNS as u64], &[0, 1]))
    }

    fn turned(buffer: BufferId) -> Operand {
        placed(buffer, places(&[COLUMNS as u64, ROWS as u64], &[1, COLUMNS as u64]))
    }

    #[test]
    fn a_chain_keeps_what_others_read() {
        // A cast and its square, which something else reads; a quotient of the cast and what that makes, cast back.
        let launches = [
            launch(Elements, [same(0)], 2),
            launch(Elements, [same(2)], 3),
            launch(Other, [elsewhere(3)], 4),
            launch(Elements, [same(2), elsewhere(4)], 5),
            launch(Elements, [same(5), elsewhere(1)], 6),
        ];
        assert_eq!(members(7, &launches), [(vec![0, 1], 0, vec![true, true]), (vec![3, 4], 3, vec![false, true])]);
    }

    #[test]
    fn a_norm_of_several_launches_is_one() {
        // The sum of squares, its root, and the quotient.
        let launches = [
            launch(Elements, [same(0)], 2),
            launch(Fold, [same(2)], 3),
            launch(Numbers, [same(3)], 4),
            launch(Elements, [same(0), of_row(4)], 5),
        ];
        let (trace, fusible) = trace(6, &launches);
        let expected = Chain {
            members: vec![0, 1, 2, 3],
            at: 0,
            kept: vec![false, false, false, true],
            on_numbers: vec![false, false, true, false],
            elements: 6,
            columns: Some(3),
            turn: None,
        };
        assert_eq!(chains(&trace, &of(&fusible), MOST), [expected]);
    }

    #[test]
    fn a_copy_of_a_turned_result_turns_the_chain() {
        // A product and its bias, turned, and what is done with it then.
        let sum = || launch(Elements, [same(0), of_column(1)], 2);
        let launches = [sum(), launch(Elements, [turned(2)], 3), launch(Norm, [same(3)], 4)];
        let (trace, fusible) = trace(5, &launches);
        let expected = Chain {
            members: vec![0, 1, 2],
            at: 0,
            kept: vec![false, false, true],
            on_numbers: vec![false; 3],
            elements: 6,
            columns: Some(3),
            turn: Some(Turn { before: 1, order: turned(2).places }),
        };
        assert_eq!(chains(&trace, &of(&fusible), MOST), [expected]);
        // Someone else reads the sum as it was, or is to have it.
        let read = launch(Other, [elsewhere(2)], 4);
        assert_eq!(members(5, &[sum(), read, launch(Elements, [turned(2)], 3)]), []);
        let launches = [launch(Elements, [same(0), of_column(1)], 3), launch(Elements, [turned(3)], 2)];
        assert_eq!(members(4, &launches), []);
        // Nothing can be turned twice, or where there are rows.
        let launches = [sum(), launch(Elements, [turned(2)], 3), launch(Elements, [turned(3)], 4)];
        assert_eq!(members(5, &launches), [(vec![0, 1], 0, vec![false, true])]);
        let launches = [launch(Norm, [same(0)], 2), launch(Elements, [turned(2)], 3)];
        assert_eq!(members(4, &launches), [(vec![0], 0, vec![true])]);
    }

    #[test]
    fn rows_of_another_length_are_others() {
        let of_three = placed(2, places(&[3, 2], &[1, 0]));
        let launches = [launch(Fold, [same(0)], 2), launch(Elements, [same(0), of_three], 3)];
        assert_eq!(members(4, &launches), []);
        let launches = [launch(Fold, [same(0)], 2), launch(Numbers, [elsewhere(2)], 3)];
        assert_eq!(members(4, &launches), []);
    }

    #[test]
    fn what_gains_alone_is_a_chain() {
        assert_eq!(members(3, &[launch(Norm, [same(0), elsewhere(1)], 2)]), [(vec![0], 0, vec![true])]);
        assert_eq!(members(3, &[launch(Fold, [same(0)], 2)]), []);
    }

    #[test]
    fn a_chain_waits_for_an_operand_unless_it_has_been_read() {
        // The sum of a square and of something made after it.
        let sum = |between| {
            let square = launch(Elements, [same(0)], 2);
            let other = launch(Other, [elsewhere(0)], 3);
            [square, between, other, launch(Elements, [same(2), same(3)], 5)]
        };
        let unread = launch(Other, [elsewhere(0)], 4);
        assert_eq!(members(6, &sum(unread)), [(vec![0, 3], 3, vec![false, true])]);
        let read = launch(Other, [elsewhere(2)], 4);
        assert_eq!(members(6, &sum(read)), []);
    }

    #[test]
    fn what_is_not_read_element_by_element_must_be_there() {
        let first = || launch(Elements, [same(0)], 2);
        assert_eq!(members(4, &[first(), launch(Elements, [elsewhere(2)], 3)]), []);
        assert_eq!(members(4, &[first(), launch(Elements, [same(2), elsewhere(2)], 3)]), []);
    }

    #[test]
    fn what_runs_once_stays_apart() {
        let launches = [launch(Elements, [same(1)], 2), launch(Elements, [same(2), same(0)], 3)];
        assert_eq!(members(4, &launches), []);
    }

    #[test]
    fn what_is_written_again_is_left_alone() {
        // The square is added to in place.
        let launches = [
            launch(Elements, [same(0)], 2),
            launch(Other, [elsewhere(2)], 2),
            launch(Elements, [same(2)], 3),
            launch(Elements, [same(3)], 4),
        ];
        assert_eq!(members(5, &launches), [(vec![2, 3], 2, vec![false, true])]);
        // The weight is changed after it was read.
        let launches =
            [launch(Elements, [same(1), same(0)], 2), launch(Other, [elsewhere(0)], 1), launch(Elements, [same(2)], 3)];
        assert_eq!(members(4, &launches), []);
    }

    type Memory = Vec<Vec<u64>>;

    fn hash(of: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        of.hash(&mut hasher);
        hasher.finish()
    }

    /// Result `i` of an op. `get` gives what stands for an element of an operand, `all` all of it.
    fn made(
        op: OpId,
        launch: &Launch,
        i: usize,
        get: impl Fn(&Operand, usize) -> u64,
        all: impl Fn(BufferId) -> u64,
    ) -> u64 {
        let row = |row: usize| row * COLUMNS..(row + 1) * COLUMNS;
        let value = |read: &Operand| match launch.kind {
            _ if !read.from_start => all(read.buffer),
            Fold => hash(row(i).map(|i| get(read, i)).collect::<Vec<_>>()),
            Norm => hash((i, row(i / COLUMNS).map(|i| get(read, i)).collect::<Vec<_>>())),
            _ => get(read, i),
        };
        hash((op, launch.reads.iter().map(value).collect::<Vec<_>>()))
    }

    fn run_alone(op: OpId, launch: &Launch, memory: &mut Memory) {
        let get = |read: &Operand, i| memory[read.buffer][read.places.at(i as u64) as usize];
        let result = |i| made(op, launch, i, get, |buffer| hash(&memory[buffer]));
        memory[launch.result] = (0..launch.kind.results()).map(result).collect();
    }

    /// A row, or an element if there are none, knows of what members make nothing but what is of its own.
    fn run_chain(chain: &Chain, launches: &[Launch], memory: &mut Memory) {
        let before = memory.clone();
        let rows = if chain.columns.is_some() { ROWS } else { chain.elements as usize };
        let of_row = chain.elements as usize / rows;
        let made_here = |buffer| chain.members.iter().any(|&member| launches[member].result == buffer);
        for row in 0..rows {
            let mut own: Vec<(BufferId, usize, u64)> = Vec::new();
            for (at, &op) in chain.members.iter().enumerate() {
                let launch = &launches[op];
                let order = chain.turn.filter(|turn| at < turn.before).map_or(Places::default(), |turn| turn.order);
                let turns = chain.turn.is_some_and(|turn| at == turn.before);
                let get = |read: &Operand, i: usize| {
                    if made_here(read.buffer) {
                        let i = if turns { i } else { read.places.at(i as u64) as usize };
                        let own = own.iter().find(|own| (own.0, own.1) == (read.buffer, i));
                        own.expect("of this row, and made before").2
                    } else {
                        before[read.buffer][read.places.in_order(&order).unwrap().at(i as u64) as usize]
                    }
                };
                let all = |buffer| {
                    assert!(!made_here(buffer), "a row cannot have all of it");
                    hash(&before[buffer])
                };
                let is_one = chain.on_numbers[at] || launch.kind == Fold;
                let results = if is_one { row..row + 1 } else { row * of_row..(row + 1) * of_row };
                let results: Vec<(usize, u64)> = results.map(|i| (i, made(op, launch, i, get, all))).collect();
                for (i, result) in results {
                    own.push((launch.result, i, result));
                    if chain.kept[at] {
                        memory[launch.result].resize(launch.kind.results(), 0);
                        memory[launch.result][i] = result;
                    }
                }
            }
        }
    }

    /// Launches of which each writes a buffer of its own, or some of them one that was there before.
    fn launches() -> impl Strategy<Value = Vec<Launch>> {
        let kind =
            prop_oneof![1 => Just(Other), 4 => Just(Elements), 1 => Just(Norm), 2 => Just(Fold), 2 => Just(Numbers)];
        let read = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..20);
        let again = prop::option::weighted(0.1, any::<prop::sample::Index>());
        let launch = (kind, prop::collection::vec(read, 1..3), again);
        prop::collection::vec(launch, 1..24).prop_map(|launches| {
            let mut results = vec![ROWS * COLUMNS; 2];
            let launches = launches.into_iter().enumerate().map(|(at, (kind, reads, again))| {
                // Buffers close by are likelier.
                let reads = reads.into_iter().map(|(any, near, way)| {
                    let buffer = at + 1 - any.index(at + 2).min(near.index(6));
                    match (kind, results[buffer] == ROWS, way) {
                        (Other, ..) | (_, _, 0) => elsewhere(buffer),
                        (Numbers, true, _) => same(buffer),
                        (Numbers, false, _) => elsewhere(buffer),
                        (_, true, _) => of_row(buffer),
                        (_, false, 1) => of_column(buffer),
                        (_, false, 2..6) => turned(buffer),
                        (_, false, _) => same(buffer),
                    }
                });
                let reads = reads.collect();
                let own = at + 2;
                results.push(kind.results());
                let before = again.filter(|_| at > 0).map(|again| 1 + again.index(at));
                let result = before.filter(|&before| results[before] == kind.results()).unwrap_or(own);
                Launch { kind, reads, result }
            });
            launches.collect()
        })
    }

    proptest! {
        #[test]
        fn fused_launches_leave_in_memory_what_they_left_apart(launches in launches()) {
            let (trace, fusible) = trace(launches.len() + 2, &launches);
            let chains = chains(&trace, &of(&fusible), MOST);
            let mut members = vec![false; launches.len()];
            for chain in &chains {
                prop_assert!((1..=MOST).contains(&chain.members.len()));
                prop_assert!(chain.members.contains(&chain.at));
                chain.members.iter().for_each(|&op| assert!(!std::mem::replace(&mut members[op], true), "twice"));
            }
            let start: Memory = (0..launches.len() + 2).map(|id| (0..6).map(|i| hash((id, i))).collect()).collect();
            let (mut apart, mut memory) = (start.clone(), start);
            for (op, launch) in launches.iter().enumerate() {
                run_alone(op, launch, &mut apart);
                if let Some(chain) = chains.iter().find(|chain| chain.at == op) {
                    run_chain(chain, &launches, &mut memory);
                } else if !members[op] {
                    run_alone(op, launch, &mut memory);
                }
            }
            let kept = |buffer| chains.iter().all(|chain| {
                let by = chain.members.iter().position(|&op| launches[op].result == buffer);
                by.is_none_or(|member| chain.kept[member])
            });
            for buffer in (0..apart.len()).filter(|&buffer| kept(buffer)) {
                prop_assert_eq!(&memory[buffer], &apart[buffer], "buffer {}", buffer);
            }
        }
    }
}
