//! A reader for Python's pickles as plain data. It never calls the functions that a pickle names.
//!
//! A pickle is a program for a stack machine. Here its values are nodes of one list and refer to each other by index.
//! So a value that is used twice is stored once, as in Python, and deep nesting or a cycle needs no recursion. Memory
//! stays within a small multiple of the pickle's size, whatever its contents.

use std::collections::HashMap;
use std::io::{BufRead, Read};

use super::flaw::Flaw;

/// The maximal size of a pickle in bytes. A tensor is described by some hundred bytes.
pub(super) const MAX_PICKLE: u64 = 32 << 20;

/// The most values that a pickle may have on its stack, in its memo and in all: a tensor is described by some 25.
const MAX_VALUES: usize = 8 << 20;

/// A value's index in the list of nodes.
pub(super) type Id = usize;

/// A value.
pub(super) enum Node {
    /// A value that no tensor description needs: a float, bytes, None.
    Opaque,
    Bool(bool),
    Int(i64),
    Text(String),
    /// A function or class by its name, `module.name`.
    Global(String),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// The result of calling a function or class with a tuple of arguments: `Call(callable, arguments)`.
    Call(Id, Id),
    /// An object stored outside the pickle, given by its description.
    Persistent(Id),
}

/// A pickle that was read completely.
pub(super) struct Pickle {
    nodes: Vec<Node>,
    root: Id,
}

impl Pickle {
    /// Reads one pickle and leaves the rest of the input unread.
    pub(super) fn read(reader: &mut impl BufRead) -> Result<Self, Flaw> {
        let mut machine = Machine {
            reader: reader.take(MAX_PICKLE),
            nodes: vec![],
            stack: vec![],
            marks: vec![],
            memo: HashMap::new(),
        };
        while machine.step()? {
            if machine.nodes.len() + machine.stack.len() + machine.memo.len() > MAX_VALUES {
                return Err(format!("its pickle has more than {MAX_VALUES} values").into());
            }
        }
        let root = machine.pop()?;
        Ok(Self { nodes: machine.nodes, root })
    }

    /// The pickle's top-level value.
    pub(super) fn root(&self) -> Id {
        self.root
    }

    /// All values, including values that the root does not refer to.
    pub(super) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(super) fn int(&self, id: Id) -> Option<i64> {
        if let Node::Int(value) = self.nodes[id] {
            Some(value)
        } else {
            None
        }
    }

    pub(super) fn text(&self, id: Id) -> Option<&str> {
        if let Node::Text(text) = &self.nodes[id] {
            Some(text)
        } else {
            None
        }
    }

    pub(super) fn global(&self, id: Id) -> Option<&str> {
        if let Node::Global(name) = &self.nodes[id] {
            Some(name)
        } else {
            None
        }
    }

    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        if let Node::Tuple(items) = &self.nodes[id] {
            Some(items)
        } else {
            None
        }
    }

    pub(super) fn list(&self, id: Id) -> Option<&[Id]> {
        if let Node::List(items) = &self.nodes[id] {
            Some(items)
        } else {
            None
        }
    }

    /// The callee and the arguments of a call.
    pub(super) fn call(&self, id: Id) -> Option<(&str, &[Id])> {
        let Node::Call(callable, arguments) = self.nodes[id] else { return None };
        Some((self.global(callable)?, self.tuple(arguments)?))
    }

    /// The items of a dict whose keys are strings.
    pub(super) fn dict(&self, id: Id) -> impl Iterator<Item = (&str, Id)> {
        let items = if let Node::Dict(items) = &self.nodes[id] { items.as_slice() } else { &[] };
        items.iter().filter_map(|(key, value)| Some((self.text(*key)?, *value)))
    }
}

/// The stack machine that executes a pickle.
struct Machine<R> {
    reader: R,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    /// Stack heights at the marks that the program set.
    marks: Vec<usize>,
    memo: HashMap<usize, Id>,
}

