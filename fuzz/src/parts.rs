//! An input of several files: before each stands a line of two percent signs and a letter.

/// The parts of an input with their letters. What stands before the first mark has the letter `a`.
pub fn split(bytes: &[u8]) -> Vec<(u8, &[u8])> {
    let mut parts = Vec::new();
    let (mut letter, mut start, mut at) = (b'a', 0, 0);
    while at + 4 <= bytes.len() {
        if let [b'%', b'%', next, b'\n'] = bytes[at..at + 4] {
            if at > 0 {
                // The line break before a mark belongs to it.
                let end = if at > start && bytes[at - 1] == b'\n' { at - 1 } else { at };
                parts.push((letter, &bytes[start..end]));
            }
            (letter, start, at) = (next, at + 4, at + 4);
        } else {
            at += 1;
        }
    }
    parts.push((letter, &bytes[start..]));
    parts
}

/// The last part of this letter.
pub fn part<'a>(parts: &[(u8, &'a [u8])], letter: u8) -> Option<&'a [u8]> {
    parts.iter().rev().find(|(of, _)| *of == letter).map(|(_, part)| *part)
}

/// The input of which these are the parts.
pub fn join(parts: &[(u8, &[u8])]) -> Vec<u8> {
    let part = |(letter, part): &(u8, &[u8])| [b"%%", &[*letter][..], b"\n", part, b"\n"].concat();
    let mut bytes: Vec<u8> = parts.iter().flat_map(part).collect();
    bytes.pop();
    bytes
}
