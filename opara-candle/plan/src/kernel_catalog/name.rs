//! The name of a kernel, with its properties from the catalogue.

use std::fmt;
use std::ops::Deref;

use serde::{Deserialize, Serialize};

use super::Kernel;

/// The name of a kernel or of an operator. Its properties are looked up once, when it is created. In files it is a
/// string.
#[derive(Clone, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct KernelName {
    text: String,
    kernel: Kernel,
}

impl KernelName {
    /// The kernel's properties.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }
}

impl From<String> for KernelName {
    fn from(text: String) -> Self {
        Self { kernel: Kernel::of(&text), text }
    }
}

impl From<&str> for KernelName {
    fn from(text: &str) -> Self {
        text.to_string().into()
    }
}

impl From<KernelName> for String {
    fn from(name: KernelName) -> Self {
        name.text
    }
}

impl Deref for KernelName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl PartialEq for KernelName {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for KernelName {}

impl PartialEq<str> for KernelName {
    fn eq(&self, other: &str) -> bool {
        self.text == other
    }
}

impl PartialEq<&str> for KernelName {
    fn eq(&self, other: &&str) -> bool {
        self.text == *other
    }
}

impl fmt::Debug for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}
