//! A kernel's arguments as bytes.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check;
use crate::Result;

/// A kernel's packed argument buffer, with the offset and size of each argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Arguments {
    /// Padded to a multiple of 8 bytes.
    bytes: Vec<u8>,
    /// Offset and size of each argument.
    places: Arc<[(usize, usize)]>,
    /// Did the launch pass one packed buffer (`extra`) instead of a pointer per argument? Hopper's `nvjet` GEMMs do.
    packed: bool,
}

impl Arguments {
    /// Copies the arguments of a kernel node.
    ///
    /// # Safety
    /// `params` must come from the driver, for a node that still exists, and `places` must belong to its kernel.
    pub(super) unsafe fn read(places: Arc<[(usize, usize)]>, params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<Self> {
        let end = places.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
        let packed = params.kernelParams.is_null() && !params.extra.is_null();
        let mut bytes = vec![0u8; end.next_multiple_of(8)];
        if packed {
            // SAFETY: `extra` is the driver's list of key, value, ..., end; the keys name a buffer and its size.
            let (buffer, size) = unsafe { packed_buffer(params.extra) };
            let length = size.min(end);
            // SAFETY: the buffer holds `size` bytes, and `bytes` at least `end`.
            unsafe { std::ptr::copy_nonoverlapping(buffer, bytes.as_mut_ptr(), length) };
        } else if !params.kernelParams.is_null() {
            for (i, &(offset, size)) in places.iter().enumerate() {
                // SAFETY: `kernelParams` holds a pointer per argument, each to as many bytes as the driver reports for
                // the argument; `bytes` reaches past the last one.
                unsafe {
                    let argument = *params.kernelParams.add(i);
                    std::ptr::copy_nonoverlapping(argument.cast::<u8>(), bytes.as_mut_ptr().add(offset), size);
                }
            }
        }
        Ok(Self { bytes, places, packed })
    }

    /// Arguments of 8 bytes each, for tests.
    #[cfg(test)]
    pub fn from_words(words: &[u64]) -> Self {
        let bytes = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        Self { bytes, places: (0..words.len()).map(|i| (i * 8, 8)).collect(), packed: false }
    }

    /// One structure of these words, for tests.
    #[cfg(test)]
    pub fn of_structure(words: &[u64]) -> Self {
        Self { places: Arc::new([(0, words.len() * 8)]), ..Self::from_words(words) }
    }

    /// Arguments of these sizes in bytes, whose words all are `word`, for tests.
    #[cfg(test)]
    pub fn of_sizes(sizes: &[usize], word: u64) -> Self {
        let starts = sizes.iter().scan(0, |past, size| Some(std::mem::replace(past, *past + size.next_multiple_of(8))));
        let places: Arc<[_]> = starts.zip(sizes.iter().copied()).collect();
        let words = places.iter().map(|(_, size)| size.div_ceil(8)).sum();
        Self { places, ..Self::from_words(&vec![word; words]) }
    }

    /// Shortens an argument to `bytes` bytes, for tests.
    #[cfg(test)]
    pub fn cut(&mut self, index: usize, bytes: usize) {
        self.places = self
            .places
            .iter()
            .enumerate()
            .map(|(i, &(at, size))| (at, if i == index { bytes } else { size }))
            .collect();
    }

    /// Every aligned 8-byte word with its offset. Pointers are such words, also inside structures.
    pub fn words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.bytes.chunks_exact(8).enumerate().map(|(i, w)| (i * 8, word(w)))
    }

