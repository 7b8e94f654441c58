//! Flows exported as IPFIX and read by other implementations: the decoder `netflow_parser`, nfdump's collector over
//! UDP, and the Python library `ipfix` over TCP. A test whose tool is not installed is skipped, and says so on stderr
//! and in the file that `WEIR_SKIP_LOG` names.

mod away;
mod broken_link;
mod decoder;
mod flows;
mod netns;
mod nfdump;
mod python;
mod sizes;
mod slow_link;

use std::io::{ErrorKind, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_export::ipfix::{Config, Ipfix, Target};

/// Deadline: longer than any step of these tests takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reports that `test` did not run, and why.
fn skip(test: &str, reason: &str) {
    let line = format!("SKIPPED {test}: {reason}");
    eprintln!("{line}");
    if let Some(log) = std::env::var_os("WEIR_SKIP_LOG") {
        let log = std::fs::File::options().create(true).append(true).open(log);
        log.expect("skip log").write_all(format!("{line}\n").as_bytes()).expect("skip log");
    }
}

/// A collector's socket on a free port of this machine.
fn udp_socket() -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Accepts the next connection. Sets a time limit for reads from it.
fn accept(listener: &TcpListener) -> TcpStream {
    let start = Instant::now();
    listener.set_nonblocking(true).unwrap();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                return stream;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}"),
        }
        assert!(start.elapsed() < PATIENCE, "no connection came");
        sleep(Duration::from_millis(5));
    }
}

fn tcp_socket() -> TcpListener {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

fn export_to(scheme: &str, port: u16, config: Config) -> Ipfix {
    let target: Target = format!("{scheme}://127.0.0.1:{port}").parse().unwrap();
    Ipfix::open(&target, config).unwrap()
}