impl<R: BufRead> Machine<R> {
    /// Executes one instruction. Returns false after the last.
    ///
    /// The opcodes are the binary ones of CPython's `pickletools`, up to protocol 5.
    fn step(&mut self) -> Result<bool, Flaw> {
        let [instruction] = self.bytes()?;
        match instruction {
            // PROTO and FRAME
            0x80 => drop(self.bytes::<1>()?),
            0x95 => drop(self.bytes::<8>()?),
            // MARK, STOP, POP, POP_MARK, DUP
            b'(' => self.marks.push(self.stack.len()),
            b'.' => return Ok(false),
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            b'2' => self.stack.push(self.top()?),

            // NONE, NEWTRUE, NEWFALSE
            b'N' => self.push(Node::Opaque),
            0x88 => self.push(Node::Bool(true)),
            0x89 => self.push(Node::Bool(false)),
            // BININT1, BININT2, BININT, LONG1, LONG4, BINFLOAT
            b'K' | b'M' | b'J' | 0x8A | 0x8B => {
                let int = self.int(instruction)?;
                self.push(int.map_or(Node::Opaque, Node::Int));
            }
            b'G' => {
                self.bytes::<8>()?;
                self.push(Node::Opaque);
            }
            // BINUNICODE in three sizes, BINSTRING in two
            b'X' | 0x8C | 0x8D | b'T' | b'U' => {
                let length = self.length(instruction)?;
                let text = String::from_utf8(self.data(length)?);
                // Python 2 used this type for bytes too, so the data may not be UTF-8.
                self.push(text.map_or(Node::Opaque, Node::Text));
            }
            // BINBYTES in three sizes, BYTEARRAY8
            b'B' | b'C' | 0x8E | 0x96 => {
                let length = self.length(instruction)?;
                self.data(length)?;
                self.push(Node::Opaque);
            }

            // Tuples: empty, from the mark, of one, two and three
            b')' => self.push(Node::Tuple(vec![])),
            b't' => {
                let items = self.pop_mark()?;
                self.push(Node::Tuple(items));
            }
            0x85..=0x87 => {
                let mut items: Vec<Id> = (0x85..=instruction).map(|_| self.pop()).collect::<Result<_, _>>()?;
                items.reverse();
                self.push(Node::Tuple(items));
            }
            // Lists, sets and frozen sets: empty, from the mark, append items
            b']' | 0x8F => self.push(Node::List(vec![])),
            b'l' | 0x91 => {
                let items = self.pop_mark()?;
                self.push(Node::List(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            // Dicts: empty, from the mark, add items
            b'}' => self.push(Node::Dict(vec![])),
            b'd' => {
                let items = pairs(&self.pop_mark()?)?;
                self.push(Node::Dict(items));
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.set_items(vec![(key, value)])?;
            }
            b'u' => {
                let items = pairs(&self.pop_mark()?)?;
                self.set_items(items)?;
            }

            // BINPUT, LONG_BINPUT, MEMOIZE, BINGET, LONG_BINGET
            b'q' | b'r' | 0x94 => {
                let place = if instruction == 0x94 { self.memo.len() } else { self.length(instruction)? as usize };
                self.memo.insert(place, self.top()?);
            }
            b'h' | b'j' => {
                let place = self.length(instruction)? as usize;
                let id = self.memo.get(&place).ok_or("its pickle reads a memo entry that it never stored")?;
                self.stack.push(*id);
            }

            // GLOBAL, STACK_GLOBAL
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push(Node::Global(format!("{module}.{name}")));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Node::Text(module), Node::Text(name)) = (&self.nodes[module], &self.nodes[name]) else {
                    return Err("its pickle names a class by a value that is not a string".into());
                };
                self.push(Node::Global(format!("{module}.{name}")));
            }
            // REDUCE, NEWOBJ, NEWOBJ_EX, BUILD, BINPERSID
            b'R' | 0x81 => {
                let (arguments, callable) = (self.pop()?, self.pop()?);
                self.call(callable, arguments);
            }
            0x92 => {
                let (_keywords, arguments, callable) = (self.pop()?, self.pop()?, self.pop()?);
                self.call(callable, arguments);
            }
            // BUILD sets an object's attributes. Attributes of a dict are not among its items, so they are dropped.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let description = self.pop()?;
                self.push(Node::Persistent(description));
            }
            other => return Err(format!("its pickle has an unknown instruction, {other:#04x}").into()),
        }
        Ok(true)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads the next `length` bytes. Memory grows only with the bytes that exist.
    fn data(&mut self, length: u64) -> Result<Vec<u8>, Flaw> {
        let mut data = Vec::new();
        (&mut self.reader).take(length).read_to_end(&mut data)?;
        if data.len() as u64 == length {
            Ok(data)
        } else {
            Err("its pickle ends too early".into())
        }
    }

    fn line(&mut self) -> Result<String, Flaw> {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Err("its pickle ends too early".into());
        }
        String::from_utf8(line).map_err(|_| "its pickle names a class by a value that is not a string".into())
    }

