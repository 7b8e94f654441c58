//! Names of addresses in recorded files.

use weir_frame::pcapng::{AddressName, NRB_TYPE, names};
use weir_frame::record::EPB_TYPE;

use super::*;
use crate::names::Names;

fn name(number: u32) -> AddressName {
    let address = std::net::Ipv4Addr::from_bits(number).into();
    AddressName { address, name: format!("container-{number}") }
}

fn rig(change: impl FnOnce(&mut Settings)) -> (Rig, Names) {
    let (mut rig, names) = (Rig::new(8, change), Names::default());
    rig.recorder.shared.names = names.clone();
    (rig, names)
}

/// The names of a file, each with the number of frames before it.
fn said(path: &Path) -> Vec<(u64, AddressName)> {
    let mut bytes = fs::read(path).unwrap();
    if path.extension().is_some_and(|end| end == "zst") {
        bytes = zstd::decode_all(&bytes[..]).unwrap();
    }
    let (mut rest, mut frames, mut said) = (&bytes[..], 0, Vec::new());
    while let Some(head) = rest.first_chunk::<8>() {
        let length = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        match u32::from_le_bytes(head[..4].try_into().unwrap()) {
            EPB_TYPE => frames += 1,
            NRB_TYPE => {
                said.extend(names::read(&rest[..length]).into_iter().map(|name| (frames, name)))
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    said
}

#[test]
fn a_file_says_names_before_the_frames_that_follow_and_at_its_end() {
    for compresses in [false, true] {
        let (mut rig, names) = rig(|settings| {
            if compresses {
                compressed(settings);
            }
        });
        names.learn([name(1), name(2)]);
        rig.push_block();
        rig.run();
        names.learn([name(2), name(3)]);
        rig.push_block();
        rig.push_block();
        rig.run();
        names.learn([name(4)]);
        rig.finish();
        let [file] = &rig.files()[..] else { panic!("{:?}", rig.files()) };
        let wanted = [(0, name(1)), (0, name(2)), (1000, name(3)), (3000, name(4))];
        assert_eq!(said(file), wanted, "compressed: {compresses}");
        assert_eq!(rig.recorder.kept().frames, 3000);
        // The pieces of the index cover the whole file.
        let index = crate::index::read(&crate::catalog::index_path(file)).unwrap();
        let end = index.pieces.iter().fold(0, |end, piece| {
            assert_eq!(piece.at, end);
            end + u64::from(piece.bytes)
        });
        let length = match compresses {
            true => zstd::decode_all(fs::File::open(file).unwrap()).unwrap().len() as u64,
            false => file.metadata().unwrap().len(),
        };
        assert_eq!(end, length);
    }
}

#[test]
fn every_file_of_every_volume_has_all_names_once() {
    let other = tempfile::tempdir().unwrap();
    let (mut rig, names) = rig(|settings| {
        settings.file_bytes = 4 << 20;
        settings.directories.push(other.path().to_owned());
    });
    names.learn((0..300).map(name));
    for _ in 0..24 {
        rig.push_block();
        rig.run();
    }
    rig.finish();
    let files: Vec<PathBuf> = rig.files().into_iter().chain(files(other.path())).collect();
    assert!(files.len() > 4, "{files:?}");
    let wanted: Vec<_> = (0..300).map(|number| (0, name(number))).collect();
    for file in &files {
        assert_eq!(said(file), wanted);
        assert!(file.metadata().unwrap().len() <= (4 << 20) + 4096);
    }
    let mut times: Vec<u64> = files.iter().flat_map(|file| times(file)).collect();
    times.sort_unstable();
    assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
}

#[test]
fn names_leave_a_file_room_for_frames_and_do_not_make_it_longer() {
    for compresses in [false, true] {
        let (mut rig, names) = rig(|settings| {
            if compresses {
                compressed(settings);
            }
            settings.file_bytes = 4 << 20;
        });
        let long = |number: u32| AddressName { name: format!("{number:0>250}"), ..name(number) };
        names.learn((0..20_000).map(long));
        for _ in 0..12 {
            rig.push_block();
            rig.run();
        }
        rig.finish();
        let mut frames = 0;
        for file in rig.files() {
            let bytes: u64 = said(&file).iter().map(|(_, name)| name.name.len() as u64).sum();
            assert!((900 << 10..=1 << 20).contains(&bytes), "{bytes}");
            assert!(file.metadata().unwrap().len() <= (4 << 20) + 4096);
            frames += match compresses {
                true => unpacked_times(&file).len(),
                false => times(&file).len(),
            };
        }
        assert_eq!(frames, 12_000);
    }
}

#[test]
fn whichever_write_fails_the_file_that_goes_on_has_all_names_and_frames_are_accounted_for() {
    for failing in 0..16 {
        let other = tempfile::tempdir().unwrap();
        let (mut rig, names) = rig(|settings| settings.directories.push(other.path().to_owned()));
        rig.script.fail_write(failing, 5);
        for number in 0..12 {
            names.learn([name(number)]);
            rig.push_block();
            rig.run();
        }
        rig.finish();
        let mut files: Vec<PathBuf> = rig.files().into_iter().chain(files(other.path())).collect();
        // A file whose first write failed was cut to length 0.
        files.retain(|file| file.metadata().unwrap().len() > 0);
        let told = files.iter().map(|file| said(file)).max_by_key(Vec::len).unwrap();
        let told: Vec<AddressName> = told.into_iter().map(|(_, name)| name).collect();
        assert_eq!(told, (0..12).map(name).collect::<Vec<_>>(), "{failing}");
        // A block after names that could not be written is cut off with them.
        let kept = rig.recorder.kept().frames;
        assert!(kept >= 11_000 && rig.recorder.delivered().frames == 12_000, "{failing}: {kept}");
        let frames: usize = files.iter().map(|file| times(file).len()).sum();
        assert_eq!(frames as u64, kept, "{failing}");
    }
}
