//! What processes belong to: `--by`, and filters by unit, container, pod, control group and user.

use super::experiment::made;
use super::{shown, stdout};

#[test]
fn processes_are_shown_and_chosen_by_what_they_belong_to() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let mut text = String::new();
    for arguments in [
        &["--by", "unit"][..],
        &["--by", "unit", "-m", "e.total:e.totalcpu"],
        &["--by", "pod", "--csv"],
        &["--by", "user", "--unit", "sort"],
        &["processes", "--cgroup", "/system.slice/", "-m", "e.total"],
        &["processes", "--user", "1000,0", "-m", "e.total"],
        &["--unit", "sort.service,nginx", "--user", "7"],
        &["--container", "0123"],
        &["--user", "no such user"],
        &["functions", "--by", "unit"],
        &["--by", "weather"],
        &["samples", "--unit", "sort"],
    ] {
        text += &shown(tmp.path(), arguments);
    }
    insta::assert_snapshot!("groups", text);
}

#[test]
fn folded_stacks_stand_on_what_processes_belong_to() {
    let tmp = tempfile::tempdir().unwrap();
    made(tmp.path());
    let folded = ["export", "--to", "folded", "--by", "unit", "-o", "-"];
    insta::assert_snapshot!("folded_by_unit", stdout(tmp.path(), &folded));
}
