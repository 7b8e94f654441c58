//! The programs' read-only data (`bpf/bpf.bpf.c`). The verifier knows its contents and removes dead code, so each
//! generation of the programs has a map of its own for this data.

use std::{mem, slice};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType};

use super::skel::types::rodata as Data;
use crate::feed::Feed;
use crate::kernel::map_options;
use crate::limits::HOOK_FEEDS_MAX;

/// As `WEIR_ANY_QUEUE` in `bpf/bpf.bpf.c`.
const ANY_QUEUE: u32 = u32::MAX;

/// Entry of `shard_place` for a shard that no feed has.
const FREE: u32 = PLACES as u32;

/// As `WEIR_FEEDS_MAX` in `bpf/bpf.bpf.c`: the number of places, those of the feeds at the hook and that of the relay.
const PLACES: usize = HOOK_FEEDS_MAX + 1;

/// The read-only data of the first generation.
pub(super) struct Constants {
    data: Data,
    /// The descriptor of the data's map as it is in the object's code.
    named: i32,
}

impl Constants {
    pub(super) fn new(data: Data, named: i32) -> Constants {
        Constants { data, named }
    }

    pub(super) fn named(&self) -> i32 {
        self.named
    }

    /// Creates the map of a generation with these feeds and the numbers of their block lists, both by place.
    pub(super) fn with_feeds(
        &self,
        places: &[Option<Feed>],
        lists: &[u32],
        generation: usize,
    ) -> Result<MapHandle, libbpf_rs::Error> {
        let mut data = self.data;
        set_feeds(&mut data, places, lists);
        data.generation = generation as u32;
        let options = map_options(libbpf_sys::BPF_F_RDONLY_PROG);
        let bytes = size_of::<Data>() as u32;
        let map = MapHandle::create(MapType::Array, Some("weir_rodata"), 4, bytes, 1, &options)?;
        // SAFETY: `data` is `repr(C)` and consists of words of 4 bytes, without padding; it lives on the stack through
        // the call.
        let value =
            unsafe { slice::from_raw_parts((&raw const data).cast::<u8>(), size_of::<Data>()) };
        map.update(&[0; 4], value, MapFlags::ANY)?;
        // The verifier treats the map as constant if neither the programs nor user space can write it.
        map.freeze()?;
        Ok(map)
    }
}

/// Sets the fields that depend on the feeds.
pub(super) fn set_feeds(data: &mut Data, places: &[Option<Feed>], lists: &[u32]) {
    (data.wanted_in, data.wanted_out) = (0, 0);
    data.only = only(places).map_or(0, |place| place as u32 + 1);
    for (place, feed) in places.iter().enumerate() {
        let Some(feed) = feed else { continue };
        let own = &mut data.feed_of[place];
        own.snaplen = feed.snaplen;
        own.one_in = feed.sampling.one_in();
        own.flows_one_in = feed.sampling.flows_one_in();
        own.shard_index = feed.shard.index();
        own.shard_of = feed.shard.of();
        own.queue = feed.queue.unwrap_or(ANY_QUEUE);
        own.list = lists[place];
        data.wanted_in |= u32::from(feed.direction.takes_in()) << place;
        data.wanted_out |= u32::from(feed.direction.takes_out()) << place;
    }
    let (shard_of, shard_place) = shards(places).unwrap_or((0, [FREE; PLACES]));
    (data.shard_of, data.shard_place) = (shard_of, shard_place);
    let any = |is: fn(&Feed) -> bool| u32::from(places.iter().flatten().any(is));
    data.with_filters = any(|feed| feed.filter.is_some());
    data.by_flow = any(Feed::goes_by_flow);
    data.by_queue = any(|feed| feed.queue.is_some());
}

/// Returns the place of the only feed; `None` if there is no feed or more than one.
fn only(places: &[Option<Feed>]) -> Option<usize> {
    let mut taken = (0..places.len()).filter(|place| places[*place].is_some());
    taken.next().filter(|_| taken.next().is_none())
}

/// Returns, if all feeds are different shards of the same number of shards, that number and the place of each shard's
/// feed. A frame then belongs to at most one feed, which the program looks up instead of checking each feed.
fn shards(places: &[Option<Feed>]) -> Option<(u32, [u32; PLACES])> {
    let mut feeds =
        places.iter().enumerate().filter_map(|(at, feed)| Some((at, feed.as_ref()?.shard)));
    let of = feeds.clone().next()?.1.of();
    let mut shard_place = [FREE; PLACES];
    let are_apart = of > 1
        && of as usize <= PLACES
        && feeds.all(|(at, shard)| {
            let place = &mut shard_place[shard.index() as usize % PLACES];
            shard.of() == of && mem::replace(place, at as u32) == FREE
        });
    are_apart.then_some((of, shard_place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_inline_for_a_feed_that_is_alone_at_any_place() {
        let only_of = |taken: &[bool]| {
            let places: Vec<_> = taken.iter().map(|is| is.then(Feed::default)).collect();
            only(&places)
        };
        assert_eq!(only_of(&[true]), Some(0));
        assert_eq!(only_of(&[false, false, true, false]), Some(2));
        assert_eq!(only_of(&[true, false, true]), None);
        assert_eq!(only_of(&[false, false]), None);
    }

    #[test]
    fn the_feed_is_looked_up_where_each_is_another_shard_of_the_same_number() {
        let places_of = |texts: &[&str]| {
            let feed = |text: &&str| {
                (!text.is_empty()).then(|| Feed { shard: text.parse().unwrap(), ..Feed::default() })
            };
            let places: Vec<Option<Feed>> = texts.iter().map(feed).collect();
            shards(&places)
        };
        let with = |taken: &[(usize, u32)]| {
            let mut shard_place = [FREE; PLACES];
            for (shard, place) in taken {
                shard_place[*shard] = *place;
            }
            shard_place
        };
        assert_eq!(places_of(&["2/4", "", "1/4"]), Some((4, with(&[(1, 0), (0, 2)]))));
        assert_eq!(places_of(&["17/17"]), Some((17, with(&[(16, 0)]))));
        for others in [&["", "1/1"][..], &["1/4", "1/4"], &["1/4", "2/5"], &["1/18"], &[]] {
            assert_eq!(places_of(others), None, "{others:?}");
        }
    }
}
