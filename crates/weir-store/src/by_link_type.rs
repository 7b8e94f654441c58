//! Writes a file for each link type, because some tools do not read pcapng files with several link types.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weir_consumer::{ConsumerError, Count, Run, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;

use crate::file_error::FileError;
use crate::names::Names;
use crate::rotating::{RotatingFile, Rotation, check_name};

/// A function that is called with the names of all files whenever a further file was created.
type Opened = Box<dyn FnMut(&[&Path]) + Send>;

/// Files for the frames of interfaces with several link types: for each link type one file, or one sequence of files.
pub struct FilesByLinkType {
    /// The link type of the first file is that of the first interface.
    files: Vec<RotatingFile>,
    /// For each interface number of the run, its file and its number in that file.
    routes: Vec<(usize, u32)>,
    opened: Opened,
}

impl FilesByLinkType {
    /// Creates the first file, or replaces it. The file at `path` is for the link type of the first interface. For
    /// every other link type a file is created when its first interface is described; its name has the link type
    /// before the extension: `out.pcapng`, `out.raw-ip.pcapng`. `opened` is then called with the names of all files.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub fn create(
        path: &Path,
        mode: u32,
        opened: impl FnMut(&[&Path]) + Send + 'static,
    ) -> Result<FilesByLinkType, FileError> {
        FilesByLinkType::rotating(path, mode, Rotation::default(), opened)
    }

    /// Creates files as [`create`](FilesByLinkType::create) does, but each file is followed by others as `rotation`
    /// says. They are named as by tcpdump(1): `out.pcapng`, `out.pcapng1`. If the name contains the time, the first
    /// file is created when the first frame comes.
    ///
    /// # Errors
    /// [`FileError::Create`], also if no file can be made in the directory; the errors of
    /// [`check_name`](crate::rotating::check_name).
    pub fn rotating(
        path: &Path,
        mode: u32,
        rotation: Rotation,
        opened: impl FnMut(&[&Path]) + Send + 'static,
    ) -> Result<FilesByLinkType, FileError> {
        check_name(path, &rotation)?;
        let files = vec![RotatingFile::create(path, mode, rotation)?];
        Ok(FilesByLinkType { files, routes: Vec::new(), opened: Box::new(opened) })
    }

    /// Adds names to each file, as [`FileWriter::with_names`](crate::FileWriter::with_names) does.
    #[must_use]
    pub fn with_names(self, names: &Names) -> FilesByLinkType {
        let files = self.files.into_iter().map(|file| file.with_names(names)).collect();
        FilesByLinkType { files, ..self }
    }

    /// Returns the number of the file for this link type. The file is created if it does not exist.
    fn file_for(&mut self, link_type: u16) -> Result<usize, FileError> {
        let takes = |file: &RotatingFile| file.link_type().is_none_or(|own| own == link_type);
        if let Some(file) = self.files.iter().position(takes) {
            return Ok(file);
        }
        let first = &self.files[0];
        self.files.push(first.another(&path_for(first.path(), link_type))?);
        let paths: Vec<&Path> = self.files.iter().map(RotatingFile::path).collect();
        (self.opened)(&paths);
        Ok(self.files.len() - 1)
    }

    /// Returns the paths of the files, without the additions of rotation.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(RotatingFile::path)
    }

    fn route(&self, interface_id: u32) -> Option<(usize, u32)> {
        self.routes.get(interface_id as usize).copied()
    }

    /// Begins the rotation periods of all files at the time of the run's first frame.
    #[inline]
    fn begin(&mut self, first: Option<Record<'_>>) {
        if let Some(first) = first {
            self.files.iter_mut().for_each(|file| file.begin(first.meta.ts_ns));
        }
    }
}

impl Sink for FilesByLinkType {
    fn describe(
        &mut self,
        _number: u32,
        interface: &Interface,
        _label: &str,
    ) -> Result<(), ConsumerError> {
        let file = self.file_for(interface.link_type)?;
        self.routes.push((file, self.files[file].interfaces()));
        Ok(self.files[file].add_interface(interface)?)
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        if self.files[0].waits_for_begin() {
            self.begin(Some(*record));
        }
        let id = record.meta.interface_id;
        let (file, id) = self.route(id).expect("interfaces are described before their frames");
        Ok(self.files[file].add_as(record, id)?)
    }

    fn run_frames_max(&self) -> u64 {
        u64::MAX
    }

    fn take_run(&mut self, run: &Run<'_>) -> Result<(), ConsumerError> {
        if self.files[0].waits_for_begin() {
            self.begin(run.records().next());
        }
        match &mut self.files[..] {
            // The interfaces of the only file have the numbers of the run.
            [only] => Ok(only.add_run(run)?),
            _ => run.records().try_for_each(|record| self.take(&record)),
        }
    }

    fn allows_delay(&self) -> bool {
        self.files.iter().all(RotatingFile::allows_delay)
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.files.iter_mut().try_for_each(|file| Ok(file.flush()?))
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        for number in 0..self.files.len() {
            let own = statistics.iter().filter_map(|one| {
                let (file, interface_id) = self.route(one.interface_id)?;
                (file == number).then_some(Statistics { interface_id, ..*one })
            });
            let own: Vec<Statistics> = own.collect();
            self.files[number].finish(&own)?;
        }
        Ok(())
    }

    fn kept(&self) -> Count {
        let mut all = Count::default();
        self.files.iter().for_each(|file| all += file.kept());
        all
    }
}

