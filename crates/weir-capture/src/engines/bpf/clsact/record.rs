//! The record of a filter: an empty file, named after the filter's place. The process that attached the filter holds a
//! lock on the file as long as the filter is attached. When the process ends, for whatever reason and in any PID
//! namespace, the kernel releases the lock. The records of a source that may have many filters share one lock, since a
//! process may not have enough descriptors for a lock of each record.
//!
//! A record determines which filter will be removed. So records are in a folder to which only their user can write, and
//! each user removes only the filters of his own records.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use super::Side;
use crate::kernel::PrivateFolder;

/// Folder of root's records. It is not in /run/weir: by the service manager's settings, that folder may belong to an
/// unprivileged user.
const RECORDS_OF_ROOT: &str = "/run/weir-tc";
/// Folder of another user's records. The service manager creates /run/weir for that user (`RuntimeDirectory=weir`).
const RECORDS_OF_OTHERS: &str = "/run/weir/tc";
/// Inode number of the first PID namespace. Source: linux/proc_ns.h, PROC_PID_INIT_INO.
const PID_INIT_INO: u64 = 0xEFFF_FFFC;

/// The place of a filter, which identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterPlace {
    pub(super) netns: u64,
    pub(super) ifindex: u32,
    pub(super) side: Side,
    pub(super) priority: u32,
    pub(super) handle: u32,
}

impl fmt::Display for FilterPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FilterPlace { netns, ifindex, side, priority, handle } = self;
        write!(f, "{netns}-{ifindex}-{side}-{priority}-{handle}")
    }
}

impl FilterPlace {
    fn parse(name: &str) -> Option<FilterPlace> {
        let mut parts = name.split('-');
        let place = FilterPlace {
            netns: parts.next()?.parse().ok()?,
            ifindex: parts.next()?.parse().ok()?,
            side: match parts.next()? {
                "ingress" => Side::Ingress,
                "egress" => Side::Egress,
                _ => return None,
            },
            priority: parts.next()?.parse().ok()?,
            handle: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(place)
    }
}

/// A record of this process. Dropping this value removes the file.
#[derive(Debug)]
pub(super) struct Record {
    folder: Arc<PrivateFolder>,
    name: String,
    _locked: Option<File>,
    _lock: Option<Arc<Lock>>,
}

/// A lock that many records share: a file of its own, whose name is part of the records' names.
#[derive(Debug)]
pub(in crate::engines::bpf) struct Lock(Record);

/// Prefix of the file names of locks. The process id and a number follow it.
const LOCK: &str = "lock-";
/// Separates the place from the name of the lock in a record's name.
const LOCKED_BY: char = '@';
/// Most locks with the same process id: a process may have several sources, and ids are reused in other PID namespaces.
const LOCKS_MAX: u32 = 256;

impl Lock {
    /// # Errors
    /// This user has no access to the folder, or there are too many locks.
    pub(in crate::engines::bpf) fn make() -> io::Result<Arc<Lock>> {
        Lock::make_in(&Arc::new(PrivateFolder::open(records_folder())?))
    }

