//! Compiles kernels at run time, with NVRTC.

use std::collections::VecDeque;
use std::fmt::Write;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, LazyLock, Weak};
use std::thread::Builder;

use candle::CudaDevice;
use hashbrown::HashMap;
use opara_kernels::{ptx, CHAIN};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::capabilities::Target;
use super::module::{Compiled, Module};
use crate::cuda::driver::nvrtc::{self, Nvrtc};
use crate::cuda::driver::wrap;
use crate::subscriber::inherited;
use opara_plan::disk_cache;

use crate::Result;

/// Architecture, name and code of a kernel.
type Key = (String, &'static str, String);

/// A compiled kernel, or the reason why there is none: a message of the compiler, or the lack of a compiler.
pub(in crate::cuda) type Attempt = std::result::Result<Compiled, String>;

/// The most modules that are compiled side by side. Each compiles the common header first, which NVRTC does for one module at a time
/// (50 to 80 ms); the driver keeps what comes behind that on disk. 42 kernels take 0.66, 0.54, 0.57 and 0.61 s as 1, 2, 3 and 4 modules,
/// and 0.10, 0.18, 0.24 and 0.31 s where another process has compiled them (NVRTC 13.0, 16 cores).
const MODULES: usize = 2;

/// The most kernels of a module, until there are [`MODULES`].
const KERNELS: usize = 24;

/// Compiled kernels in memory.
static COMPILED: LazyLock<Mutex<Memory>> = LazyLock::new(Mutex::default);

/// Compiled kernels in memory: kernels of live executors, and the most recent ones, since an evicted plan may soon be
/// built again.
#[derive(Default)]
struct Memory {
    known: HashMap<Key, (String, Weak<Module>)>,
    latest: VecDeque<Arc<Module>>,
}

impl Memory {
    /// Maximum bytes of the latest modules; a single module may be larger.
    const LIMIT: usize = 1 << 20;

    fn get(&self, key: &Key) -> Option<Compiled> {
        let (name, module) = self.known.get(key)?;
        Some(Compiled { name: name.clone(), module: module.upgrade()? })
    }

    fn insert(&mut self, key: Key, Compiled { name, module }: &Compiled) {
        self.known.insert(key, (name.clone(), Arc::downgrade(module)));
        if !self.latest.iter().any(|latest| Arc::ptr_eq(latest, module)) {
            self.latest.push_back(module.clone());
        }
    }

    /// Drops the oldest modules beyond the limit, and forgets modules that nothing holds.
    fn trim(&mut self) {
        let mut bytes: usize = self.latest.iter().map(|module| module.code.len()).sum();
        while bytes > Self::LIMIT && self.latest.len() > 1 {
            bytes -= self.latest.pop_front().map_or(0, |module| module.code.len());
        }
        self.known.retain(|_, (_, module)| module.strong_count() > 0);
    }
}

/// Compiles kernels on top of `chain.cuh` for the device, on several threads. If there is a folder, compiled
/// code is stored there for the next start. A kernel is a name, to which a hash is appended, and code, in which it is
/// called `KERNEL`.
///
/// # Errors
/// A failed driver call.
pub(super) fn compile<'a>(
    device: &CudaDevice,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
    folder: Option<&Path>,
) -> Result<Vec<Attempt>> {
    let of = capability(device)?;
    Ok(match nvrtc::nvrtc() {
        Ok(nvrtc) => compile_for(&architecture_for(of, nvrtc), kernels, folder),
        Err(absent) => kernels.map(|_| Err(absent.clone())).collect(),
    })
}

/// Loads NVRTC and compiles the common header alone, for a device of this capability. The first compilation of a process takes 0.1 to
/// 0.2 s more than others. It is left out if there is no compiler; whoever compiles a kernel is told.
pub(super) fn compile_nothing(capability: i32) {
    let compiled = nvrtc::nvrtc().and_then(|nvrtc| assembled(&architecture_for(capability, nvrtc), CHAIN, None));
    if let Err(reason) = compiled {
        tracing::debug!(reason, "nothing was compiled ahead");
    }
}

/// The device's compute capability: 90 is 9.0.
///
/// # Errors
/// A failed driver call.
pub(super) fn capability(device: &CudaDevice) -> Result<i32> {
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(wrap("cuDeviceGetAttribute"))?;
    Ok(major * 10 + minor)
}

