//! Files for readers that take a path.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A folder of a process, whose files are written anew where they changed.
pub struct Folder {
    dir: tempfile::TempDir,
    written: HashMap<String, Vec<u8>>,
}

impl Folder {
    /// An empty folder, in memory where the system has such.
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { dir: dir.expect("a folder for files"), written: HashMap::new() }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes a file.
    pub fn put(&mut self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        if self.written.get(name).is_some_and(|written| written == bytes) {
            return path;
        }
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).expect("the folder takes folders");
        }
        std::fs::write(&path, bytes).expect("the folder takes files");
        self.written.insert(name.to_owned(), bytes.to_vec());
        path
    }

    /// Writes a file, or removes it.
    pub fn set(&mut self, name: &str, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => {
                self.put(name, bytes);
            }
            None if self.written.remove(name).is_some() => {
                let path = self.path().join(name);
                std::fs::remove_file(&path).expect("the file is there");
                // A folder goes with its last file.
                path.parent().filter(|folder| *folder != self.path()).map(std::fs::remove_dir);
            }
            None => {}
        }
    }
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}
