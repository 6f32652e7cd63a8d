//! Input, disks, limits and programs that are wrong or meant to do harm.

mod bad_disk;
mod bad_input;
mod cache;
mod descriptors;
mod disk_full;
mod every_write;
mod growth;
mod links;
mod moved;
mod names;
mod processes;
mod shortage;
mod sigkill;
mod special_files;
mod unresponsive_files;
mod user;