/// The architecture to compile for, on a device of this capability.
fn architecture_for(capability: i32, nvrtc: &Nvrtc) -> String {
    let built_for = Target::of(ptx::WAIT).map_or(capability, |target| target.number() as i32);
    architecture(capability, built_for, &nvrtc.architectures())
}

/// The NVRTC architecture to compile for: the device's, or, for a device newer than the compiler, the compiler's newest one as
/// PTX, which the driver assembles. If candle's kernels were built for an architecture without bf16 arithmetic, PTX for that
/// one: native bf16 instructions round differently from the emulation that candle then uses.
fn architecture(device: i32, built_for: i32, known: &[i32]) -> String {
    /// The first architecture with instructions that add and multiply bf16.
    const BF16: i32 = 90;
    if built_for < BF16 && BF16 <= device && known.contains(&built_for) {
        return format!("compute_{built_for}");
    }
    match known.iter().filter(|&&known| known <= device).max() {
        Some(older) if *older < device => format!("compute_{older}"),
        _ => format!("sm_{device}"),
    }
}

/// The same for an architecture in NVRTC's notation.
pub(in crate::cuda) fn compile_for<'a>(
    architecture: &str,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
    folder: Option<&Path>,
) -> Vec<Attempt> {
    let keys: Vec<Key> = kernels.map(|(name, code)| (architecture.into(), name, code.into())).collect();
    let mut attempts: HashMap<&Key, Attempt> = {
        let compiled = COMPILED.lock();
        keys.iter().filter_map(|key| Some((key, Ok(compiled.get(key)?)))).collect()
    };
    let mut missing: Vec<&Key> = keys.iter().filter(|key| !attempts.contains_key(*key)).collect();
    missing.sort_unstable();
    missing.dedup();
    let modules = missing.len().div_ceil(KERNELS).min(MODULES).min(threads());
    // In turn: kernels with similar names take similar time.
    let of_module = |module: usize| missing.iter().copied().skip(module).step_by(modules).collect::<Vec<_>>();
    let of_modules: Vec<Vec<&Key>> = (0..modules).map(of_module).collect();
    let of_modules: Vec<&[&Key]> = of_modules.iter().map(Vec::as_slice).collect();
    let new = side_by_side(&of_modules, |kernels| compile_modules(architecture, kernels, folder));
    let mut compiled = COMPILED.lock();
    for (key, attempt) in new {
        if let Ok(kernel) = &attempt {
            compiled.insert(key.clone(), kernel);
        }
        attempts.insert(key, attempt);
    }
    compiled.trim();
    keys.iter().map(|key| attempts[key].clone()).collect()
}

/// The threads that may compile at a time.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// The results of a function, in order, the last one on this thread and the others on a thread each. The threads are its own, since all of
/// rayon's may wait for this compilation.
fn side_by_side<T: Copy + Send, R: Send>(of: &[T], f: impl Fn(T) -> Vec<R> + Sync) -> Vec<R> {
    let Some((&last, others)) = of.split_last() else { return Vec::new() };
    let f = &f;
    std::thread::scope(|scope| {
        let start = |&of: &T| {
            let work = inherited(move || f(of));
            (of, Builder::new().name("opara compiler".into()).spawn_scoped(scope, work))
        };
        let started: Vec<_> = others.iter().map(start).collect();
        let of_last = f(last);
        let results = started.into_iter().flat_map(|(of, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // The system starts no more threads.
            Err(_) => f(of),
        });
        results.chain(of_last).collect()
    })
}

/// Compiles kernels as one module. If the compiler refuses that, compiles each half by itself, so that one bad kernel does
/// not affect the others.
fn compile_modules<'a>(architecture: &str, kernels: &[&'a Key], folder: Option<&Path>) -> Vec<(&'a Key, Attempt)> {
    match (module(architecture, kernels, folder), kernels) {
        (Ok(compiled), _) => kernels.iter().copied().zip(compiled.into_iter().map(Ok)).collect(),
        (Err(refused), [key]) => vec![(key, Err(refused))],
        (Err(_), _) => {
            let (first, second) = kernels.split_at(kernels.len() / 2);
            side_by_side(&[first, second], |half| compile_modules(architecture, half, folder))
        }
    }
}

