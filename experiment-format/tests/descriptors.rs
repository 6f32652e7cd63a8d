//! Without descriptors no subexperiment is made, and nothing is left of it. In a process of its
//! own, since the limit is the process's.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;

use experiment_format::directory::{ExperimentDir, NameRequest};
use experiment_format::ids::Pid;
use experiment_format::log::{LogHeader, StartTime, System};
use experiment_format::writer::ExperimentWriter;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn a_subexperiment_without_descriptors_leaves_no_directory() {
    let parent = tempfile::tempdir().unwrap();
    let request = NameRequest::Exactly("x.er".to_owned());
    let (dir, _) = ExperimentDir::create(parent.path(), &request, None).unwrap();
    let dir = Rc::new(dir);
    let header = LogHeader {
        system: System {
            arch: "x86_64".into(),
            ..System::default()
        },
        pid: Pid(7),
        ..LogHeader::default()
    };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let used = File::open("/").unwrap().as_raw_fd() as u64;
    let mut made = 0;
    for free in 0..8 {
        let name = format!("_x_PID_{free}.1.er");
        setrlimit(Resource::RLIMIT_NOFILE, used + free, hard).unwrap();
        let writer = ExperimentWriter::create_sub(&dir, &name, &header, StartTime::default());
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        let path = dir.path().join(name);
        match writer {
            Ok(_) => {
                made += 1;
                assert!(fs::metadata(path.join("log.xml")).unwrap().len() > 0);
            }
            Err(error) => assert!(!path.exists(), "{free}: {error}"),
        }
    }
    assert!((1..8).contains(&made), "{made}");
}