    /// Reads the unsigned argument of an instruction for strings, bytes or the memo.
    fn length(&mut self, instruction: u8) -> Result<u64, Flaw> {
        Ok(match instruction {
            b'U' | b'C' | 0x8C | b'q' | b'h' => u64::from(self.bytes::<1>()?[0]),
            b'X' | b'B' | b'T' | b'r' | b'j' => u64::from(u32::from_le_bytes(self.bytes()?)),
            _ => u64::from_le_bytes(self.bytes()?),
        })
    }

    /// Reads an instruction's integer; `None` if it does not fit 64 bits.
    fn int(&mut self, instruction: u8) -> Result<Option<i64>, Flaw> {
        let length = match instruction {
            b'K' => return Ok(Some(i64::from(self.bytes::<1>()?[0]))),
            b'M' => return Ok(Some(i64::from(u16::from_le_bytes(self.bytes()?)))),
            b'J' => return Ok(Some(i64::from(i32::from_le_bytes(self.bytes()?)))),
            0x8A => u64::from(self.bytes::<1>()?[0]),
            _ => u64::from(u32::from_le_bytes(self.bytes()?)),
        };
        let data = self.data(length)?;
        if data.len() > 8 {
            return Ok(None);
        }
        let sign = if data.last().is_some_and(|last| *last >= 0x80) { 0xFF } else { 0 };
        let mut bytes = [sign; 8];
        bytes[..data.len()].copy_from_slice(&data);
        Ok(Some(i64::from_le_bytes(bytes)))
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.nodes.len());
        self.nodes.push(node);
    }

    fn top(&self) -> Result<Id, Flaw> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        self.stack
            .get(bottom..)
            .and_then(<[Id]>::last)
            .copied()
            .ok_or_else(|| "its pickle pops a value that is not there".into())
    }

    fn pop(&mut self) -> Result<Id, Flaw> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Pops all values above the last mark, and the mark.
    fn pop_mark(&mut self) -> Result<Vec<Id>, Flaw> {
        let mark = self.marks.pop().ok_or("its pickle pops a value that is not there")?;
        Ok(self.stack.split_off(mark))
    }

    fn append(&mut self, items: Vec<Id>) -> Result<(), Flaw> {
        let list = self.top()?;
        match &mut self.nodes[list] {
            Node::List(list) => list.extend(items),
            // The effect of appending to an object of an unknown class is unknown too.
            Node::Call(..) => {}
            _ => return Err("its pickle appends to a value that is not a list".into()),
        }
        Ok(())
    }

    fn set_items(&mut self, items: Vec<(Id, Id)>) -> Result<(), Flaw> {
        let dict = self.top()?;
        match &mut self.nodes[dict] {
            Node::Dict(dict) => dict.extend(items),
            Node::Call(..) => {}
            _ => return Err("its pickle sets items of a value that is not a dict".into()),
        }
        Ok(())
    }

    fn call(&mut self, callable: Id, arguments: Id) {
        let dict = match &self.nodes[callable] {
            Node::Global(name) => name == "collections.OrderedDict" || name == "collections.defaultdict",
            _ => false,
        };
        self.push(if dict { Node::Dict(vec![]) } else { Node::Call(callable, arguments) });
    }
}

fn pairs(items: &[Id]) -> Result<Vec<(Id, Id)>, Flaw> {
    if !items.len().is_multiple_of(2) {
        return Err("its pickle has a key without a value".into());
    }
    Ok(items.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}
