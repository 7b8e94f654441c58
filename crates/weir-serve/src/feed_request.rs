//! Converts a client's request to a feed request for the probe.

use std::num::NonZero;

use weir_capture::{Direction, Feed, Sampling};
use weir_client::limits::FEED_NAME_MAX;
use weir_client::protocol::{self, Open};
use weir_plug::message::RpcError;

/// Applies the settings of a client's request to a feed.
///
/// # Errors
/// A setting is invalid.
pub fn chosen(mut feed: Feed, open: &Open) -> Result<Feed, RpcError> {
    if let Some(name) = &open.name
        && !protocol::is_feed_name(name)
    {
        return Err(RpcError::params(format!(
            "a feed's name is 1 to {FEED_NAME_MAX} letters, digits, '-', '_' and '.'"
        )));
    }
    if let Some(snaplen) = open.snaplen {
        if snaplen == 0 {
            return Err(RpcError::params("snaplen is 1 or more"));
        }
        feed.snaplen = feed.snaplen.min(snaplen);
    }
    feed.direction = match open.direction {
        protocol::Direction::In => Direction::In,
        protocol::Direction::Out => Direction::Out,
        protocol::Direction::Both => Direction::Both,
    };
    feed.sampling = sampling(open)?;
    if let Some(part) = &open.part {
        let wrong =
            || format!("'{part}' is no part: 2/4 is the second of four shards, q2 an RX queue");
        let wrong = || RpcError::params(wrong());
        match part.strip_prefix('q') {
            // The largest number means any queue.
            Some(queue) => feed.queue = Some(queue.parse::<u16>().map_err(|_| wrong())?.into()),
            None => feed.shard = part.parse().map_err(|_| wrong())?,
        }
        feed.interface.name = format!("{}@{part}", feed.interface.name);
    }
    feed.interface.snaplen = feed.snaplen;
    Ok(feed)
}

fn sampling(open: &Open) -> Result<Sampling, RpcError> {
    match (open.sample, open.flows) {
        (None, None) => Ok(Sampling::All),
        (Some(one_in), None) if one_in > 0 => Ok(Sampling::OneIn(one_in)),
        (None, Some(one_in)) => match NonZero::new(one_in) {
            Some(one_in) => Ok(Sampling::FlowsOneIn(one_in)),
            None => Err(RpcError::params("flows is 1 or more")),
        },
        (Some(_), None) => Err(RpcError::params("sample is 1 or more")),
        (Some(_), Some(_)) => Err(RpcError::params("say sample or flows, not both")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_asks_for_is_bound_by_the_ceiling_and_checked() {
        let ceiling = || Feed { snaplen: 100, ..Feed::default() };
        let of = |open: Open| chosen(ceiling(), &open);
        let open = Open::default;
        assert_eq!(of(Open { snaplen: Some(64), ..open() }).unwrap().snaplen, 64);
        assert_eq!(of(Open { snaplen: Some(1000), ..open() }).unwrap().snaplen, 100);
        let part = |part: &str| of(Open { part: Some(part.into()), ..open() });
        assert_eq!(part("q3").unwrap().queue, Some(3));
        assert_eq!(part("2/4").unwrap().shard.to_string(), "2/4");
        assert_eq!(of(Open { sample: Some(9), ..open() }).unwrap().sampling, Sampling::OneIn(9));
        for wrong in ["", "q", "q65536", "5/4", "4", "../etc"] {
            assert!(part(wrong).is_err(), "{wrong}");
        }
        for wrong in [
            Open { snaplen: Some(0), ..open() },
            Open { sample: Some(0), ..open() },
            Open { flows: Some(0), ..open() },
            Open { name: Some(String::new()), ..open() },
            Open { name: Some("two words".into()), ..open() },
            Open { name: Some("x".repeat(33)), ..open() },
            Open { sample: Some(1), flows: Some(1), ..open() },
        ] {
            assert!(of(wrong).is_err());
        }
    }
}