    /// The words that may be pointers: those inside of one argument. Two numbers of four bytes beside each other are none, although
    /// together they may look like an address of a device with tens of gigabytes in use.
    pub fn pointer_words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let is_inside =
            |offset: usize| move |&(start, size): &(usize, usize)| start <= offset && offset + 8 <= start + size;
        self.words().filter(move |&(offset, _)| self.places.iter().any(is_inside(offset)))
    }

    /// The number of arguments.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The offset and the bytes of an argument.
    pub fn argument(&self, index: usize) -> Option<(usize, &[u8])> {
        let &(offset, size) = self.places.get(index)?;
        Some((offset, self.bytes.get(offset..offset + size)?))
    }

    /// The argument as an unsigned integer of 4 or 8 bytes.
    pub fn integer(&self, index: usize) -> Option<u64> {
        let (_, bytes) = self.argument(index)?;
        match bytes.len() {
            8 => Some(word(bytes)),
            4 => Some(u64::from(word(&[bytes, &[0; 4]].concat()) as u32)),
            _ => None,
        }
    }

    /// The index of the argument that contains the word at an offset. The words of a structure that is the only argument count as
    /// arguments.
    pub fn argument_at(&self, offset: usize) -> Option<usize> {
        if let [(start, size @ 9..)] = self.places[..] {
            return (start..start + size).contains(&offset).then(|| (offset - start) / 8);
        }
        self.places.iter().position(|&(start, size)| (start..start + size).contains(&offset))
    }

    /// Overwrites the word at an offset from [`words`](Self::words).
    pub(super) fn set_word(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Overwrites the bytes at an offset.
    pub(super) fn set_bytes(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Calls `f` with the launch fields `kernelParams` and `extra`; the pointers are valid during the call.
    pub(super) fn with_raw<T>(&mut self, f: impl FnOnce(*mut *mut c_void, *mut *mut c_void) -> T) -> T {
        let base = self.bytes.as_mut_ptr();
        if self.packed {
            let mut size = self.places.iter().map(|(offset, size)| offset + size).max().unwrap_or(0);
            let mut extra: [*mut c_void; 5] = [
                sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT as usize as *mut c_void,
                base.cast(),
                sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT as usize as *mut c_void,
                (&raw mut size).cast(),
                sys::CU_LAUNCH_PARAM_END_AS_INT as usize as *mut c_void,
            ];
            return f(std::ptr::null_mut(), extra.as_mut_ptr());
        }
        let mut pointers: Vec<*mut c_void> =
            self.places.iter().map(|&(offset, _)| base.wrapping_add(offset).cast()).collect();
        f(pointers.as_mut_ptr(), std::ptr::null_mut())
    }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_ne_bytes(word)
}

/// Offset and size of each argument of a kernel.
///
/// # Safety
/// `function` must be a loaded kernel.
pub(super) unsafe fn places(function: sys::CUfunction) -> Result<Vec<(usize, usize)>> {
    let mut places = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the out-pointers are valid; the driver rejects an index past the last argument, which ends the loop.
        let status = unsafe { sys::cuFuncGetParamInfo(function, places.len(), &mut offset, &mut size) };
        if status == sys::CUresult::CUDA_ERROR_INVALID_VALUE {
            return Ok(places);
        }
        check("cuFuncGetParamInfo", status)?;
        places.push((offset, size));
    }
}

/// The address and size of the buffer in a launch's `extra` list.
///
/// # Safety
/// `extra` must be a list from the driver or from a launch, terminated by the end key.
unsafe fn packed_buffer(extra: *mut *mut c_void) -> (*const u8, usize) {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    for i in (0..).step_by(2) {
        // SAFETY: the loop stops at the end key, which exists by the caller's promise.
        let (key, value) = unsafe { (*extra.add(i) as usize as u32, extra.add(i + 1)) };
        match key {
            // SAFETY: a value follows each of the two keys; the value of the size key is a pointer to the size.
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => buffer = unsafe { *value }.cast(),
            // SAFETY: as above.
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => size = unsafe { *(*value).cast::<usize>() },
            _ => break,
        }
    }
    (buffer, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_short_numbers_are_no_pointer() {
        let words = [0x8_0000_0500, 0x3_0200_0000, 7];
        let mut arguments = Arguments::from_words(&words);
        assert_eq!(arguments.pointer_words().map(|(_, word)| word).collect::<Vec<_>>(), words);
        // The first word is two arguments of four bytes each, the last one's upper half is padding.
        arguments.places = [(0, 4), (4, 4), (8, 8), (16, 4)].into();
        assert_eq!(arguments.pointer_words().collect::<Vec<_>>(), [(8, words[1])]);
        assert_eq!(arguments.words().count(), 3);
        // A structure may hold pointers at any of its words.
        arguments.places = [(0, 24)].into();
        assert_eq!(arguments.pointer_words().count(), 3);
    }
}
