//! An application that has nothing to do with capture: `count_for_others`. Another process hands over an eventfd of
//! its own, gets memory that only the server can write, and is signalled whenever the number in it has changed.

use std::error::Error;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::{Value, json};
use weir_plug::{
    Answer, Application, Client, Peer, RpcError, Server, ServerLimits, Session, socket,
};

fn number(memory: impl AsFd, access: ProtFlags) -> Result<&'static AtomicU64, Box<dyn Error>> {
    // SAFETY: the kernel chooses where; the page stays mapped to the end of the process. It is page-aligned, eight
    // bytes of it are the number, and every process touches those as an AtomicU64. Its seals keep its size.
    let page = unsafe { mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, memory, 0)? };
    // SAFETY: as above.
    Ok(unsafe { AtomicU64::from_ptr(page.cast()) })
}

struct Count(&'static AtomicU64, OwnedFd);

impl Application for Count {
    fn name(&self) -> &str {
        "count"
    }

    fn connect(&self, _: &Arc<Peer>) -> Result<Box<dyn Session>, RpcError> {
        let copy = self.1.try_clone().map_err(|error| RpcError::refused(error.to_string()))?;
        Ok(Box::new(Counting(self.0, copy)))
    }
}

struct Counting(&'static AtomicU64, OwnedFd);

impl Session for Counting {
    fn call(&mut self, method: &str, _: Value, fds: Vec<OwnedFd>) -> Result<Answer, RpcError> {
        let ("up", [signal]) = (method, &fds[..]) else {
            return Err(RpcError::no_method(method, &["up, with one descriptor"]));
        };
        let number = self.0.fetch_add(1, Ordering::Release) + 1;
        let error = |error: std::io::Error| RpcError::refused(error.to_string());
        rustix::io::write(signal, &1u64.to_ne_bytes()).map_err(|errno| error(errno.into()))?;
        let descriptors = vec![self.1.try_clone().map_err(error)?];
        Ok(Answer { result: json!({ "number": number }), descriptors })
    }
}

fn ask(path: &str) -> Result<(), Box<dyn Error>> {
    let client = Client::connect(path.as_ref(), "example", drop)?;
    let signal = [eventfd(0, EventfdFlags::CLOEXEC)?];
    let answer = client.call("count.up", json!({}), &signal, Duration::from_secs(10))?;
    rustix::io::read(&signal[0], &mut [0; 8])?;
    let memory = answer.descriptors.first().ok_or("no memory came")?;
    assert!(number(memory, ProtFlags::READ | ProtFlags::WRITE).is_err(), "it is the server's");
    println!("{} {}", answer.result, number(memory, ProtFlags::READ)?.load(Ordering::Acquire));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(path) = std::env::args().nth(1) {
        return ask(&path);
    }
    let memory = memfd_create("count", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, 4096)?;
    let number = number(&memory, ProtFlags::READ | ProtFlags::WRITE)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals)?;
    let path = format!("{}/count-{}", std::env::temp_dir().display(), std::process::id());
    let (listener, _file) = socket::bind(path.as_ref(), 0o600)?;
    let server = Server::new("example", ServerLimits::default());
    let _serving = server.with(Arc::new(Count(number, memory))).serve(listener)?;
    for _ in 0..3 {
        Command::new(std::env::current_exe()?).arg(&path).status()?;
    }
    Ok(())
}
