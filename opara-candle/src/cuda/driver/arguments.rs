//! A kernel's arguments as bytes.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check;
use crate::Result;

/// The packed argument buffer of a kernel, with the offset of each argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cuda) struct Arguments {
    /// Padded to whole words.
    bytes: Vec<u8>,
    /// Offset and size of each argument.
    places: Arc<[(usize, usize)]>,
    /// Whether the launch handed over one packed buffer (`extra`) instead of a pointer for each argument. Hopper's
    /// `nvjet` products do.
    packed: bool,
}

impl Arguments {
    /// Copies the arguments of a kernel node.
    ///
    /// # Safety
    /// `params` must be what the driver returned for a node that still exists, and `places` those of its kernel.
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
                // SAFETY: `kernelParams` holds a pointer for each argument, to as many bytes as the driver says that
                // the argument has; `bytes` reaches past the last one.
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

    /// Lets an argument be so many bytes, for tests.
    #[cfg(test)]
    pub fn cut(&mut self, index: usize, bytes: usize) {
        self.places = self
            .places
            .iter()
            .enumerate()
            .map(|(i, &(at, size))| (at, if i == index { bytes } else { size }))
            .collect();
    }

    /// Every aligned 8-byte word with its offset: where pointers stand, alone or inside a structure.
    pub fn words(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.bytes.chunks_exact(8).enumerate().map(|(i, w)| (i * 8, word(w)))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// The bytes of an argument, and where they begin.
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

    /// Which argument the word at an offset belongs to.
    pub fn argument_at(&self, offset: usize) -> Option<usize> {
        self.places.iter().position(|&(start, size)| (start..start + size).contains(&offset))
    }

    /// Overwrites the word at an offset that [`words`](Self::words) gave.
    pub(super) fn set_word(&mut self, offset: usize, value: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
    }

    /// Calls `f` with the two argument fields of a launch; they are valid during the call.
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
/// `function` must exist.
pub(super) unsafe fn places(function: sys::CUfunction) -> Result<Vec<(usize, usize)>> {
    let mut places = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: out-pointers are valid; an index past the last argument is refused, which ends the loop.
        let status = unsafe { sys::cuFuncGetParamInfo(function, places.len(), &mut offset, &mut size) };
        if status == sys::CUresult::CUDA_ERROR_INVALID_VALUE {
            return Ok(places);
        }
        check("cuFuncGetParamInfo", status)?;
        places.push((offset, size));
    }
}

/// Address and size in a launch's `extra` list.
///
/// # Safety
/// `extra` must be a list that the driver or a launch gave, ended by its end key.
unsafe fn packed_buffer(extra: *mut *mut c_void) -> (*const u8, usize) {
    let (mut buffer, mut size) = (std::ptr::null(), 0);
    for i in (0..).step_by(2) {
        // SAFETY: the list goes on until its end key, which the caller vouches for.
        let (key, value) = unsafe { (*extra.add(i) as usize as u32, extra.add(i + 1)) };
        match key {
            // SAFETY: a value follows each of the two keys; that of the size is a pointer to it.
            sys::CU_LAUNCH_PARAM_BUFFER_POINTER_AS_INT => buffer = unsafe { *value }.cast(),
            // SAFETY: as above.
            sys::CU_LAUNCH_PARAM_BUFFER_SIZE_AS_INT => size = unsafe { *(*value).cast::<usize>() },
            _ => break,
        }
    }
    (buffer, size)
}
