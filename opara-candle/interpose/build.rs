//! Cargo asks for a build script of a package with `links`; there is nothing to build.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