/// Returns the path of the file for a link type other than the first.
fn path_for(path: &Path, link_type: u16) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().to_owned();
    name.push(".");
    name.push(link_type_name(link_type));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

/// Returns the name of a link type for file names. Source: <https://www.tcpdump.org/linktypes.html>.
fn link_type_name(link_type: u16) -> String {
    let name = match link_type {
        0 => "loopback",
        1 => "ethernet",
        101 => "raw-ip",
        105 => "wifi",
        113 => "linux-sll",
        127 => "radiotap",
        228 => "ipv4",
        229 => "ipv6",
        276 => "linux-sll2",
        other => return format!("link-type-{other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_frame::read::FrameReader;
    use weir_frame::record::{Meta, append};

    fn frames(path: &Path) -> Vec<u8> {
        let bytes = std::fs::read(path).unwrap();
        let mut bytes = &bytes[..];
        let mut reader = FrameReader::open(&mut bytes).unwrap();
        let mut found = Vec::new();
        while let Some(frame) = reader.next().unwrap() {
            found.push(frame.data[0]);
        }
        found
    }

    #[test]
    fn each_link_type_has_its_file_and_each_frame_is_in_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.pcapng");
        let interface = |link_type| Interface { link_type, snaplen: 100, ..Interface::default() };
        let (say, said) = std::sync::mpsc::channel();
        let tell = move |paths: &[&Path]| {
            let names: Vec<_> = paths.iter().filter_map(|path| path.file_name()).collect();
            say.send(format!("{names:?}")).unwrap();
        };
        let mut files = FilesByLinkType::create(&path, 0o600, tell).unwrap();
        for (id, link_type) in [(0, 1), (1, 101), (2, 1), (3, 9), (1, 101)] {
            if id as usize == files.routes.len() {
                files.describe(id, &interface(link_type), "").unwrap();
            }
            let meta = Meta { interface_id: id, wire_len: 1, ..Meta::default() };
            let mut block = Vec::new();
            append(&mut block, &meta, &[id as u8]);
            files.take(&Record::parse(&block).unwrap()).unwrap();
        }
        let known = |interface_id| Statistics { interface_id, ..Statistics::default() };
        files.finish(&[known(3), known(4)]).unwrap();
        assert_eq!(files.kept().frames, 5);
        assert_eq!(
            said.try_iter().collect::<Vec<_>>(),
            [
                r#"["out.pcapng", "out.raw-ip.pcapng"]"#,
                r#"["out.pcapng", "out.raw-ip.pcapng", "out.link-type-9.pcapng"]"#
            ]
        );
        let found = ["out.pcapng", "out.raw-ip.pcapng", "out.link-type-9.pcapng"];
        let found = found.map(|name| frames(&folder.path().join(name)));
        assert_eq!(found, [vec![0, 2], vec![1, 1], vec![3]]);
    }

    #[test]
    fn each_file_begins_with_the_names_that_are_known_and_has_later_ones_before_their_frames() {
        use weir_frame::pcapng::AddressName;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.pcapng");
        let names = Names::default();
        let learn = |number| {
            let address = std::net::Ipv4Addr::from_bits(number).into();
            names.learn([AddressName { address, name: "web".into() }]);
        };
        learn(1);
        let mut files = FilesByLinkType::create(&path, 0o600, |_| ()).unwrap().with_names(&names);
        let interface = |link_type| Interface { link_type, snaplen: 100, ..Interface::default() };
        let mut block = Vec::new();
        append(&mut block, &Meta { wire_len: 1, ..Meta::default() }, &[0]);
        let record = Record::parse(&block).unwrap();
        let count = Count::one(1);
        let run = Run { block_bytes: &block, count };
        files.describe(0, &interface(1), "").unwrap();
        files.take_run(&run).unwrap();
        learn(2);
        files.take_run(&run).unwrap();
        files.describe(1, &interface(101), "").unwrap();
        learn(3);
        files.take(&record).unwrap();
        files.finish(&[]).unwrap();
        // Types: section 0x0a0d0d0a, interface 1, names 4, frame 6.
        let types = |name: &str| {
            let bytes = std::fs::read(folder.path().join(name)).unwrap();
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let (mut at, mut types) = (0, Vec::new());
            while at < bytes.len() {
                types.push((word(at) & 0xff, word(at + 4)));
                at += word(at + 4) as usize;
            }
            types.into_iter().skip(1).collect::<Vec<_>>()
        };
        let [one, two] = [28, 40];
        let kinds = |name: &str| types(name).iter().map(|(kind, _)| *kind).collect::<Vec<_>>();
        assert_eq!(kinds("out.pcapng"), [1, 4, 6, 4, 6, 6, 4]);
        assert_eq!(kinds("out.raw-ip.pcapng"), [1, 4, 4]);
        let of_names = |name: &str| {
            let all = types(name).into_iter().filter(|(kind, _)| *kind == 4);
            all.map(|(_, bytes)| bytes).collect::<Vec<_>>()
        };
        assert_eq!(of_names("out.pcapng"), [one, one, one]);
        assert_eq!(of_names("out.raw-ip.pcapng"), [two, one]);
    }

    #[test]
    fn names_keep_their_ending_and_their_folder() {
        let named = |path: &str| path_for(Path::new(path), 101);
        assert_eq!(named("/a.b/c"), Path::new("/a.b/c.raw-ip"));
        assert_eq!(named("c.d.pcapng"), Path::new("c.d.raw-ip.pcapng"));
    }
}
