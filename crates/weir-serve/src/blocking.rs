//! Block lists of clients' feeds: of one by its number, and of all of a name.

use std::sync::{Arc, PoisonError};

use weir_capture::Change;
use weir_client::protocol::{self, BlockChanged};
use weir_filter::block::{Entry, EntryError};
use weir_plug::Credentials;
use weir_plug::message::RpcError;
use weir_probe::SubscriptionId;

use crate::daemon::{Daemon, refused};
use crate::reader::Reader;
use crate::rights;

/// A change to a block list, as a client asks for it.
pub struct BlockChange {
    remove: Vec<Entry>,
    add: Vec<Entry>,
}

impl BlockChange {
    /// Understands what was asked.
    ///
    /// # Errors
    /// What is no entry.
    pub fn read(
        add: &[String],
        remove: &[String],
        expires_ms: Option<u64>,
    ) -> Result<BlockChange, RpcError> {
        if expires_ms.is_some() {
            return Err(RpcError::params("expires_ms: entries cannot expire yet"));
        }
        let entries = |texts: &[String]| {
            let parsed = texts.iter().map(|text| text.parse());
            let parsed = parsed.collect::<Result<Vec<_>, EntryError>>();
            parsed.map_err(|error| RpcError::params(error.to_string()))
        };
        Ok(BlockChange { remove: entries(remove)?, add: entries(add)? })
    }
}

impl Daemon {
    /// Changes the block list of a feed that nobody else reads.
    pub(crate) fn block(
        &self,
        subscription: SubscriptionId,
        BlockChange { remove, add }: &BlockChange,
    ) -> Result<(), RpcError> {
        let change = Change::Block { remove: remove.clone(), add: add.clone() };
        self.probe.change(subscription, change).map_err(refused)
    }

    /// Changes the block lists of all feeds of a name that this user may change.
    pub(crate) fn block_named(
        &self,
        who: &Credentials,
        name: &str,
        change: &BlockChange,
    ) -> Result<BlockChanged, RpcError> {
        let own = self.named(who, name)?;
        for reader in &own {
            let handing = self.handing(&reader.source);
            let _alone = handing.write().unwrap_or_else(PoisonError::into_inner);
            self.block(reader.claim.subscription, change)?;
        }
        Ok(BlockChanged { feeds: own.len(), ..BlockChanged::default() })
    }

    /// The feeds of this name that are this user's; of any user's, if it manages the daemon.
    fn named(&self, who: &Credentials, name: &str) -> Result<Vec<Arc<Reader>>, RpcError> {
        let sees_all = rights::manages(who);
        let mut own = self.board.readers();
        own.retain(|reader| {
            let is_named = reader.asked.name.as_deref() == Some(name);
            is_named && !reader.is_closed() && (sees_all || reader.who.uid == who.uid)
        });
        if own.is_empty() {
            let name: String = name.chars().take(64).collect();
            let said = format!("there is no feed named '{name}'; capture.status shows yours");
            return Err(RpcError::new(protocol::NO_FEED, said));
        }
        Ok(own)
    }
}