    fn make_in(folder: &Arc<PrivateFolder>) -> io::Result<Arc<Lock>> {
        let names = (0..LOCKS_MAX).map(|number| format!("{LOCK}{}-{number}", std::process::id()));
        for name in names {
            match Record::create(Arc::clone(folder), name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return Ok(Arc::new(Lock(made?))),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

fn records_folder() -> &'static Path {
    Path::new(if geteuid().is_root() { RECORDS_OF_ROOT } else { RECORDS_OF_OTHERS })
}

impl Record {
    /// Creates and locks the record of a place.
    ///
    /// # Errors
    /// `AlreadyExists`: there is or was another filter in this place. Other errors: this user has no access to the
    /// folder.
    pub(super) fn make(place: &FilterPlace) -> io::Result<Record> {
        let folder = Arc::new(PrivateFolder::open(records_folder())?);
        Record::create(folder, place.to_string())
    }

    /// Creates the record of a place, for which the shared lock `lock` stands.
    pub(super) fn make_with(lock: &Arc<Lock>, place: &FilterPlace) -> io::Result<Record> {
        let folder = Arc::clone(&lock.0.folder);
        let name = format!("{place}{LOCKED_BY}{}", lock.0.name);
        folder.create_new(&name)?;
        Ok(Record { folder, name, _locked: None, _lock: Some(Arc::clone(lock)) })
    }

    fn create(folder: Arc<PrivateFolder>, name: String) -> io::Result<Record> {
        loop {
            let file = folder.create_new(&name)?;
            flock(&file, FlockOperation::LockExclusive)?;
            // While this process did not yet have the lock, a sweep of another process may have removed the record.
            if file.metadata()?.nlink() > 0 {
                return Ok(Record { folder, name, _locked: Some(file), _lock: None });
            }
        }
    }

    /// Takes over a record whose process has ended; `None` if the process still runs.
    fn abandoned(folder: &Arc<PrivateFolder>, name: String) -> Option<Record> {
        if let Some((_, lock)) = name.split_once(LOCKED_BY) {
            // `NotFound`: the lock has already been removed by its process or by a sweep.
            match folder.open_file_for_writing(lock) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                _ => drop(Record::abandoned(folder, lock.to_owned())?),
            }
            let folder = Arc::clone(folder);
            return Some(Record { folder, name, _locked: None, _lock: None });
        }
        let file = folder.open_file_for_writing(&name).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        let there = file.metadata().is_ok_and(|meta| meta.nlink() > 0);
        let folder = Arc::clone(folder);
        there.then(|| Record { folder, name, _locked: Some(file), _lock: None })
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let _ = self.folder.remove(&self.name);
    }
}

/// Calls `take_off` for every place in the network namespace `here` whose filter has outlived its process, and removes
/// the records of namespaces that no longer exist.
pub(super) fn sweep(here: u64, take_off: impl Fn(FilterPlace)) {
    // If the folder does not exist, there never was a filter. If other users have access to the folder, its records are
    // not trusted.
    if let Ok(folder) = PrivateFolder::open_existing(records_folder()) {
        sweep_in(&Arc::new(folder), here, take_off);
    }
}

fn sweep_in(folder: &Arc<PrivateFolder>, here: u64, take_off: impl Fn(FilterPlace)) {
    let mut in_use = None;
    for name in folder.names().unwrap_or_default() {
        if name.starts_with(LOCK) {
            // Removes the lock if its process has ended. Its records also count as abandoned when the lock does not
            // exist.
            drop(Record::abandoned(folder, name));
            continue;
        }
        let at = name.split(LOCKED_BY).next().and_then(FilterPlace::parse);
        let Some(place) = at else { continue };
        if place.netns != here {
            let in_use = in_use.get_or_insert_with(namespaces_in_use).as_ref();
            if in_use.is_none_or(|in_use| in_use.contains(&place.netns)) {
                continue;
            }
        }
        let Some(_record) = Record::abandoned(folder, name) else { continue };
        if place.netns == here {
            take_off(place);
        }
    }
}

/// Returns the network namespaces that have a process or a mount; `None` if this process cannot see all processes. The
/// result can miss a namespace that only an open descriptor keeps, or whose processes root may not examine; filters in
/// it then stay until it ends. The kernel may reuse an inode number, so a namespace that no longer exists can appear to
/// be in use.
fn namespaces_in_use() -> Option<HashSet<u64>> {
    if fs::metadata("/proc/self/ns/pid").ok()?.ino() != PID_INIT_INO {
        return None;
    }
    let mut found = HashSet::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    found.extend(mounts.lines().filter_map(|line| {
        // Field 4 is the root of the mount within its file system, here nsfs.
        line.split(' ').nth(3)?.strip_prefix("net:[")?.strip_suffix(']')?.parse::<u64>().ok()
    }));
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let tasks = fs::read_dir(process.path().join("task")).into_iter().flatten().flatten();
        for task in tasks {
            // The task may have ended meanwhile.
            if let Ok(meta) = fs::metadata(task.path().join("ns/net")) {
                found.insert(meta.ino());
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn place(netns: u64) -> FilterPlace {
        FilterPlace { netns, ifindex: 7, side: Side::Egress, priority: 1, handle: 123 }
    }

    fn folder() -> (tempfile::TempDir, Arc<PrivateFolder>) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Arc::new(PrivateFolder::open(&dir.path().join("own")).unwrap());
        (dir, folder)
    }

    #[test]
    fn a_record_says_where_a_filter_is() {
        let place = place(4_026_531_840);
        assert_eq!(place.to_string(), "4026531840-7-egress-1-123");
        assert_eq!(FilterPlace::parse(&place.to_string()), Some(place));
        for bad in ["", "1-2-ingress-1", "1-2-sideways-1-3", "1-2-ingress-1-3-4", "x-2-egress-1-3"]
        {
            assert_eq!(FilterPlace::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_what_nobody_holds_is_swept() {
        let (_dir, folder) = folder();
        let path = folder.path().join(place(5).to_string());
        let swept = || {
            let taken = RefCell::new(Vec::new());
            sweep_in(&folder, 5, |place| taken.borrow_mut().push(place));
            taken.into_inner()
        };
        let record = Record::create(Arc::clone(&folder), place(5).to_string()).unwrap();
        assert_eq!(swept(), []);
        let taken = Record::create(Arc::clone(&folder), place(5).to_string()).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        drop(record);
        assert!(!path.exists());
        // The state that a killed process leaves.
        fs::write(&path, b"").unwrap();
        assert_eq!(swept(), [place(5)]);
        assert!(!path.exists());
    }

    #[test]
    fn many_records_have_one_lock_and_are_swept_once_nobody_holds_it() {
        let (_dir, folder) = folder();
        let at = |ifindex| FilterPlace { ifindex, ..place(5) };
        let swept = || {
            let taken = RefCell::new(Vec::new());
            sweep_in(&folder, 5, |place| taken.borrow_mut().push(place.ifindex));
            let mut taken = taken.into_inner();
            taken.sort_unstable();
            taken
        };
        let lock = Lock::make_in(&folder).unwrap();
        let other = Lock::make_in(&folder).unwrap();
        let record = |lock, ifindex| Record::make_with(lock, &at(ifindex)).unwrap();
        let (first, second, third) = (record(&lock, 1), record(&lock, 2), record(&other, 3));
        let taken = Record::make_with(&lock, &at(1)).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        drop(first);
        assert_eq!(swept(), [0u32; 0]);
        // The state that a killed process leaves: the files exist, and the lock is free.
        let path = |record: &Record| folder.path().join(&record.name);
        let (left, of_lock) = (path(&second), path(&lock.0));
        drop((second, lock));
        assert!(!left.exists() && !of_lock.exists());
        fs::write(&left, b"").unwrap();
        fs::write(&of_lock, b"").unwrap();
        // Whichever of the files is found first.
        fs::write(folder.path().join(format!("{}@lock-1-0", at(9))), b"").unwrap();
        assert_eq!(swept(), [2, 9]);
        assert_eq!(swept(), [0u32; 0]);
        drop((third, other));
        assert_eq!(folder.names().unwrap(), [""; 0]);
    }

    #[test]
    fn links_and_fifos_among_the_records_are_left_alone_and_hang_nobody() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let (dir, folder) = folder();
        let victim = dir.path().join("victim");
        fs::write(&victim, b"precious").unwrap();
        let at = |ifindex| folder.path().join(FilterPlace { ifindex, ..place(5) }.to_string());
        std::os::unix::fs::symlink(&victim, at(1)).unwrap();
        mknodat(CWD, at(2), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        fs::create_dir(at(3)).unwrap();
        fs::hard_link(&victim, at(4)).unwrap();
        sweep_in(&folder, 5, |place| panic!("{place} is no record"));
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        Record::create(Arc::clone(&folder), FilterPlace { ifindex: 1, ..place(5) }.to_string())
            .unwrap_err();
    }

    #[test]
    fn root_a_record_of_a_namespace_that_is_gone_is_forgotten() {
        let test = "root_a_record_of_a_namespace_that_is_gone_is_forgotten";
        if !weir_lab::testbed::require_root(test) {
            return;
        }
        if namespaces_in_use().is_none() {
            return weir_lab::testbed::skip(test, "this is not the first PID namespace");
        }
        let (_dir, folder) = folder();
        let own = fs::metadata("/proc/self/ns/net").unwrap().ino();
        let [gone, lives] = [1, own].map(|netns| folder.path().join(place(netns).to_string()));
        fs::write(&gone, b"").unwrap();
        fs::write(&lives, b"").unwrap();
        sweep_in(&folder, 2, |place| panic!("{place} is not here"));
        assert!(!gone.exists() && lives.exists());
    }
}
