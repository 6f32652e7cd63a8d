//! Input, disks, limits and programs that are wrong or meant to do harm.

mod bad_disk;
mod bad_input;
mod deaf_files;
mod disk_full;
mod every_write;
mod processes;
mod shortage;
mod sigkill;
mod user;
