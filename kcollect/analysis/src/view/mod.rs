//! `kcollect view`: the whole machine on one page, a file of HTML that needs nothing else.
//!
//! What is to be shown is a [`Payload`], which knows nothing of experiments: [`gather()`] fills it
//! from the model of a report. [`encode`] lays it out as columns, [`page`](mod@page) puts the
//! columns into a page, [`serve`] offers that page to a browser of this machine. The page does the
//! rest, in `js/`: all that depends on what is selected is counted there, from the ticks, in whole
//! numbers.
//!
//! The page refuses the network, by its content security policy, and so does its reader's browser.
//! Nothing that was recorded becomes markup: names are compressed and in base64 until a script puts
//! them on the screen as text.

pub mod encode;
mod gather;
pub mod page;
pub mod payload;
pub mod serve;
mod show;

pub use encode::PayloadError;
pub use gather::gather;
pub use page::page;
pub use payload::{PageFunction, PageProcess, PageStacks, PageThread, PageTick, Payload};
pub use show::{ViewOptions, ViewOutput, show};
