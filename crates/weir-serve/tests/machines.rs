//! Guests of the daemon's file whose QEMU does not answer, or does not exist.

mod common;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_client::protocol::GuestState;
use weir_serve::Config;

use common::{setup, within_limit};

/// A QEMU whose process is stopped: its sockets exist, but nothing answers.
struct Stopped {
    folder: tempfile::TempDir,
    _sockets: [UnixListener; 2],
}

impl Stopped {
    fn new() -> Stopped {
        let folder = tempfile::tempdir().unwrap();
        let sockets =
            ["port", "qmp"].map(|name| UnixListener::bind(folder.path().join(name)).unwrap());
        Stopped { folder, _sockets: sockets }
    }

    fn config(&self, name: &str, mib: u64) -> String {
        let at = self.folder.path().display();
        format!("[guests.{name}]\nport = \"{at}/port\"\nqmp = \"{at}/qmp\"\nregion_mib = {mib}\n")
    }
}

/// Neither the list of guests, nor a reload, nor the daemon's end waits for a QEMU that is stopped.
#[test]
fn a_stopped_qemu_delays_neither_status_nor_reload_nor_the_end() {
    let qemu = Stopped::new();
    let source =
        "[sources.a]\nsource = \"gen:frames=1\"\nusers = [0]\nguests = [\"one\"]\nring_mib = 4\n";
    let text = |mib, more: &str| format!("{source}{}{more}", qemu.config("one", mib));
    let setup = setup(&text(64, ""));
    let serving = Arc::clone(&setup.serving);
    setup.daemon.serve_guests(&serving).unwrap();
    let quick = |what: &str, act: &dyn Fn()| {
        let start = Instant::now();
        act();
        assert!(start.elapsed() < Duration::from_secs(4), "{what}: {:?}", start.elapsed());
    };
    quick("the list", &|| {
        let guests = setup.daemon.guests();
        assert_eq!((guests.len(), guests[0].region_mib, guests[0].feeds), (1, 64, 0));
        assert_eq!((guests[0].state, guests[0].has_session), (GuestState::Absent, false));
    });
    quick("a reload", &|| {
        let more = "[guests.two]\nport = \"/no/port\"\nqmp = \"/no/qmp\"\n";
        setup.daemon.reload(Config::parse(&text(128, more)).unwrap()).unwrap();
        let guests = setup.daemon.guests();
        let found: Vec<_> = guests.iter().map(|guest| (&*guest.name, guest.region_mib)).collect();
        assert_eq!(found, [("one", 128), ("two", 256)]);
    });
    within_limit("the reason", || {
        let two = setup.daemon.guests().into_iter().find(|guest| guest.name == "two");
        two.unwrap().reason.is_some_and(|reason| reason.contains("/no/qmp"))
    });
    quick("detaching another", &|| {
        let refused = setup.daemon.detach_guest("two", None).unwrap_err();
        assert!(refused.message.contains("/no/qmp"), "{refused:?}");
        let refused = setup.daemon.detach_guest("three", None).unwrap_err();
        assert!(refused.message.contains("one, two"), "{refused:?}");
    });
    quick("a reload without it", &|| {
        let config =
            Config::parse("[sources.a]\nsource = \"gen:frames=1\"\nusers = [0]\n").unwrap();
        setup.daemon.reload(config).unwrap();
        assert!(setup.daemon.guests().is_empty());
    });
    quick("the end", &|| {
        serving.end();
        setup.daemon.end_guests();
    });
}
