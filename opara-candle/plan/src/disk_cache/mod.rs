//! A disk cache of compiled kernels, and of what was measured: tuned plans, plans of rewriting, choices among implementations.
//! Several processes may use a folder at a time.
//!
//! File names are hashes. Other files in the folder are never read, replaced, counted or deleted. If a folder exceeds
//! its size limit, the least recently used files are deleted.

mod kind;
mod record;

use std::fs::{self, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, SystemTime};

pub use self::kind::Kind;
pub use self::record::Record;

/// The maximal size of a folder in bytes.
const LIMIT: u64 = 256 << 20;
/// The ending of compiled kernels; those of records are [`Kind`]'s. Before it is a hash of [`HASH`] digits.
const KERNELS: &str = ".cubin";
const HASH: usize = 32;
/// The prefix of unfinished files.
const UNFINISHED: &str = ".opara-";
/// An unfinished file older than this is left over from a killed process.
const ABANDONED: Duration = Duration::from_secs(3600);

/// `opara-candle` in the user's cache folder; `None` if the user has no such folder.
pub fn folder() -> Option<PathBuf> {
    dirs::cache_dir().map(|folder| folder.join("opara-candle"))
}

/// Reads a cached file. `None` if it does not exist, or is not a regular file.
pub fn read(file: &Path) -> Option<Vec<u8>> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Opening a pipe would block, and a link may lead to anything.
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW);
    }
    let opened = options.open(file).ok()?;
    let found = opened.metadata().ok().filter(|found| found.is_file() && found.len() <= LIMIT)?;
    let mut bytes = Vec::with_capacity(found.len() as usize);
    (&opened).take(LIMIT).read_to_end(&mut bytes).ok()?;
    // The modification time records the last use. It is not updated in a read-only folder.
    let _ = opened.set_modified(SystemTime::now());
    Some(bytes)
}

/// Writes a file, and creates its folder if needed. Failures are logged as one warning per process, because an executor
/// stores several files, and most would fail for the same reason.
pub fn store(file: &Path, bytes: &[u8]) {
    static WARNED: Once = Once::new();
    if let Err(error) = write(file, bytes, LIMIT) {
        WARNED.call_once(|| {
            let file = file.display();
            tracing::warn!(%file, %error, "plans and kernels cannot be cached");
        });
    }
}

fn write(file: &Path, bytes: &[u8], limit: u64) -> Result<()> {
    if bytes.len() as u64 > limit {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("{} bytes are more than a folder holds", bytes.len())));
    }
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    if fs::symlink_metadata(file).is_ok_and(|found| !found.is_file()) {
        return Err(Error::new(ErrorKind::AlreadyExists, "there is no regular file at its path: remove it"));
    }
    // Renamed when complete, because another process may read it.
    let mut whole = tempfile::Builder::new().prefix(UNFINISHED).tempfile_in(folder)?;
    whole.write_all(bytes)?;
    whole.persist(file)?;
    trim(folder, limit, file)
}