fn module(architecture: &str, kernels: &[&Key], folder: Option<&Path>) -> std::result::Result<Vec<Compiled>, String> {
    let mut source = String::from(CHAIN);
    let mut names = Vec::new();
    for (_, name, code) in kernels {
        let name = format!("{name}_{:032x}", xxh3_128(code.as_bytes()));
        // Writing to a string does not fail.
        let _ = writeln!(source, "#define KERNEL {name}\n{code}\n#undef KERNEL");
        names.push(name);
    }
    let module = Arc::new(Module::new(assembled(architecture, &source, folder)?));
    Ok(names.into_iter().map(|name| Compiled { name, module: module.clone() }).collect())
}

/// The code of a source, from the folder if it is stored there.
fn assembled(architecture: &str, source: &str, folder: Option<&Path>) -> std::result::Result<Vec<u8>, String> {
    let nvrtc = nvrtc::nvrtc()?;
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let file = folder.map(|folder| {
        let (major, minor) = nvrtc.version();
        let key = format!("NVRTC {major}.{minor}\n{}\n{source}", options.join(" "));
        folder.join(format!("{:032x}.cubin", xxh3_128(key.as_bytes())))
    });
    if let Some(code) = file.as_ref().and_then(|file| read_checked(file)) {
        return Ok(code);
    }
    if nvrtc.version().0 >= 13 {
        // What follows changes no code. NVRTC 12.4 takes the second option and complains. Textures and the like are not declared, and the
        // kernels of a module are optimised by several threads.
        options.push("--minimal".into());
        options.push(format!("--split-compile={}", threads().div_ceil(MODULES)));
    }
    let refused = |message| format!("a kernel could not be compiled for {architecture}: {message}");
    let code = nvrtc.code(source, &options).map_err(refused)?;
    if let Some(file) = file {
        disk_cache::store(&file, &[&sum(&code), &code[..]].concat());
    }
    Ok(code)
}

/// The code in a file, if its checksum is right. The driver trusts code, so a damaged file is reported and compiled
/// again.
fn read_checked(file: &Path) -> Option<Vec<u8>> {
    let bytes = disk_cache::read(file)?;
    let code = bytes.split_first_chunk().filter(|(of, code)| **of == sum(code)).map(|(_, code)| code.to_vec());
    if code.is_none() {
        tracing::warn!(file = %file.display(), "a file of compiled kernels is damaged: compiling again");
    }
    code
}

