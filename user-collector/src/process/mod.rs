//! Processes: their instances, names and descent, facts from `/proc`.

mod cgroup;
mod cgroup_names;
mod command_line;
mod container;
mod facts;
mod instance;
mod lineage;
mod parent_maps;
mod proc_dir;
pub(crate) mod proc_files;
mod thread_names;

pub use cgroup::Cgroup;
pub use cgroup_names::CgroupNames;
pub use command_line::quoted;
pub use container::{Container, ContainerRuntime, container_of};
pub use facts::{ExitFacts, MAX_TEXT_BYTES, ProcessFacts, rank_of};
pub use instance::ProcessInstance;
pub use lineage::{Descent, DirectoryNames};
pub use parent_maps::{ParentMap, maps_at_fork, maps_of_ancestors};
pub(crate) use proc_dir::MAX_PROC_FILE_BYTES;
pub use proc_dir::{
    ProcDir, any_without_leader, has_living_thread, process_directory, thread_directory,
    thread_with_memory,
};
pub use proc_files::effective_uid_of;
pub use thread_names::ThreadNames;