/// Is this a name of a cached file?
fn is_ours(name: &str) -> bool {
    Kind::ALL.into_iter().map(Kind::ending).chain([KERNELS]).any(|ending| {
        let hash = name.strip_suffix(ending).unwrap_or_default();
        hash.len() == HASH && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Deletes the least recently used files except `newest` until the rest is within the limit, and unfinished files of
/// killed processes. It is not an error if another process deletes a file meanwhile.
fn trim(folder: &Path, limit: u64, newest: &Path) -> Result<()> {
    let (mut files, mut bytes) = (Vec::new(), 0);
    for entry in fs::read_dir(folder)? {
        let Ok(entry) = entry else { continue };
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        // Metadata of a link itself, not of its target.
        let Ok(found) = fs::symlink_metadata(entry.path()) else { continue };
        let (true, Ok(used)) = (found.is_file(), found.modified()) else { continue };
        if is_ours(name) {
            bytes += found.len();
            files.push((used, entry.path(), found.len()));
        } else if name.starts_with(UNFINISHED) && used.elapsed().is_ok_and(|age| age > ABANDONED) {
            delete(&entry.path())?;
        }
    }
    files.sort_unstable();
    for (_, file, len) in files {
        if bytes <= limit {
            break;
        }
        if file != newest {
            delete(&file)?;
            bytes -= len;
        }
    }
    Ok(())
}

fn delete(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Sets the time of last use, so that tests need not wait.
#[cfg(test)]
fn set_used(file: &Path, used: SystemTime) -> Result<()> {
    fs::File::options().write(true).open(file)?.set_modified(used)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use tempfile::TempDir;

    use super::*;

    fn named(folder: &TempDir, i: usize) -> PathBuf {
        folder.path().join(format!("{i:032x}.cubin"))
    }

    fn names(folder: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    fn second(n: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000 + n)
    }

    #[test]
    fn the_least_recently_used_files_go() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        for i in 0..4 {
            write(&named(&folder, i), &[0; 100], 400)?;
            set_used(&named(&folder, i), second(i as u64))?;
        }
        assert_eq!(names(&folder).len(), 4, "within the limit");
        // Reading the oldest file makes it the newest.
        assert_eq!(read(&named(&folder, 0)).map(|bytes| bytes.len()), Some(100));
        write(&named(&folder, 4), &[0; 150], 400)?;
        let left = [0, 3, 4].map(|i| format!("{i:032x}.cubin"));
        assert_eq!(names(&folder), left);
        // A file almost as large as the limit replaces all others, and a larger one is not stored.
        write(&named(&folder, 5), &[0; 399], 400)?;
        assert_eq!(names(&folder), [format!("{:032x}.cubin", 5)]);
        assert!(write(&named(&folder, 6), &[0; 401], 400).is_err());
        assert_eq!(names(&folder).len(), 1);
        Ok(())
    }

    #[test]
    fn files_of_others_stay() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let others = ["notes.txt", "model.cubin", "0123.plan.json", ".tmpabcdef", &format!("{:032X}.cubin", 0xabc)];
        for other in others {
            fs::write(folder.path().join(other), [1; 1000])?;
            set_used(&folder.path().join(other), second(0))?;
        }
        fs::create_dir(folder.path().join(format!("{:032x}.cubin", 77)))?;
        fs::create_dir(folder.path().join("folder"))?;
        for i in 0..3 {
            write(&named(&folder, i), &[0; 100], 150)?;
            set_used(&named(&folder, i), second(i as u64))?;
        }
        assert_eq!(names(&folder).len(), others.len() + 2 + 1);
        assert!(others.iter().all(|other| fs::read(folder.path().join(other)).is_ok_and(|bytes| bytes == [1; 1000])));
        Ok(())
    }

    #[test]
    fn unfinished_files_of_killed_processes_go() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let [old, new] = ["old", "new"].map(|name| folder.path().join(format!("{UNFINISHED}{name}")));
        fs::write(&old, b"half")?;
        set_used(&old, second(0))?;
        fs::write(&new, b"half")?;
        write(&named(&folder, 0), b"whole", LIMIT)?;
        assert!(!old.exists() && new.exists(), "{:?}", names(&folder));
        Ok(())
    }

    /// Blocks forever if a pipe is opened like a regular file.
    #[cfg(unix)]
    #[test]
    fn pipes_links_and_folders_are_left_alone() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let [pipe, link, dangling, directory] = [0, 1, 2, 3].map(|i| named(&folder, i));
        anyhow::ensure!(Command::new("mkfifo").arg(&pipe).status()?.success(), "mkfifo");
        let elsewhere = tempfile::NamedTempFile::new()?;
        fs::write(elsewhere.path(), b"elsewhere")?;
        std::os::unix::fs::symlink(elsewhere.path(), &link)?;
        std::os::unix::fs::symlink(folder.path().join("nowhere"), &dangling)?;
        fs::create_dir(&directory)?;
        for file in [&pipe, &link, &dangling, &directory] {
            let before = fs::symlink_metadata(file)?.file_type();
            assert_eq!(read(file), None, "{}", file.display());
            assert!(write(file, b"ours", LIMIT).is_err(), "{}", file.display());
            store(file, b"ours");
            assert_eq!(fs::symlink_metadata(file)?.file_type(), before, "{}", file.display());
        }
        // Even with a limit of zero, only cached files are deleted.
        write(&named(&folder, 4), b"first", 8)?;
        write(&named(&folder, 5), b"second", 8)?;
        assert_eq!(names(&folder).len(), 4 + 1);
        assert_eq!(fs::read(elsewhere.path())?, b"elsewhere");
        Ok(())
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_and_no_panic() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("file");
        fs::write(&file, b"in the way")?;
        let inside = file.join(format!("{:032x}.cubin", 1));
        assert!(write(&inside, b"ours", LIMIT).is_err() && read(&inside).is_none());
        store(&inside, b"ours");
        assert_eq!(fs::read(&file)?, b"in the way");
        Ok(())
    }

    /// A place where not even root can create a folder.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_that_may_not_be_written_to_is_an_error_and_no_panic() {
        let file = Path::new("/proc/opara-candle").join(format!("{:032x}.cubin", 1));
        assert!(write(&file, b"ours", LIMIT).is_err() && read(&file).is_none());
        store(&file, b"ours");
    }

    /// Runs in a process whose files are limited to a few hundred bytes, so that a write stops in the middle as on a
    /// full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_disk_that_fills_up_keeps_nothing_unfinished() -> anyhow::Result<()> {
        const FOLDER: &str = "OPARA_TEST_FULL_DISK";
        let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else {
            let folder = tempfile::tempdir()?;
            write(&named(&folder, 0), b"from before", LIMIT)?;
            let name = "disk_cache::tests::a_disk_that_fills_up_keeps_nothing_unfinished";
            let limited = ["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""];
            let itself = std::env::current_exe()?;
            let mut full = Command::new("sh");
            full.args(limited).arg(itself).args([name, "--exact"]).env(FOLDER, folder.path());
            let run = full.output()?;
            let said = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
            anyhow::ensure!(run.status.success() && said.contains("1 passed"), "{said}");
            assert_eq!(names(&folder), [0, 2].map(|i| format!("{i:032x}.cubin")), "nothing unfinished");
            return Ok(());
        };
        let file = |i: usize| folder.join(format!("{i:032x}.cubin"));
        let cut_off = write(&file(1), &[7; 1 << 20], LIMIT);
        assert_eq!(cut_off.err().map(|error| error.kind()), Some(ErrorKind::FileTooLarge));
        store(&file(1), &[7; 1 << 20]);
        assert_eq!(read(&file(1)), None);
        // Existing files stay, and smaller ones are stored.
        assert_eq!(read(&file(0)).as_deref(), Some(&b"from before"[..]));
        store(&file(0), &[7; 1 << 20]);
        assert_eq!(read(&file(0)).as_deref(), Some(&b"from before"[..]));
        Ok(write(&file(2), b"short", LIMIT)?)
    }

    /// Reading this device would never end.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_no_file() {
        assert!(read(Path::new("/dev/zero")).is_none());
        assert!(write(Path::new("/dev/full"), b"ours", LIMIT).is_err());
    }

    #[test]
    fn several_processes_may_use_a_folder() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let use_it = |offset: usize| -> Result<()> {
            for i in 0..50 {
                let file = named(&folder, (i + offset) % 20);
                write(&file, &[7; 100], 500)?;
                // Another process may have deleted the file, or be about to. If it exists it is complete.
                assert!(read(&file).is_none_or(|bytes| bytes == [7; 100]));
            }
            Ok(())
        };
        let results: Vec<Result<()>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|n| {
                    scope.spawn({
                        let use_it = &use_it;
                        move || use_it(n * 5)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        results.into_iter().collect::<Result<Vec<()>>>()?;
        write(&named(&folder, 0), &[7; 100], 500)?;
        assert!((1..=5).contains(&names(&folder).len()), "{:?}", names(&folder));
        Ok(())
    }
}
