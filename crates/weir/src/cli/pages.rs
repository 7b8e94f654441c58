//! The command line of `weir pages`.

use std::path::PathBuf;

use clap::Args;

/// `weir pages`.
#[derive(Args, Debug)]
pub struct PagesArgs {
    /// The directory that takes them; made if it is missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}
