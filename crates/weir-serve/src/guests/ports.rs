//! A guest's port: who speaks on it, QEMU after QEMU, session after session.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Weak};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use weir_plug::port::Port;
use weir_plug::{Serving, Who};

use crate::guests::Guest;
use crate::guests::channel::GuestListener;
use crate::guests::hypervisor::Hypervisor;
use crate::limits::GUEST_CONNECT_EVERY;

impl Guest {
    /// Serves whoever speaks on its port until the guest's threads are to end. `say` is told what whoever runs the
    /// daemon should know.
    pub(crate) fn serve(
        &self,
        hypervisor: &dyn Hypervisor,
        serving: &Weak<Serving>,
        say: impl Fn(&str),
    ) {
        if let Some(uds_path) = &self.config.vsock {
            return self.serve_vsock(uds_path, serving, say);
        }
        let mut said = None;
        while !self.life.is_over() {
            let stream = hypervisor.port().map_err(|error| weir_client::error_text(&error));
            let stream = stream.and_then(|path| {
                connect(&path).map_err(|error| format!("{}: {error}", path.display()))
            });
            match stream {
                Ok(stream) => {
                    said = None;
                    if let Err(error) = self.serve_port(stream, serving) {
                        say(&format!("guest {}: its port has ended: {error}", self.name));
                    }
                    self.line.set_session(None);
                    self.line.set_port(None);
                    self.machine.port_ended();
                }
                Err(error) => {
                    if said.as_ref() != Some(&error) {
                        say(&format!("guest {}: its port: {error}; it is looked for", self.name));
                        said = Some(error);
                    }
                }
            }
            self.life.sleep(hypervisor.look_every());
        }
    }

    /// Serves each stream that the guest makes. Its end says nothing of QEMU's.
    fn serve_vsock(&self, uds_path: &Path, serving: &Weak<Serving>, say: impl Fn(&str)) {
        let serve = |stream: OwnedFd| {
            // It ends by what the guest does, and its successor comes behind that.
            let _ = self.serve_port(stream, serving);
            self.line.set_session(None);
            self.line.set_port(None);
        };
        let mut was_said = false;
        while !self.life.is_over() {
            let served = GuestListener::bind(uds_path)
                .and_then(|listener| listener.serve(self.life.end_fd(), serve));
            if let Err(error) = served {
                if !std::mem::replace(&mut was_said, true) {
                    say(&format!("guest {}: its vsock: {error}; it is tried again", self.name));
                }
                self.life.sleep(GUEST_CONNECT_EVERY);
            }
        }
    }

    fn serve_port(&self, stream: std::os::fd::OwnedFd, serving: &Weak<Serving>) -> io::Result<()> {
        let port = Port::new(stream, || ())?;
        self.line.set_port(Some(&port));
        port.announce()?;
        while !self.life.is_over() {
            let Some(transport) = port.accept_until(self.life.end_fd())? else { continue };
            let Some(serving) = serving.upgrade() else { return Ok(()) };
            let transport = Arc::new(transport);
            self.line.set_session(Some(&transport));
            // Too many connections: the guest tries again.
            let _ = serving.serve_over(transport, Who::Guest(Arc::clone(&self.name)));
            let is_ended_here = self.line.is_ended_here();
            self.line.set_session(None);
            if is_ended_here {
                // A broker that is still there begins anew. One that does not read is not waited for.
                let _ = port.announce();
            }
        }
        Ok(())
    }
}

/// Connects without waiting: a QEMU that is stopped, and has others in its queue, says so.
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
