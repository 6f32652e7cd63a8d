//! The page of `kcollect view`: a recording as one HTML file that needs nothing else.
//!
//! A [`Payload`] is what is shown; [`gather()`] fills it from a model. [`encode`] lays it out as
//! columns, [`page`](mod@page) puts them into a page, [`serve`] offers it to a browser of this
//! machine. The scripts in `js/` do the rest: everything that depends on the selection is counted
//! there, from the ticks, in whole numbers.
//!
//! The page has no network access, by its content security policy. Nothing that was recorded
//! becomes markup: names are compressed and in base64 until a script shows them as text.

pub mod encode;
mod gather;
pub mod page;
pub mod payload;
pub mod serve;
mod show;
mod traced;

pub use encode::PayloadError;
pub use gather::gather;
pub use page::page;
pub use payload::{
    EventKind, PageEvent, PageFunction, PageProcess, PageStacks, PageSubject, PageThread, PageTick,
    Payload, SubjectKind,
};
pub use show::{ViewOptions, ViewOutput, show};
