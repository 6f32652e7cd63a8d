//! What kcollect makes of an experiment: reports, exports and pages.

mod against_gprofng;
mod exports;
mod first_screen;
mod lines;
mod pauses;
mod sick;
mod view;
mod weighed;
