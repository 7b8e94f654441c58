//! Any text is an entry of a block list or an error. An entry's own text gives the same entry; a list can add it,
//! blocks by it, and can remove it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::block::{BlockList, Entry};

fuzz_target!(|text: &str| {
    match text.parse::<Entry>() {
        Ok(entry) => {
            assert_eq!(entry.to_string().parse(), Ok(entry));
            let mut list = BlockList::default();
            assert_eq!(list.add(entry), Ok(true));
            if let Entry::Flow(flow) = entry {
                assert!(list.contains(&flow.key()) && list.contains(&flow.key().reversed()));
            }
            assert!(list.remove(&entry));
            assert!(list.front_words().iter().all(|&word| word == 0));
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
