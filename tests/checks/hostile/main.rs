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

/// The system's words for an error.
fn words_of(errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno).to_string();
    error.split(" (").next().unwrap_or_default().to_owned()
}
