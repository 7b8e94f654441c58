//! Serves a guest's port: one session after the other, also across restarts of QEMU.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Instant;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_plug::port::Port;
use weir_plug::{Serving, Who};

use crate::guests::Guest;
use crate::guests::channel::GuestListener;
use crate::guests::hypervisor::Hypervisor;
use crate::limits::{GUEST_CONNECT_EVERY, SESSIONS_TOLD_EVERY};

/// The reason why a guest's port or vsock cannot be served. It is logged once, and again when it changes.
struct Fault<'a> {
    guest: &'a str,
    what: &'static str,
    /// Text about how the daemon goes on.
    remedy: &'static str,
    reported: Option<String>,
}

impl Fault<'_> {
    fn new<'a>(guest: &'a str, what: &'static str, remedy: &'static str) -> Fault<'a> {
        Fault { guest, what, remedy, reported: None }
    }

    fn report(&mut self, error: String, say: impl Fn(&str)) {
        if self.reported.as_ref() != Some(&error) {
            say(&format!("guest {}: its {}: {error}; {}", self.guest, self.what, self.remedy));
            self.reported = Some(error);
        }
    }

    /// Records that the port or vsock is served.
    fn clear(&mut self) {
        self.reported = None;
    }
}

impl Guest {
    /// Serves the peer on its port until the guest's threads must end. `say` gets messages for the
    /// operator of the daemon.
    pub(crate) fn serve(
        &self,
        hypervisor: &dyn Hypervisor,
        serving: &Weak<Serving>,
        say: impl Fn(&str) + Sync,
    ) {
        if let Some(uds_path) = &self.config.vsock {
            return self.serve_vsock(uds_path, serving, say);
        }
        let mut fault = Fault::new(&self.name, "port", "it is looked for");
        while !self.threads.is_over() {
            let stream = hypervisor.port().map_err(|error| weir_client::error_text(&error));
            let stream = stream.and_then(|path| {
                connect(&path).map_err(|error| format!("{}: {error}", path.display()))
            });
            match stream {
                Ok(stream) => {
                    fault.clear();
                    if let Err(error) = self.serve_port(stream, serving, &say) {
                        say(&format!("guest {}: its port has ended: {error}", self.name));
                    }
                    self.session.set_session(None);
                    self.session.set_port(None);
                    self.machine.port_ended();
                }
                Err(error) => fault.report(error, &say),
            }
            self.threads.sleep(hypervisor.look_every());
        }
    }

    /// Serves each stream that the guest opens. The end of a stream does not mean that QEMU has ended.
    fn serve_vsock(&self, uds_path: &Path, serving: &Weak<Serving>, say: impl Fn(&str) + Sync) {
        let was_served = AtomicBool::new(false);
        let serve = |stream: OwnedFd| {
            was_served.store(true, Ordering::Relaxed);
            // An error is not logged: the guest has closed the stream, and will open another.
            let _ = self.serve_port(stream, serving, &say);
            self.session.set_session(None);
            self.session.set_port(None);
        };
        let fault = || Fault::new(&self.name, "vsock", "it is tried again");
        let (mut of_socket, mut of_streams) = (fault(), fault());
        while !self.threads.is_over() {
            let failed = match GuestListener::bind(uds_path) {
                Ok(listener) => {
                    of_socket.clear();
                    let Err(error) = listener.serve(self.threads.end_fd(), serve) else { continue };
                    if was_served.swap(false, Ordering::Relaxed) {
                        of_streams.clear();
                    }
                    (&mut of_streams, error)
                }
                Err(error) => (&mut of_socket, error),
            };
            let (fault, error) = failed;
            fault.report(error.to_string(), &say);
            self.threads.sleep(GUEST_CONNECT_EVERY);
        }
    }

    /// Logs that a session has begun, but not every time, because the guest decides how often it
    /// begins one.
    fn tell_of_session(&self, say: &dyn Fn(&str)) {
        let mut told = self.session_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_none_or(|told| told.elapsed() >= SESSIONS_TOLD_EVERY) {
            *told = Some(Instant::now());
            say(&format!("guest {}: its broker has begun a session", self.name));
        }
    }

    fn serve_port(
        &self,
        stream: OwnedFd,
        serving: &Weak<Serving>,
        say: &dyn Fn(&str),
    ) -> io::Result<()> {
        let port = Port::new(stream, || ())?;
        self.session.set_port(Some(&port));
        port.announce()?;
        while !self.threads.is_over() {
            let Some(transport) = port.accept_until(self.threads.end_fd())? else { continue };
            let Some(serving) = serving.upgrade() else { return Ok(()) };
            let transport = Arc::new(transport);
            self.session.set_session(Some(&transport));
            self.tell_of_session(say);
            // An error means that there are too many connections. The guest will try again.
            let _ = serving.serve_over(transport, Who::Guest(Arc::clone(&self.name)));
            let is_ended_here = self.session.is_ended_here();
            self.session.set_session(None);
            if is_ended_here {
                // A broker that is still running then begins a new session. An error is ignored: the daemon does not
                // wait for a broker that does not read.
                let _ = port.announce();
            }
        }
        Ok(())
    }
}

/// Connects without waiting: the call fails if QEMU is stopped and its queue of connections is full.
fn connect(path: &Path) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address).map_err(|errno| match errno {
        rustix::io::Errno::AGAIN => io::Error::other(
            "QEMU takes nobody there: another program is at it, or QEMU is stopped",
        ),
        errno => errno.into(),
    })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_fault_is_reported_once_and_again_once_it_has_changed_or_is_new() {
        let journal = RefCell::new(Vec::new());
        let say = |line: &str| journal.borrow_mut().push(line.to_owned());
        let mut fault = Fault::new("web1", "vsock", "it is tried again");
        for error in ["in use", "in use", "no descriptors", "in use"] {
            fault.report(error.into(), say);
        }
        fault.clear();
        fault.report("in use".into(), say);
        let expected = ["in use", "no descriptors", "in use", "in use"];
        let expected =
            expected.map(|error| format!("guest web1: its vsock: {error}; it is tried again"));
        assert_eq!(*journal.borrow(), expected);
    }
}
