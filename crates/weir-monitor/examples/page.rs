//! Shows the page of a network that does not exist: `cargo run -p weir-monitor --example page -- 127.0.0.1:8080 [lossy]`.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_monitor::{Latest, Page};

#[path = "../tests/common/made_up.rs"]
mod made_up;

fn main() {
    let mut words = std::env::args().skip(1);
    let address = words.next().unwrap_or_else(|| "127.0.0.1:8080".into());
    let is_lossy = words.next().is_some_and(|word| word == "lossy");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
    let mut network = made_up::Network::new(now.as_nanos() as u64, is_lossy);
    let latest = Latest::default();
    let page = Page::serve(address.parse().expect("an address and a port"), latest.clone());
    let page = page.expect("a free port");
    println!("http://{}/", page.address());
    loop {
        latest.publish(network.next());
        thread::sleep(Duration::from_secs(1));
    }
}
