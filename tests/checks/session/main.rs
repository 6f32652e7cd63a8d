//! A recording from start to end: signals, privileges, the machine's condition, and its effect on
//! other programs.

mod budget;
mod doctor;
mod own_cost;
mod packing;
mod privileges;
mod rotation;
mod self_test;
mod service;
mod signals;
mod two_collectors;
mod undisturbed;
