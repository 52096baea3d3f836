//! cuRAND. Drawing inside a capture is refused, since a replay would draw the same numbers again, or in another order.

use std::ffi::{c_uint, c_ulonglong};

use cudarc::curand::sys::{curandGenerator_t, curandRngType_t, curandStatus_t};
use hashbrown::HashSet;
use parking_lot::Mutex;

use super::ongoing::between_captures;
use super::thread_capture::refuses_to_draw;

const MISSING: curandStatus_t = curandStatus_t::CURAND_STATUS_INITIALIZATION_FAILED;
const REFUSED: curandStatus_t = curandStatus_t::CURAND_STATUS_LAUNCH_FAILURE;

/// Generators that have drawn numbers. The first draw of a generator waits for the whole device.
static DRAWN: Mutex<Option<HashSet<usize>>> = Mutex::new(None);

/// Draws numbers; the first draw of a generator happens between captures.
fn draw(generator: curandGenerator_t, run: impl FnOnce() -> curandStatus_t) -> curandStatus_t {
    if DRAWN.lock().get_or_insert_default().contains(&(generator as usize)) {
        return run();
    }
    let status = between_captures(run);
    DRAWN.lock().get_or_insert_default().insert(generator as usize);
    status
}

/// Defines functions that draw.
macro_rules! draws {
    ($(fn $name:ident($($argument:ident: $type:ty),*);)*) => {$(
        super::interpose! {
            /// Draws numbers; refused inside a capture.
            fn $name(generator: curandGenerator_t, $($argument: $type),*) -> curandStatus_t, missing MISSING;
            |next| {
                if refuses_to_draw() {
                    return REFUSED;
                }
                // SAFETY: the arguments are the caller's.
                draw(generator, || unsafe { next(generator, $($argument),*) })
            }
        }
    )*};
}

draws! {
    fn curandGenerate(target: *mut c_uint, count: usize);
    fn curandGenerateLongLong(target: *mut c_ulonglong, count: usize);
    fn curandGenerateUniform(target: *mut f32, count: usize);
    fn curandGenerateUniformDouble(target: *mut f64, count: usize);
    fn curandGenerateNormal(target: *mut f32, count: usize, mean: f32, deviation: f32);
    fn curandGenerateNormalDouble(target: *mut f64, count: usize, mean: f64, deviation: f64);
    fn curandGenerateLogNormal(target: *mut f32, count: usize, mean: f32, deviation: f32);
    fn curandGenerateLogNormalDouble(target: *mut f64, count: usize, mean: f64, deviation: f64);
    fn curandGeneratePoisson(target: *mut c_uint, count: usize, lambda: f64);
}

super::interpose! {
    /// Creates a generator; this waits for the whole device.
    fn curandCreateGenerator(generator: *mut curandGenerator_t, kind: curandRngType_t) -> curandStatus_t,
    missing MISSING;
    |next| {
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(generator, kind) })
    }
}

super::interpose! {
    /// Destroys a generator; this waits for the whole device.
    fn curandDestroyGenerator(generator: curandGenerator_t) -> curandStatus_t, missing MISSING, probed MISSING;
    |next| {
        DRAWN.lock().get_or_insert_default().remove(&(generator as usize));
        // SAFETY: the arguments are the caller's.
        between_captures(|| unsafe { next(generator) })
    }
}
