//! A file for each link type: a pcapng file that every tool reads has one.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use weir_consumer::{ConsumerError, Count, Sink};
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::Record;

use crate::file::{FileError, FileWriter};

/// Files that take the frames of interfaces with several link types, one for each.
pub struct FilesByLinkType {
    files: Vec<(PathBuf, FileWriter)>,
    /// By the run's number of an interface: its file, and its number there.
    routes: Vec<(usize, u32)>,
}

impl FilesByLinkType {
    /// Makes the files, or replaces them. The first interface's link type has `path`; the others have their names
    /// before the ending: `out.pcapng`, `out.raw-ip.pcapng`.
    ///
    /// # Errors
    /// [`FileError::Create`].
    pub fn create(
        path: &Path,
        interfaces: &[Interface],
        mode: u32,
    ) -> Result<FilesByLinkType, FileError> {
        let mut groups: Vec<(u16, Vec<Interface>)> = Vec::new();
        let mut routes = Vec::new();
        for interface in interfaces {
            let known = groups.iter().position(|(link_type, _)| *link_type == interface.link_type);
            let file = known.unwrap_or_else(|| {
                groups.push((interface.link_type, Vec::new()));
                groups.len() - 1
            });
            routes.push((file, groups[file].1.len() as u32));
            groups[file].1.push(interface.clone());
        }
        let mut files = Vec::new();
        for (number, (link_type, own)) in groups.iter().enumerate() {
            let path = if number == 0 { path.to_owned() } else { path_for(path, *link_type) };
            let file = FileWriter::create(&path, own, mode)?;
            files.push((path, file));
        }
        Ok(FilesByLinkType { files, routes })
    }

    /// The files' names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    fn route(&self, interface_id: u32) -> (usize, u32) {
        let known = self.routes.get(interface_id as usize).copied();
        known.unwrap_or((0, interface_id))
    }
}

impl Sink for FilesByLinkType {
    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let (file, id) = self.route(record.meta.interface_id);
        Ok(self.files[file].1.add_as(record, id)?)
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        self.files.iter_mut().try_for_each(|(_, file)| Ok(file.flush()?))
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        for number in 0..self.files.len() {
            let own = statistics.iter().filter_map(|one| {
                let (file, interface_id) = self.route(one.interface_id);
                (file == number).then_some(Statistics { interface_id, ..*one })
            });
            let own: Vec<Statistics> = own.collect();
            self.files[number].1.finish(&own)?;
        }
        Ok(())
    }

    fn kept(&self) -> Count {
        let mut all = Count::default();
        self.files.iter().for_each(|(_, file)| all += file.kept());
        all
    }
}

/// The name of the file for one of the other link types.
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

/// Source: <https://www.tcpdump.org/linktypes.html>.
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
        let interfaces = [1, 101, 1, 9].map(interface);
        let mut files = FilesByLinkType::create(&path, &interfaces, 0o600).unwrap();
        let names: Vec<_> = files.paths().filter_map(|path| path.file_name()).collect();
        assert_eq!(names, ["out.pcapng", "out.raw-ip.pcapng", "out.link-type-9.pcapng"]);
        for id in [0, 1, 2, 3, 1] {
            let meta = Meta { interface_id: id, wire_len: 1, ..Meta::default() };
            let mut block = Vec::new();
            append(&mut block, &meta, &[id as u8]);
            files.take(&Record::parse(&block).unwrap()).unwrap();
        }
        files.finish(&[]).unwrap();
        assert_eq!(files.kept().frames, 5);
        let found = ["out.pcapng", "out.raw-ip.pcapng", "out.link-type-9.pcapng"];
        let found = found.map(|name| frames(&folder.path().join(name)));
        assert_eq!(found, [vec![0, 2], vec![1, 1], vec![3]]);
    }

    #[test]
    fn names_keep_their_ending_and_their_folder() {
        let named = |path: &str| path_for(Path::new(path), 101);
        assert_eq!(named("/a.b/c"), Path::new("/a.b/c.raw-ip"));
        assert_eq!(named("c.d.pcapng"), Path::new("c.d.raw-ip.pcapng"));
    }
}
