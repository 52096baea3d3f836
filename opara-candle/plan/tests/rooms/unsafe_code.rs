//! `unsafe` code of `opara-candle` is in the driver only, and each kernel lies with its declaration.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::tokens::tokens;

/// Files that only name status codes of CUDA.
const STATUS_CODES: &[&str] = &["fault.rs", "test_device.rs"];

/// The text of each file below a folder with one of the extensions, without comments, by its path there.
fn read(folder: &Path, extension: &str) -> io::Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            texts.extend(read(&path, extension)?.into_iter().map(|(inside, text)| (format!("{name}/{inside}"), text)));
        } else if path.extension().is_some_and(|found| found == extension) {
            let text = fs::read_to_string(&path)?;
            let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
            texts.insert(name, code.join("\n"));
        }
    }
    Ok(texts)
}

fn source(extension: &str) -> io::Result<BTreeMap<String, String>> {
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"), extension)
}

fn is_driver(file: &str) -> bool {
    file.starts_with("cuda/driver/")
}

fn is_unsafe(text: &str) -> bool {
    tokens(text).contains(&"unsafe")
}

fn names_declarations(text: &str) -> bool {
    tokens(text).windows(2).any(|pair| pair == ["sys", "::"])
}

#[test]
fn unsafe_code_is_in_the_driver() -> io::Result<()> {
    let texts = source("rs")?;
    assert!(texts["lib.rs"].contains("#![deny(unsafe_code)]"));
    for (file, text) in &texts {
        assert!(!is_unsafe(text) || is_driver(file), "{file}: `unsafe`");
        assert!(
            !names_declarations(text) || is_driver(file) || STATUS_CODES.contains(&file.as_str()),
            "{file}: what only the driver may call (`sys::`)"
        );
        let allows = text.contains("allow(unsafe_code)");
        assert_eq!(allows, file == "cuda/driver/mod.rs", "{file}: `allow(unsafe_code)`");
    }
    Ok(())
}

#[test]
fn each_kernel_lies_with_its_declaration() -> io::Result<()> {
    let files = source("rs")?;
    for kernel in source("cu")?.keys() {
        let (folder, _) = kernel.rsplit_once('/').unwrap_or_default();
        let declares = files.get(&format!("{folder}/launch.rs")).is_some_and(|text| text.contains("kernels! {"));
        assert!(is_driver(kernel) || declares, "{kernel}: {folder}/launch.rs does not declare it");
    }
    Ok(())
}

#[test]
fn unsafe_code_is_found() {
    assert!(is_unsafe("pub unsafe fn f() {}") && !is_unsafe("#![deny(unsafe_code)]"));
    assert!(names_declarations("use cudarc::driver::sys::CUresult;") && !names_declarations("let sys = 1;"));
}
