//! Kernels compiled at run time, by NVRTC.

use std::fmt::Write;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use candle::CudaDevice;
use hashbrown::HashMap;
use parking_lot::Mutex;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::module::{Compiled, Module};
use crate::cuda::driver::{nvrtc, wrap};
use crate::{kept, Error, Result};

/// `chain.cuh` with all that it includes, CUDA's headers of 16-bit types, too: where a program runs there may be none.
const LIBRARY: &str = include_str!(concat!(env!("OUT_DIR"), "/chain.cuh"));

/// Architecture, and the kernel's name and code.
type Key = (String, &'static str, String);

/// All that this process has compiled.
static COMPILED: LazyLock<Mutex<HashMap<Key, Compiled>>> = LazyLock::new(Mutex::default);

/// Compiles kernels on top of `chain.cuh` for the device, by all threads of the pool, and each once in this process; what is
/// compiled is kept in the folder, if there is one, for the next. A kernel is its name, behind which a hash comes, and its code,
/// which calls it `KERNEL`.
///
/// # Errors
/// What the compiler refuses, such as a device that it is too old for.
pub(super) fn compile<'a>(
    device: &CudaDevice,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
    folder: Option<&Path>,
) -> Result<Vec<Compiled>> {
    let (major, minor) = device.cuda_stream().context().compute_capability().map_err(wrap("cuDeviceGetAttribute"))?;
    compile_for(&architecture(major * 10 + minor, &nvrtc::architectures()), kernels, folder)
}

/// What to compile for: a device, or, for one that is newer than the compiler, the newest architecture that this knows, in
/// PTX, which the driver assembles.
fn architecture(device: i32, known: &[i32]) -> String {
    match known.iter().filter(|&&known| known <= device).max() {
        Some(older) if *older < device => format!("compute_{older}"),
        _ => format!("sm_{device}"),
    }
}

/// The same for an architecture, as NVRTC calls it.
///
/// # Errors
/// What the compiler refuses.
pub(in crate::cuda) fn compile_for<'a>(
    architecture: &str,
    kernels: impl Iterator<Item = (&'static str, &'a str)>,
    folder: Option<&Path>,
) -> Result<Vec<Compiled>> {
    let keys: Vec<Key> = kernels.map(|(name, code)| (architecture.into(), name, code.into())).collect();
    let mut missing: Vec<&Key> = {
        let compiled = COMPILED.lock();
        keys.iter().filter(|key| !compiled.contains_key(*key)).collect()
    };
    missing.sort_unstable();
    missing.dedup();
    // Most of the time of few goes into what they have in common.
    let of_a_module = missing.len().div_ceil(rayon::current_num_threads()).max(1);
    let new = missing.par_chunks(of_a_module).map(|kernels| module(architecture, kernels, folder));
    let new = new.collect::<Result<Vec<_>>>()?;
    let mut compiled = COMPILED.lock();
    compiled.extend(new.into_iter().flatten());
    Ok(keys.iter().map(|key| compiled[key].clone()).collect())
}

fn module(architecture: &str, kernels: &[&Key], folder: Option<&Path>) -> Result<Vec<(Key, Compiled)>> {
    let mut source = String::from(LIBRARY);
    let mut names = Vec::new();
    for (_, name, code) in kernels {
        let name = format!("{name}_{:032x}", xxh3_128(code.as_bytes()));
        // Writing to a string does not fail.
        let _ = writeln!(source, "#define KERNEL {name}\n{code}\n#undef KERNEL");
        names.push(name);
    }
    let code = assembled(architecture, &source, folder)?;
    let module = Arc::new(Module::new(code));
    let compiled = |(key, name): (&&Key, String)| ((*key).clone(), Compiled { name, module: module.clone() });
    Ok(kernels.iter().zip(names).map(compiled).collect())
}

/// The code of a source: out of the folder, if it is kept there.
fn assembled(architecture: &str, source: &str, folder: Option<&Path>) -> Result<Vec<u8>> {
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let file = folder.map(|folder| {
        let key = format!("NVRTC {}\n{}\n{source}", nvrtc::version(), options.join(" "));
        folder.join(format!("{:032x}.cubin", xxh3_128(key.as_bytes())))
    });
    if let Some(code) = file.as_ref().and_then(|file| whole(file)) {
        return Ok(code);
    }
    let refused = |message| Error::NotCompiled { architecture: architecture.into(), message };
    let code = nvrtc::code(source, &options).map_err(refused)?;
    if let Some(file) = file {
        kept::keep(&file, &[&sum(&code), &code[..]].concat());
    }
    Ok(code)
}

/// What a file keeps behind its sum. The driver trusts code: what is damaged is warned of.
fn whole(file: &Path) -> Option<Vec<u8>> {
    let bytes = std::fs::read(file).ok()?;
    let code = bytes.split_first_chunk().filter(|(of, code)| **of == sum(code)).map(|(_, code)| code.to_vec());
    if code.is_none() {
        tracing::warn!(file = %file.display(), "kernels on disk are damaged: they are compiled anew");
    }
    code
}

fn sum(code: &[u8]) -> [u8; 16] {
    xxh3_128(code).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r#"extern "C" __global__ void nothing() {}"#;

    /// Needs the compiler, and no GPU.
    #[test]
    fn a_device_that_is_newer_than_the_compiler_takes_ptx() -> anyhow::Result<()> {
        assert_eq!(architecture(90, &[75, 80, 90, 100]), "sm_90");
        assert_eq!(architecture(103, &[75, 80, 90, 100]), "compute_100");
        assert_eq!(architecture(70, &[75, 80, 90, 100]), "sm_70", "which the compiler will refuse");
        let known = nvrtc::architectures();
        assert!(known.contains(&80) && known.is_sorted(), "{known:?}");
        let (newest, newer) = (known[known.len() - 1], known[known.len() - 1] + 1);
        let ptx = String::from_utf8(assembled(&architecture(newer, &known), SOURCE, None)?)?;
        assert!(ptx.contains(&format!(".target sm_{newest}")) && ptx.ends_with('\0'), "{ptx}");
        assert!(assembled(&architecture(newest, &known), SOURCE, None)?.starts_with(b"\x7fELF"));
        Ok(())
    }

    /// Needs the compiler, and no GPU.
    #[test]
    fn what_is_kept_is_not_compiled_again_unless_it_is_damaged() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let inside = folder.path().join("new");
        let compiled = assembled("sm_80", SOURCE, Some(&inside))?;
        assert_eq!(compiled, assembled("sm_80", SOURCE, None)?);
        let files = || std::fs::read_dir(&inside)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
        let [file] = &files()?[..] else { anyhow::bail!("{:?}", files()) };
        // Something else in its place tells who reads it.
        std::fs::write(file, [&sum(b"else")[..], b"else"].concat())?;
        assert_eq!(assembled("sm_80", SOURCE, Some(&inside))?, b"else");
        for damaged in [&b"else"[..], b"", &[0; 100]] {
            std::fs::write(file, damaged)?;
            assert_eq!(assembled("sm_80", SOURCE, Some(&inside))?, compiled);
            assert_eq!(whole(file).as_ref(), Some(&compiled));
        }
        // Another architecture, another source: other files.
        assembled("sm_90", SOURCE, Some(&inside))?;
        assembled("sm_80", &SOURCE.replace("nothing", "nothing_else"), Some(&inside))?;
        assert_eq!(files()?.len(), 3);
        // Where nothing can be kept, all is compiled.
        assert_eq!(assembled("sm_80", SOURCE, Some(&file.join("no folder")))?, compiled);
        Ok(())
    }
}