fn sum(code: &[u8]) -> [u8; 16] {
    xxh3_128(code).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use anyhow::Error;

    use super::*;

    const SOURCE: &str = r#"extern "C" __global__ void nothing() {}"#;

    /// Needs NVRTC, but no GPU.
    #[test]
    fn a_device_newer_than_the_compiler_gets_ptx() -> anyhow::Result<()> {
        assert_eq!(architecture(90, 90, &[75, 80, 90, 100]), "sm_90");
        assert_eq!(architecture(103, 90, &[75, 80, 90, 100]), "compute_100");
        assert_eq!(architecture(70, 70, &[75, 80, 90, 100]), "sm_70", "the compiler will refuse it");
        assert_eq!(architecture(90, 80, &[75, 80, 90, 100]), "compute_80", "as candle's kernels");
        assert_eq!(architecture(86, 80, &[75, 80, 86, 90]), "sm_86");
        let known = nvrtc::nvrtc().map_err(Error::msg)?.architectures();
        assert!(known.contains(&80) && known.is_sorted(), "{known:?}");
        let (newest, newer) = (known[known.len() - 1], known[known.len() - 1] + 1);
        let ptx = String::from_utf8(assembled(&architecture(newer, newer, &known), SOURCE, None).map_err(Error::msg)?)?;
        assert!(ptx.contains(&format!(".target sm_{newest}")) && ptx.ends_with('\0'), "{ptx}");
        assert!(assembled(&architecture(newest, newest, &known), SOURCE, None)
            .map_err(Error::msg)?
            .starts_with(b"\x7fELF"));
        Ok(())
    }

    /// Needs NVRTC, but no GPU.
    #[test]
    fn stored_code_is_reused_unless_it_is_damaged() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let assembled = |architecture: &str, source: &str, folder: Option<&Path>| {
            assembled(architecture, source, folder).map_err(Error::msg)
        };
        let inside = folder.path().join("new");
        let compiled = assembled("sm_80", SOURCE, Some(&inside))?;
        assert_eq!(compiled, assembled("sm_80", SOURCE, None)?);
        let files = || std::fs::read_dir(&inside)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        let [file] = &files()?[..] else { anyhow::bail!("{:?}", files()) };
        // Other code in the file shows that the file is read.
        std::fs::write(file, [&sum(b"else")[..], b"else"].concat())?;
        assert_eq!(assembled("sm_80", SOURCE, Some(&inside))?, b"else");
        for damaged in [&b"else"[..], b"", &[0; 100]] {
            std::fs::write(file, damaged)?;
            assert_eq!(assembled("sm_80", SOURCE, Some(&inside))?, compiled);
            assert_eq!(read_checked(file).as_ref(), Some(&compiled));
        }
        // Another architecture or another source gets another file.
        assembled("sm_90", SOURCE, Some(&inside))?;
        assembled("sm_80", &SOURCE.replace("nothing", "nothing_else"), Some(&inside))?;
        assert_eq!(files()?.len(), 3);
        // If nothing can be stored, everything is compiled.
        assert_eq!(assembled("sm_80", SOURCE, Some(&file.join("no folder")))?, compiled);
        Ok(())
    }
    /// Needs NVRTC, but no GPU.
    #[test]
    fn one_kernel_that_is_refused_leaves_the_others() {
        let right = |i: u32| format!("extern \"C\" __global__ void KERNEL(int *x) {{ *x = {i}; }}");
        let codes = [right(1), "nonsense".into(), right(2), right(1)];
        let attempts = compile_for("sm_86", codes.iter().map(|code| ("opara_test", code.as_str())), None);
        let names: Vec<Option<&str>> =
            attempts.iter().map(|attempt| attempt.as_ref().ok().map(|kernel| kernel.name.as_str())).collect();
        assert!(names[0].is_some() && names[1].is_none() && names[2].is_some() && names[0] == names[3], "{names:?}");
        let message = attempts[1].as_ref().err().unwrap();
        assert!(message.contains("could not be compiled for sm_86") && message.contains("nonsense"), "{message}");
    }

    #[test]
    fn results_come_in_order_and_panics_reach_the_caller() {
        let tens = |of: usize| (0..of).map(|at| 10 * of + at).collect::<Vec<_>>();
        assert_eq!(side_by_side(&[3, 0, 2], tens), [30, 31, 32, 20, 21]);
        assert!(side_by_side(&[], tens).is_empty());
        let panics = |of: usize| if of == 3 { panic!("three") } else { vec![of] };
        for of in [[3, 1], [1, 3]] {
            let panic = std::panic::catch_unwind(|| side_by_side(&of, panics)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"three"));
        }
    }

    fn of_bytes(name: &str, bytes: usize) -> (Key, Compiled) {
        let module = Arc::new(Module::new(vec![0; bytes]));
        (("sm_90".into(), "test", name.into()), Compiled { name: name.into(), module })
    }

    #[test]
    fn kernels_that_no_executor_holds_are_evicted() {
        let mut memory = Memory::default();
        let (held_key, held) = of_bytes("held", 1 << 20);
        memory.insert(held_key.clone(), &held);
        for i in 0..1000 {
            let (key, compiled) = of_bytes(&i.to_string(), 1 << 20);
            memory.insert(key, &compiled);
            drop(compiled);
            memory.trim();
            assert!(memory.latest.len() <= 16 && memory.known.len() <= 17, "after {i}");
        }
        // Kernels that an executor holds are found however old they are; so is the latest kernel.
        assert!(memory.get(&held_key).is_some_and(|found| Arc::ptr_eq(&found.module, &held.module)));
        assert!(memory.get(&("sm_90".into(), "test", "999".into())).is_some());
        assert!(memory.get(&("sm_90".into(), "test", "3".into())).is_none());
        drop(held);
        memory.trim();
        assert!(memory.get(&held_key).is_none());
        // A module larger than the limit stays until the next one comes.
        let (key, large) = of_bytes("large", Memory::LIMIT + 1);
        memory.insert(key.clone(), &large);
        drop(large);
        memory.trim();
        assert!(memory.get(&key).is_some() && memory.latest.len() == 1);
    }
}
